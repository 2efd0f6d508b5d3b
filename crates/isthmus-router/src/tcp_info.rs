//! What the system knows of a TCP connection. The one unsafe file of this crate.

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// The smoothed round-trip time of a connection; none where the system does not tell.
pub(crate) fn rtt(socket: impl AsFd) -> Option<Duration> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the pointers are to `info` and to its length, both of which outlive the call.
    let status = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut len,
        )
    };
    // SAFETY: it consists of integers, was zeroed, and the system wrote at most its length.
    let info = unsafe { info.assume_init() };
    (status == 0 && info.tcpi_rtt > 0).then(|| Duration::from_micros(u64::from(info.tcpi_rtt)))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_has_a_round_trip_time_and_a_file_has_none() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        assert!(rtt(&stream).is_some());
        assert!(rtt(std::fs::File::open("/dev/null").expect("a file")).is_none());
    }
}

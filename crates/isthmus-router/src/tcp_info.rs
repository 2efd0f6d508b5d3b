//! Reads a TCP connection's state from the kernel (`TCP_INFO`). Only this file of the crate has `unsafe` code.

use std::mem::{MaybeUninit, offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use crate::wire::Sample;

/// Reads a connection's state. None if the kernel does not give it.
pub(crate) fn sample(socket: impl AsFd) -> Option<Sample> {
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
    // Older kernels fill in fewer fields.
    let complete = len as usize >= offset_of!(libc::tcp_info, tcpi_delivered);
    (status == 0 && complete && info.tcpi_rtt > 0).then(|| Sample {
        rtt: Duration::from_micros(u64::from(info.tcpi_rtt)),
        sent: u64::from(info.tcpi_data_segs_out),
        retransmitted: u64::from(info.tcpi_total_retrans),
        acknowledged: info.tcpi_bytes_acked,
        received: info.tcpi_bytes_received,
        unsent: u64::from(info.tcpi_notsent_bytes),
        busy: Duration::from_micros(info.tcpi_busy_time),
        held: Duration::from_micros(info.tcpi_rwnd_limited + info.tcpi_sndbuf_limited),
        capacity: None,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_is_known_and_a_file_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut stream = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        stream.write_all(b"some bytes").expect("taken");
        let known = sample(&stream).expect("a connection");
        assert!(known.rtt > Duration::ZERO && known.sent >= 1, "{known:?}");
        assert_eq!(sample(std::fs::File::open("/dev/null").expect("a file")), None);
    }
}

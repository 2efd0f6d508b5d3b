//! Connections as strangers make them: from any address of this host's loopback, and thousands at a time.

use std::net::{IpAddr, SocketAddr, TcpStream};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A connection from the address `from` to `to`.
pub(crate) fn connect_from(from: impl Into<IpAddr>, to: SocketAddr) -> TcpStream {
    // A program that another test starts meanwhile must not inherit it.
    let socket =
        socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket");
    bind(&socket, &SocketAddr::new(from.into(), 0)).expect("bound");
    connect(&socket, &to).expect("it listens");
    TcpStream::from(socket)
}

/// Lets this process open 8,192 files, if it may.
pub(crate) fn many_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(8_192, |most| most.min(8_192));
    if current.is_some_and(|current| current < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).expect("below the maximum");
    }
}

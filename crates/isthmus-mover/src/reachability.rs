//! Notices early that the service does not answer at its address, for transfers that have another way to it.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender};
use isthmus_io::log::no_thread;

use crate::session::Event;

/// How long a TCP connection may take. One lost SYN costs 1 s.
const CONNECTING: Duration = Duration::from_millis(1500);
/// How long an address that accepts connections may take to answer as the service. Hosts with overlapping private
/// addresses may have another program there.
const ANSWERING: Duration = Duration::from_secs(10);

/// Tries the address beside the transfer, until it is dropped.
pub(crate) struct ReachabilityCheck {
    _over: Sender<()>,
}

impl ReachabilityCheck {
    /// Sends [`Event::Unreached`] to the session if no TCP connection gets through, or if the time is up.
    pub(crate) fn start(at: SocketAddr, session: Sender<Event>) -> io::Result<Self> {
        let (over, ended) = crossbeam_channel::bounded::<()>(0);
        let thread = std::thread::Builder::new().name("mover-reach".to_owned()).spawn(move || {
            let why = match TcpStream::connect_timeout(&at, CONNECTING) {
                Err(error) => error.to_string(),
                Ok(_) if ended.recv_timeout(ANSWERING) == Err(RecvTimeoutError::Disconnected) => return,
                Ok(_) => format!("it takes connections, and did not answer as isthmus within {ANSWERING:?}"),
            };
            // If the session has ended, nobody needs to know.
            let _ = session.send(Event::Unreached(why));
        });
        thread.map_err(no_thread)?;
        Ok(Self { _over: over })
    }
}

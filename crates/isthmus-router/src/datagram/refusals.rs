//! Streams whose packets are refused: by the other host, by its firewall (ICMP), or by this host's own.
//!
//! One refusal says little: it may be about a packet of an earlier stream, and others can forge it. So a stream ends if
//! nothing has been acknowledged for [`SILENCE_US`] after the first one. Its link then goes on by TCP long before the
//! stream's patience ends.

use std::io;
use std::net::IpAddr;

use isthmus_udp::{Micros, Stream};

use super::Inner;

/// Time without an acknowledgement after the first refusal. Microseconds. Both ends of a link send every 300 ms, and
/// this leaves time for one answer on a path of 300 ms.
const SILENCE_US: Micros = 700_000;

/// The first refusal of a stream's packets since something was last acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    since: Micros,
    /// Acknowledgements until then. Count.
    answers: u64,
}

impl Inner {
    /// Packets to `host` are refused.
    pub(super) fn on_refusal(&mut self, now: Micros, host: IpAddr) {
        let (port, waiting) = (&self.port, self.waiting.iter_mut());
        for (id, stream) in waiting.filter(|(_, stream)| stream.peer.ip() == host) {
            let Some(answers) = port.stream(*id).map(answers) else { continue };
            if stream.refusal.is_none_or(|before| before.answers != answers) {
                stream.refusal = Some(Refusal { since: now, answers });
            }
        }
    }

    /// Ends the streams that are refused. Returns when to look again; `Micros::MAX` if there is no need.
    pub(super) fn end_refused(&mut self, now: Micros) -> Micros {
        let mut next = Micros::MAX;
        for (id, stream) in &mut self.waiting {
            let Some(Refusal { since, answers: before }) = stream.refusal.filter(|_| !stream.is_refused)
            else {
                continue;
            };
            let known = self.port.stream(*id).filter(|known| known.failure().is_none());
            if known.is_none_or(|known| answers(known) != before) {
                stream.refusal = None;
            } else if now < since + SILENCE_US {
                next = next.min(since + SILENCE_US);
            } else {
                stream.is_refused = true;
                self.port.with(now, *id, Stream::abort);
                let wakers = [stream.reader.take(), stream.writer.take()];
                wakers.into_iter().flatten().for_each(std::task::Waker::wake);
            }
        }
        next
    }
}

fn answers(stream: &Stream) -> u64 {
    stream.status().counters.answers
}

/// The error of a stream that has ended so.
pub(super) fn error() -> io::Error {
    let text = "packets by UDP are refused: open the port for UDP in the firewalls of both routers, or set transport = \
                \"tcp\" for this subnet";
    io::Error::new(io::ErrorKind::ConnectionRefused, text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::{sleep, timeout};

    use super::super::{DatagramPorts, now};

    /// Longest time for what has to happen. The stream's patience is 10 s.
    const LIMIT: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn a_stream_whose_packets_are_refused_ends_soon_with_the_reason() {
        let nobody = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
        let ports = DatagramPorts::default();
        let mut stream = ports.at("127.0.0.1:0".parse().expect("valid")).expect("a port").dial(nobody);
        stream.write_all(b"hello").await.expect("taken");
        let ended = timeout(LIMIT, stream.read_u8()).await.expect("soon").expect_err("nobody answers");
        assert!(ended.to_string().contains("packets by UDP are refused"), "{ended}");
    }

    #[tokio::test]
    async fn a_stream_that_is_acknowledged_outlives_refusals() {
        let ports = DatagramPorts::default();
        let far = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
        let (near, far_port) =
            (ports.at("127.0.0.1:0".parse().expect("valid")).expect("a port"), ports.at(far).expect("free"));
        let mut arrivals = far_port.accept();
        let mut stream = near.dial(far);
        stream.write_all(b"0").await.expect("taken");
        let mut other = timeout(LIMIT, arrivals.recv()).await.expect("soon").expect("open");
        for _ in 0..20 {
            near.inner.lock().on_refusal(now(), far.ip());
            sleep(Duration::from_millis(50)).await;
            stream.write_all(b"1").await.expect("it stands");
            timeout(LIMIT, other.read_u8()).await.expect("soon").expect("it arrives");
        }
    }
}

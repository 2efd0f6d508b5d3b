//! The flow labels of a UDP socket that has many destinations.

use std::fmt::Arguments;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::Socket;

use crate::flow_label::{STATELESS, is_free, is_unleased, lease, send_labels, with_label};

/// Most labels that are leased for a socket. Count; the kernel refuses more to ordinary users.
const LEASES_MAX: u32 = 32;

/// Labels with some fixed bits. The others are free: they are the same for all packets to one destination, and differ
/// between destinations, so that a network spreads flows over its links (RFC 6437, RFC 6438).
#[derive(Debug, Default)]
pub struct Labels {
    fixed: u32,
    free: u32,
    /// Destinations get labels.
    on: AtomicBool,
    /// Hears that destinations get labels no more.
    say: Option<fn(Arguments<'_>)>,
}

impl Labels {
    /// Labels for this socket. Leases them if the kernel demands it.
    pub(crate) fn on(socket: &Socket, (fixed, free): (u32, u32), say: fn(Arguments<'_>)) -> io::Result<Self> {
        send_labels(socket)?;
        let mut labels = Self { fixed, free, on: AtomicBool::new(true), say: Some(say) };
        if !is_free(labels.fixed)? {
            labels.free &= !STATELESS;
            labels.lease_all(socket)?;
        }
        Ok(labels)
    }

    fn lease_all(&self, socket: &Socket) -> io::Result<()> {
        if 1 << self.free.count_ones() > LEASES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut bits = self.free;
        loop {
            // The kernel demands a destination, and then lets the label go to others, too.
            lease(socket, Ipv6Addr::LOCALHOST, self.fixed | bits)?;
            if bits == 0 {
                return Ok(());
            }
            // The next smaller number that has free bits only.
            bits = (bits - 1) & self.free;
        }
    }

    /// The label of packets to this destination.
    #[must_use]
    pub fn of((fixed, free): (u32, u32), to: SocketAddr) -> u32 {
        let mut hasher = DefaultHasher::new();
        (to.ip(), to.port()).hash(&mut hasher);
        let hash = hasher.finish();
        fixed | (hash ^ hash >> 20 ^ hash >> 40) as u32 & free
    }

    /// Sends to a destination with its label. If the kernel has begun to demand leases, packets go without labels from
    /// then on.
    pub(crate) fn send(&self, to: SocketAddr, send: impl Fn(SocketAddr) -> io::Result<()>) -> io::Result<()> {
        if to.is_ipv4() || !self.on.load(Ordering::Relaxed) {
            return send(to);
        }
        match send(with_label(to, Self::of((self.fixed, self.free), to))) {
            Err(error) if is_unleased(&error) => {
                send(to)?;
                self.on.store(false, Ordering::Relaxed);
                if let Some(say) = self.say {
                    say(format_args!("packets go without flow labels: another program has some for itself"));
                }
                Ok(())
            }
            sent => sent,
        }
    }
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, Type};

    use super::*;

    const FIXED: u32 = 0x2_0010;
    const FREE: u32 = 0xc_0103;

    #[test]
    fn destinations_share_the_fixed_bits_and_differ_in_the_free_ones() {
        let to = |port| SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port);
        let labels: Vec<u32> = (1..200).map(|port| Labels::of((FIXED, FREE), to(port))).collect();
        assert!(labels.iter().all(|label| label & !FREE == FIXED));
        let mut distinct = labels.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 32, "5 free bits make 32 labels");
        assert_eq!(labels[0], Labels::of((FIXED, FREE), to(1)));
    }

    #[test]
    fn all_labels_of_a_tag_can_be_leased() {
        let Ok(socket) = Socket::new(Domain::IPV6, Type::DGRAM, None) else { return };
        let labels = Labels { fixed: FIXED, free: FREE & !STATELESS, on: AtomicBool::new(true), say: None };
        labels.lease_all(&socket).expect("16 labels");
        let more = Labels { free: 0x3f << 8, ..labels };
        assert!(more.lease_all(&socket).is_err());
    }

    #[test]
    fn packets_go_without_a_label_once_the_kernel_refuses_it() {
        let labels = Labels { fixed: FIXED, free: FREE, on: AtomicBool::new(true), say: None };
        let to: SocketAddr = "[::1]:7".parse().expect("valid");
        let refuse = |to: SocketAddr| match to {
            SocketAddr::V6(to) if to.flowinfo() != 0 => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            _ => Ok(()),
        };
        assert!(labels.send(to, refuse).is_ok());
        let plain = |to: SocketAddr| match to {
            SocketAddr::V6(to) if to.flowinfo() == 0 => Ok(()),
            _ => Err(io::ErrorKind::Other.into()),
        };
        assert!(labels.send(to, plain).is_ok(), "the next one has none");
    }
}

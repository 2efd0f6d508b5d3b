//! Chooses the device by which an endpoint is reached: by reachability first, then by priority.
//!
//! An address of a device's own AS and subnet is reached directly, any other by the routers of the device's subnet, if
//! it has some. Sites that never configured AS and subnet all have 0.0. So if an address is on the IP network of a
//! device, that device goes before those that would need the system's routes.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use isthmus_datagram::is_frames_only;
use isthmus_wire::Address;

use crate::{Device, Error};

/// The ways in which a device reaches an address, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    /// It is on the network of the interface.
    OnLink,
    /// It is of the same AS and subnet, and the system has a route.
    Routed,
    /// Isthmus's routers lead to it.
    Routers,
}

/// Parses the addresses of one endpoint, joined by commas.
///
/// # Errors
/// [`Error::Uri`].
pub(crate) fn addresses(uri: &str) -> Result<Vec<Address>, Error> {
    uri.split(',').map(|one| one.trim().parse().map_err(|e| Error::Uri(format!("{e}")))).collect()
}

/// The best way in which a device reaches an address; `None` if it does not.
pub(crate) fn reach(device: &Device, to: &Address) -> Option<Reach> {
    let own = device.address().ok()?;
    if (to.as_id.0, to.subnet.0) != (device.as_id(), device.subnet()) {
        return (!device.routers().is_empty() && !is_frames_only(own)).then_some(Reach::Routers);
    }
    let there = to.locator.ip();
    if is_frames_only(there) {
        return device.carries_frames().then_some(Reach::OnLink);
    }
    if device.network_bits().is_some_and(|bits| same_network(own, there, bits)) {
        return Some(Reach::OnLink);
    }
    (!is_frames_only(own) && has_route(own, to.locator)).then_some(Reach::Routed)
}

/// Whether the first `bits` bits of both addresses are the same.
fn same_network(a: IpAddr, b: IpAddr, bits: u8) -> bool {
    let (a, b, all): (u128, u128, u32) = match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits().into(), b.to_bits().into(), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits(), 128),
        _ => return false,
    };
    (a ^ b).checked_shr(all.saturating_sub(bits.into())).unwrap_or(0) == 0
}

/// Whether the system has a route from one address to another; nothing is sent.
fn has_route(from: IpAddr, to: SocketAddr) -> bool {
    UdpSocket::bind((from, 0)).is_ok_and(|socket| socket.connect(to).is_ok())
}

/// All routes from the devices to the addresses, the best first: index of the device, and address.
///
/// # Errors
/// [`Error::Unreachable`] if there is none, with the reason for each device.
pub(crate) fn routes(devices: &[&Device], addresses: &[Address]) -> Result<Vec<(usize, Address)>, Error> {
    let mut found = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        found.extend(addresses.iter().filter_map(|to| Some((reach(device, to)?, index, *to))));
    }
    if found.is_empty() {
        return Err(Error::Unreachable(lacking(devices, addresses)));
    }
    let near = found.iter().any(|(reach, ..)| *reach == Reach::OnLink);
    found.sort_by_key(|&(reach, index, _)| {
        (near && reach == Reach::Routed, std::cmp::Reverse(devices[index].priority()), reach, index)
    });
    Ok(found.into_iter().map(|(_, index, to)| (index, to)).collect())
}

fn lacking(devices: &[&Device], addresses: &[Address]) -> String {
    let each = |device: &&Device| {
        let (name, own) = (device.name(), (device.as_id(), device.subnet()));
        let place = format!("{name} is in AS {} subnet {}", own.0, own.1);
        match device.address() {
            Err(why) => format!("{name} is down: {why}"),
            Ok(_) if addresses.iter().any(|to| (to.as_id.0, to.subnet.0) == own) => {
                format!("{place} too, but the system has no route there")
            }
            Ok(_) => format!("{place} and has no routers"),
        }
    };
    let to: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let why: Vec<String> = devices.iter().map(each).collect();
    format!(
        "no device reaches {}: {}; give one the as_id and subnet of that endpoint, or routers",
        to.join(","),
        why.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_begin_with_the_same_bits() {
        let ip = |text: &str| text.parse().expect("an IP address");
        let same = |a: &str, b: &str, bits| same_network(ip(a), ip(b), bits);
        assert!(same("10.1.2.3", "10.1.2.200", 24) && !same("10.1.2.3", "10.1.3.3", 24));
        assert!(same("10.1.2.3", "192.168.0.1", 0) && same("10.1.2.3", "10.1.2.3", 32));
        assert!(same("fd00::1", "fd00::2:1", 64) && !same("fd00::1", "fd00::2", 128));
        assert!(!same("10.1.2.3", "fd00::1", 0));
    }
}

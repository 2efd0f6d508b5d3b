//! A group: its members, and the tags of its messages.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU16, Ordering};

use isthmus_wire::{Address, fnv1a};

use crate::abi::fi_addr_t;
use crate::error::Error;

/// Low bits of a tag that name the operation; the group's bits are above them. At most one message goes each way
/// between two members for an operation.
const GROUP_SHIFT: u32 = u16::BITS;

/// A member's view of its group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) members: Vec<fi_addr_t>,
    /// This endpoint's index among the members.
    pub(crate) rank: usize,
    tag: u64,
    /// Operations that have begun. All members begin them in the same order, so the count names an operation.
    begun: AtomicU16,
}

impl Group {
    pub(crate) fn new(members: Vec<fi_addr_t>, rank: usize, tag: u64) -> Self {
        Self { members, rank, tag, begun: AtomicU16::new(0) }
    }

    /// A tag for the messages of a new operation.
    pub(crate) fn next_tag(&self) -> u64 {
        self.tag | u64::from(self.begun.fetch_add(1, Ordering::Relaxed))
    }

    /// The rank of an address.
    pub(crate) fn rank_of(&self, number: fi_addr_t) -> Result<usize, Error> {
        let rank = self.members.iter().position(|&member| member == number);
        rank.ok_or(Error::Invalid("the root is no member of the group"))
    }
}

/// Joins of each group of members. The count distinguishes a group's messages from those of an earlier one.
#[derive(Debug, Default)]
pub(crate) struct Joins(HashMap<u64, u64>);

impl Joins {
    /// The high bits of the tags of the next group of these members. All members compute the same without a message, as
    /// they know each other by the same addresses and join in the same order.
    pub(crate) fn next(&mut self, members: &[Address]) -> u64 {
        let named =
            members.iter().flat_map(|member| member.locator.to_string().into_bytes().into_iter().chain([0]));
        let nth = self.0.entry(fnv1a(named.clone())).or_default();
        *nth += 1;
        let name = fnv1a(named.chain(nth.to_le_bytes()));
        name & !0 << GROUP_SHIFT
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn groups_have_tags_of_their_own() {
        let address = |port: u16| Address::from(SocketAddr::from(([10, 0, 0, 1], port)));
        let (two, three) = ([address(1), address(2)], [address(1), address(2), address(3)]);
        let (mut here, mut there) = (Joins::default(), Joins::default());
        let tags = [here.next(&two), here.next(&three), here.next(&two)];
        // The other member is not in the group of three.
        assert_eq!([there.next(&two), there.next(&two)], [tags[0], tags[2]]);
        for tag in tags {
            assert_eq!(tag & !(!0 << GROUP_SHIFT), 0);
        }
        assert!(tags[0] != tags[1] && tags[0] != tags[2] && tags[1] != tags[2]);
    }
}

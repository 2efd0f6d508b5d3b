//! The table of an address vector: numbers for the addresses that a program knows.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use isthmus_wire::Address;
use parking_lot::RwLock;

use crate::abi::fi_addr_t;

/// The table of an address vector; endpoints share it.
#[derive(Debug, Default)]
pub(crate) struct AvTable {
    inner: RwLock<Inner>,
    removals: AtomicU64,
    /// Some addresses have a name that the program chose (`FI_AV_USER_ID`).
    named: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    entries: Vec<Option<Entry>>,
    numbers: HashMap<Address, fi_addr_t>,
    /// Free numbers; the lowest is used first (fi_av(3)).
    free: BinaryHeap<Reverse<usize>>,
}

#[derive(Debug)]
struct Entry {
    address: Address,
    /// Insertions minus removals. Count.
    uses: usize,
    /// The address by which the program knows it in completions.
    name: Option<fi_addr_t>,
}

impl AvTable {
    /// Adds an address. An address that is there already keeps its number.
    pub(crate) fn insert(&self, address: Address) -> fi_addr_t {
        let mut inner = self.inner.write();
        if let Some(&number) = inner.numbers.get(&address) {
            if let Some(Some(entry)) = inner.entries.get_mut(number as usize) {
                entry.uses += 1;
            }
            return number;
        }
        let entry = Some(Entry { address, uses: 1, name: None });
        let index = match inner.free.pop() {
            Some(Reverse(index)) => {
                inner.entries[index] = entry;
                index
            }
            None => {
                inner.entries.push(entry);
                inner.entries.len() - 1
            }
        };
        inner.numbers.insert(address, index as fi_addr_t);
        index as fi_addr_t
    }

    /// Undoes one insertion. False for a number that is not in use.
    pub(crate) fn remove(&self, number: fi_addr_t) -> bool {
        let mut inner = self.inner.write();
        let Some(Some(entry)) = inner.entries.get_mut(number as usize) else { return false };
        entry.uses -= 1;
        if entry.uses == 0 {
            let address = entry.address;
            inner.entries[number as usize] = None;
            inner.numbers.remove(&address);
            inner.free.push(Reverse(number as usize));
            self.removals.fetch_add(1, Ordering::Release);
        }
        true
    }

    pub(crate) fn address(&self, number: fi_addr_t) -> Option<Address> {
        let inner = self.inner.read();
        let entry = inner.entries.get(usize::try_from(number).ok()?)?;
        entry.as_ref().map(|entry| entry.address)
    }

    /// Higher than any number in use.
    pub(crate) fn numbers_end(&self) -> fi_addr_t {
        self.inner.read().entries.len() as fi_addr_t
    }

    /// The number of an address, or of the wildcard for its locator.
    pub(crate) fn number(&self, address: &Address) -> Option<fi_addr_t> {
        let inner = self.inner.read();
        let wildcards = [Address { incarnation: 0, ..*address }, Address::from(address.locator)];
        let mut candidates = std::iter::once(address).chain(&wildcards);
        candidates.find_map(|candidate| inner.numbers.get(candidate)).copied()
    }

    /// Makes completions use `name` for the address of this number (`FI_AV_USER_ID`). False for a number that is
    /// not in use.
    pub(crate) fn set_name(&self, number: fi_addr_t, name: fi_addr_t) -> bool {
        let mut inner = self.inner.write();
        let Some(Some(entry)) = inner.entries.get_mut(number as usize) else { return false };
        entry.name = Some(name);
        self.named.store(true, Ordering::Release);
        true
    }

    /// The number or name that completions use for the address of this number.
    #[inline]
    pub(crate) fn told(&self, number: fi_addr_t) -> fi_addr_t {
        if self.named.load(Ordering::Acquire) { self.name(number) } else { number }
    }

    #[cold]
    fn name(&self, number: fi_addr_t) -> fi_addr_t {
        let inner = self.inner.read();
        let entry = inner.entries.get(number as usize).and_then(Option::as_ref);
        entry.and_then(|entry| entry.name).unwrap_or(number)
    }

    /// Grows whenever numbers become invalid.
    pub(crate) fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::FI_ADDR_NOTAVAIL;

    fn address(port: u16, incarnation: u32) -> Address {
        Address { incarnation, ..Address::from(std::net::SocketAddr::from(([10, 0, 0, 1], port))) }
    }

    #[test]
    fn numbers_count_up_and_stay() {
        let table = AvTable::default();
        assert_eq!(table.insert(address(1, 7)), 0);
        assert_eq!(table.insert(address(2, 7)), 1);
        assert_eq!(table.insert(address(1, 7)), 0);
        assert_eq!(table.address(1), Some(address(2, 7)));
        assert_eq!(table.address(2), None);
        assert_eq!(table.address(FI_ADDR_NOTAVAIL), None);
    }

    #[test]
    fn an_address_gets_the_lowest_number_that_is_free() {
        let table = AvTable::default();
        for port in 0..5 {
            assert_eq!(table.insert(address(port, 7)), u64::from(port));
        }
        assert!([0, 3, 1].into_iter().all(|number| table.remove(number)));
        assert_eq!([6, 7, 8, 9].map(|port| table.insert(address(port, 7))), [0, 1, 3, 5]);
    }

    #[test]
    fn an_address_is_called_by_its_name_as_long_as_it_is_there() {
        let table = AvTable::default();
        let number = table.insert(address(1, 7));
        assert!(table.set_name(number, 700) && !table.set_name(5, 700));
        assert_eq!((table.told(number), table.told(5)), (700, 5));
        assert!(table.remove(number));
        assert_eq!(table.insert(address(2, 7)), number);
        assert_eq!(table.told(number), number);
    }

    #[test]
    fn a_removed_address_may_come_back() {
        let table = AvTable::default();
        table.insert(address(1, 7));
        table.insert(address(1, 7));
        assert!(table.remove(0));
        assert_eq!((table.removals(), table.number(&address(1, 7))), (0, Some(0)));
        assert!(table.remove(0));
        assert!(!table.remove(0));
        assert_eq!((table.removals(), table.number(&address(1, 7))), (1, None));
        assert_eq!(table.insert(address(3, 7)), 0);
    }

    #[test]
    fn a_wildcard_stands_for_whoever_listens_there() {
        let table = AvTable::default();
        assert_eq!(table.insert(address(1, 0)), 0);
        assert_eq!(table.number(&address(1, 99)), Some(0));
        assert_eq!(table.number(&address(2, 99)), None);
    }
}

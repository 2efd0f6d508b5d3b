//! Counts how many lanes, and how many waiting look-ups, each source has. A source is a host of this AS or a neighbour
//! AS. The limits keep one source from using up the router.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use isthmus_wire::AsId;
use parking_lot::Mutex;

/// The party that a lane or look-up is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// A host of this AS, as its connection shows it.
    Host(IpAddr),
    /// A neighbour, as its certificate names it.
    Neighbour(AsId),
}

/// The number that each source has now; see the module.
#[derive(Default)]
pub(crate) struct Quotas(Mutex<HashMap<Source, usize>>);

/// One unit charged to a source, until it is dropped.
pub(crate) struct Share {
    quotas: Arc<Quotas>,
    source: Source,
}

impl Quotas {
    /// Charges one more to `source`. None if it has `most` already.
    pub(crate) fn take(self: &Arc<Self>, source: Source, most: usize) -> Option<Share> {
        let mut taken = self.0.lock();
        let count = taken.entry(source).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Share { quotas: self.clone(), source })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.quotas.0.lock();
        if let Some(count) = taken.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_so_many_and_others_are_not_concerned() {
        let quotas = Arc::new(Quotas::default());
        let host = |last| Source::Host([10, 0, 0, last].into());
        let mut shares: Vec<_> = (0..3).map(|_| quotas.take(host(1), 3).expect("room")).collect();
        assert!(quotas.take(host(1), 3).is_none());
        assert!(quotas.take(host(2), 3).is_some() && quotas.take(Source::Neighbour(AsId(1)), 3).is_some());
        shares.pop();
        assert!(quotas.take(host(1), 3).is_some());
        drop(shares);
        assert!(quotas.0.lock().is_empty(), "nothing is kept of who has gone");
    }
}

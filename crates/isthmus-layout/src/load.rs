//! Requests under way, by volume.

use std::collections::BTreeMap;

use crate::Volume;

/// Counts the requests under way of each volume, and puts volumes in the order in which the next request should choose
/// among them: the fewest under way first ("join the shortest queue").
#[derive(Debug, Default)]
pub struct Load {
    under_way: BTreeMap<Volume, usize>,
}

impl Load {
    /// Requests under way at this volume. Count.
    pub fn of(&self, volume: Volume) -> usize {
        self.under_way.get(&volume).copied().unwrap_or(0)
    }

    /// A request of this volume begins.
    pub fn begin(&mut self, volume: Volume) {
        *self.under_way.entry(volume).or_default() += 1;
    }

    /// A request of this volume has ended.
    pub fn end(&mut self, volume: Volume) {
        if let Some(count) = self.under_way.get_mut(&volume) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(&volume);
            }
        }
    }

    /// These volumes, the ones with the fewest requests under way first. The keys decide between equals.
    pub fn order<K: Ord>(&self, among: impl IntoIterator<Item = (Volume, K)>) -> Vec<Volume> {
        let mut order: Vec<_> =
            among.into_iter().map(|(volume, key)| (self.of(volume), key, volume)).collect();
        order.sort_unstable();
        order.into_iter().map(|(_, _, volume)| volume).collect()
    }

    /// The requests under way at all volumes. Count.
    pub fn total(&self) -> usize {
        self.under_way.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_volume_with_the_fewest_under_way_comes_first_and_keys_decide_between_equals() {
        let [a, b, c] = [1, 2, 3].map(Volume::of_device);
        let mut load = Load::default();
        [a, a, b].into_iter().for_each(|volume| load.begin(volume));
        let order = |load: &Load| load.order([(a, 1), (b, 2), (c, 3)]);
        assert_eq!((order(&load), load.total()), (vec![c, b, a], 3));
        load.end(a);
        assert_eq!(order(&load), [c, a, b]);
        load.end(a);
        load.end(b);
        assert_eq!((order(&load), load.total(), load.of(b)), (vec![a, b, c], 0, 0));
    }
}

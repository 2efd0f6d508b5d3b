//! Where the ranks of a job of `isthmus run` are: each part is a site.

use std::env;

/// The site of a rank of the world, from 0; `None` if `isthmus run` has not started this process, or has no such rank.
#[must_use]
pub fn site(rank: u32) -> Option<u32> {
    of(&env::var("ISTHMUS_RUN_PART_SIZES").ok()?, rank)
}

/// `sizes`: the ranks of each part, such as `64,32`.
fn of(sizes: &str, rank: u32) -> Option<u32> {
    let mut end = 0u64;
    for (site, size) in (0..).zip(sizes.split(',')) {
        end += u64::from(size.parse::<u32>().ok()?);
        if u64::from(rank) < end {
            return Some(site);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_a_site() {
        let sites: Vec<_> = (0..7).map(|rank| of("2,1,3", rank)).collect();
        assert_eq!(sites, [Some(0), Some(0), Some(1), Some(2), Some(2), Some(2), None]);
        assert_eq!(of("many", 0), None);
    }
}

//! Determines which share of a copy this process does.

use isthmus_launch::{ProcessNumber, Wrong};
use isthmus_mover::wire::Share;

/// Parses R/N.
pub(super) fn parse(text: &str) -> Result<Share, String> {
    let read = || {
        let (rank, ranks) = text.split_once('/')?;
        checked(rank, ranks)
    };
    read().ok_or_else(|| "expected R/N, of which R is from 0 to N - 1, such as 0/4".to_owned())
}

fn checked(rank: &str, ranks: &str) -> Option<Share> {
    let share = Share { rank: rank.parse().ok()?, ranks: ranks.parse().ok()? };
    (share.rank < share.ranks).then_some(share)
}

/// The share that the launcher's variables give; `None` without a launcher.
pub(super) fn of_launcher(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Share>, String> {
    let process = ProcessNumber::from_environment(variable, None)
        .map_err(|Wrong { why, .. }| format!("{why}; give --share R/N"))?;
    Ok(process.map(|process| Share { rank: process.index, ranks: process.count }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_come_from_the_launcher() {
        let of = |pairs: &'static [(&str, &str)]| {
            of_launcher(|name| {
                pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let share = |rank, ranks| Ok(Some(Share { rank, ranks }));
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[("PMI_RANK", "1"), ("PMI_SIZE", "4")]), share(1, 4));
        assert_eq!(of(&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")]), share(0, 2));
        assert_eq!(of(&[("SLURM_PROCID", "7"), ("SLURM_STEP_NUM_TASKS", "8")]), share(7, 8));
        // A batch script outside of srun.
        assert_eq!(of(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]), Ok(None));
        assert!(of(&[("PMI_RANK", "4"), ("PMI_SIZE", "4")]).is_err());
        assert_eq!(parse("0/4"), Ok(Share { rank: 0, ranks: 4 }));
        for bad in ["", "4", "4/4", "-1/4", "a/b", "0/0"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}

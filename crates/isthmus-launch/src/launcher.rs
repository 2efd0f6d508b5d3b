//! The number of this process within its part, read from the environment variables of the site's launcher.

use std::fmt;

/// The number of a process among those that the launcher started, and their count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessNumber {
    /// From 0.
    pub index: u32,
    /// At least 1.
    pub count: u32,
}

/// For each launcher, the variables with the number of a process and with their count.
///
/// The order is from the innermost launcher outwards. Hydra and PRRTE start their own daemons by `srun`, whose
/// variables then describe the daemons. `SLURM_PROCID` is set in a batch script too, but `SLURM_STEP_NUM_TASKS` only
/// within `srun`.
const LAUNCHERS: &[(&str, &str)] = &[
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PALS_RANKID", "PALS_SIZE"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
];

/// The number of a process in launchers that only have PMIx, such as `prun`. PMIx has no variable for the count.
const PMIX: &str = "PMIX_RANK";

/// Whether a variable would lead an MPI library to the site's launcher instead of this one.
pub(crate) fn is_of_a_launcher(name: &str) -> bool {
    ["PMI_", "PMI2_", "PMIX_", "HYDI_", "HYDRA_", "MPI_LOCAL", "PALS_"]
        .iter()
        .any(|start| name.starts_with(start))
}

/// Why a place is impossible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong(String);

impl fmt::Display for Wrong {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl ProcessNumber {
    /// Process `index` of `count`.
    ///
    /// # Errors
    /// If `index` is not below `count`.
    pub fn new(index: u32, count: u32) -> Result<Self, Wrong> {
        match index < count {
            true => Ok(Self { index, count }),
            false => Err(Wrong(format!("process {index} of {count}; they count from 0"))),
        }
    }

    /// The place that the launcher's variables give; `None` without a launcher. `size`: the count, if the user tells it.
    ///
    /// # Errors
    /// If the variables are no numbers, or contradict each other; if they tell the number or the count alone.
    pub fn from_environment(
        get: impl Fn(&str) -> Option<String>,
        size: Option<u32>,
    ) -> Result<Option<Self>, Wrong> {
        let number = |name: &str, text: &str| {
            text.parse().map_err(|_| Wrong(format!("{name} = {text:?} is no number; give --rank and --size")))
        };
        for (index, count) in LAUNCHERS {
            let (Some(rank), Some(told)) = (get(index), get(count)) else { continue };
            let size = size.map_or_else(|| number(count, &told), Ok)?;
            let process = Self::new(number(index, &rank)?, size);
            return process.map(Some).map_err(|Wrong(why)| Wrong(format!("{index} and {count} say {why}")));
        }
        match (get(PMIX), size) {
            (Some(rank), Some(size)) => Self::new(number(PMIX, &rank)?, size).map(Some),
            (Some(_), None) => Err(Wrong(format!(
                "{PMIX} says that a launcher has started this process, but not how many there are; give --size"
            ))),
            (None, Some(_)) => Err(Wrong("--size needs --rank: no launcher numbers this process".to_owned())),
            (None, None) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(variables: &[(&str, &str)]) -> Result<Option<ProcessNumber>, Wrong> {
        let get = |name: &str| variables.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned());
        ProcessNumber::from_environment(get, None)
    }

    #[test]
    fn every_launcher_is_understood() {
        for (index, count) in LAUNCHERS {
            assert_eq!(
                process(&[(index, "3"), (count, "4")]),
                Ok(Some(ProcessNumber { index: 3, count: 4 }))
            );
        }
    }

    #[test]
    fn a_batch_script_is_no_step_of_srun() {
        assert_eq!(process(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "64")]), Ok(None));
    }

    #[test]
    fn daemons_that_srun_started_do_not_count() {
        let nested =
            [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2"), ("PMI_RANK", "5"), ("PMI_SIZE", "8")];
        assert_eq!(process(&nested), Ok(Some(ProcessNumber { index: 5, count: 8 })));
    }

    /// Else each process would take itself for the whole part, and make a world of its own.
    #[test]
    fn prun_numbers_processes_and_the_user_counts_them() {
        let get = |name: &str| (name == "PMIX_RANK").then(|| "2".to_owned());
        let place = |size| ProcessNumber::from_environment(get, size);
        assert_eq!(place(Some(3)), Ok(Some(ProcessNumber { index: 2, count: 3 })));
        assert!(place(None).is_err() && place(Some(2)).is_err());
        assert!(ProcessNumber::from_environment(|_| None, Some(2)).is_err());
    }

    #[test]
    fn what_cannot_be_is_an_error() {
        assert!(process(&[("PMI_RANK", "4"), ("PMI_SIZE", "4")]).is_err());
        assert!(process(&[("PMI_RANK", "one"), ("PMI_SIZE", "4")]).is_err());
    }
}

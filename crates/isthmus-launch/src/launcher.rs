//! The number of this process within its part, read from the environment variables of the site's launcher.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};

/// The number of a process among those that the launcher started, and their count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessNumber {
    /// From 0.
    pub index: u32,
    /// At least 1.
    pub count: u32,
}

/// The variables of a launcher.
struct Launcher {
    /// Has the number of the process.
    number: &'static str,
    count: Count,
    pmix: Pmix,
}

/// How to know whether the PMIx server of a process is this launcher's. PRRTE replaces `PMIX_NAMESPACE` for processes
/// that it starts, and leaves them the other variables of its daemon.
enum Pmix {
    /// `PMIX_NAMESPACE` begins so.
    Begins(&'static str),
    /// `PMIX_NAMESPACE` equals this variable.
    Equals(&'static str),
    /// By nothing that is documented.
    Unknown,
}

/// The variable with the name of the group of processes that PMIx numbers.
const PMIX_NAMESPACE: &str = "PMIX_NAMESPACE";

impl Pmix {
    /// Whether this launcher has started the process, `None` if nothing tells.
    fn has_started(&self, get: impl Fn(&str) -> Option<String>) -> Option<bool> {
        let namespace = get(PMIX_NAMESPACE);
        match self {
            Self::Begins(start) => Some(namespace.is_some_and(|name| name.starts_with(start))),
            Self::Equals(variable) => Some(namespace.is_some() && namespace == get(variable)),
            Self::Unknown => None,
        }
    }
}

/// Where a launcher tells the count of processes.
enum Count {
    /// In this variable.
    Variable(&'static str),
    /// In this variable. Without it, the number is not that of a process: Slurm's batch scripts have `SLURM_PROCID`.
    Step(&'static str),
    /// In the header of the file that this variable names ([`count_of_pals`]).
    PalsFile(&'static str),
    /// Nowhere.
    Untold,
}

/// The launchers that number their processes, from the innermost outwards. Hydra and PRRTE start their own daemons by
/// the launcher of the resource manager, whose variables then describe the daemons.
///
/// PALS's variables are those that Flux (`cray_pals.c`) and Slurm (`mpi_cray_shasta.c`) set for HPE's libraries. The
/// names of PMIx's groups are those of Slurm's plugin `mpi/pmix` (`slurm.pmix.JOB.STEP`) and of flux-pmix (the job).
const LAUNCHERS: &[Launcher] = &[
    Launcher {
        number: "OMPI_COMM_WORLD_RANK",
        count: Count::Variable("OMPI_COMM_WORLD_SIZE"),
        pmix: Pmix::Unknown,
    },
    Launcher { number: "PMI_RANK", count: Count::Variable("PMI_SIZE"), pmix: Pmix::Unknown },
    Launcher {
        number: "MV2_COMM_WORLD_RANK",
        count: Count::Variable("MV2_COMM_WORLD_SIZE"),
        pmix: Pmix::Unknown,
    },
    Launcher { number: "PMIX_RANK", count: Count::Untold, pmix: Pmix::Unknown },
    Launcher { number: "PALS_RANKID", count: Count::PalsFile("PALS_APINFO"), pmix: Pmix::Unknown },
    Launcher {
        number: "FLUX_TASK_RANK",
        count: Count::Variable("FLUX_JOB_SIZE"),
        pmix: Pmix::Equals("FLUX_JOB_ID"),
    },
    Launcher {
        number: "JSM_NAMESPACE_RANK",
        count: Count::Variable("JSM_NAMESPACE_SIZE"),
        pmix: Pmix::Unknown,
    },
    Launcher {
        number: "SLURM_PROCID",
        count: Count::Step("SLURM_STEP_NUM_TASKS"),
        pmix: Pmix::Begins("slurm.pmix."),
    },
];

/// The variable with the number of a task of PBS. It is 1 in the batch script itself. The numbers of other tasks have
/// gaps and are hexadecimal, so they tell no place in the part (OpenPBS, `momtask_create`).
const PBS_TASK: &str = "PBS_TASKNUM";

/// Length of the header of a file of PALS, up to the count of processes. Bytes.
const PALS_HEADER: usize = 84;

/// The first `PALS_HEADER` bytes of a file.
fn header_of(path: &str) -> io::Result<[u8; PALS_HEADER]> {
    let mut header = [0; PALS_HEADER];
    File::open(path)?.read_exact(&mut header)?;
    Ok(header)
}

/// The count of processes in a file of PALS; `None` if it is no such file. The file begins with a C structure in this
/// host's byte order: its version, sizes and offsets of the tables that follow, and the count of each table's entries.
/// Processes are called PEs there. (Slurm and Flux write such files: `apinfo.c`.)
fn count_of_pals(header: &[u8; PALS_HEADER]) -> Option<u32> {
    let size = |at: usize| Some(u64::from_ne_bytes(header.get(at..at + 8)?.try_into().ok()?));
    let (total, pe_size, pe_offset) = (size(8)?, size(64)?, size(72)?);
    let count = u32::from_ne_bytes(header.get(80..84)?.try_into().ok()?);
    // Another layout, if the table does not fit.
    let end = pe_size.checked_mul(count.into())?.checked_add(pe_offset)?;
    (count > 0 && pe_size > 0 && end <= total).then_some(count)
}

/// Whether a variable would lead an MPI library to the site's launcher instead of this one.
pub(crate) fn is_of_a_launcher(name: &str) -> bool {
    ["PMI_", "PMI2_", "PMIX_", "HYDI_", "HYDRA_", "MPI_LOCAL", "PALS_"]
        .iter()
        .any(|start| name.starts_with(start))
}

/// Why a process has no number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The fault.
    pub why: String,
    /// What a user of `isthmus run` can do; may be empty.
    pub advice: &'static str,
}

impl fmt::Display for Wrong {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.why)?;
        if !self.advice.is_empty() {
            write!(out, "; {}", self.advice)?;
        }
        Ok(())
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
            false => Err(Wrong { why: format!("process {index} of {count}; they count from 0"), advice: "" }),
        }
    }

    /// The place that the launcher's variables give; `None` without a launcher. `size` is the count, if the user tells
    /// it.
    ///
    /// # Errors
    /// If the variables are no numbers or contradict each other. If they tell the number or the count alone. If PBS has
    /// started the process: PBS does not number it.
    pub fn from_environment(
        get: impl Fn(&str) -> Option<String>,
        size: Option<u32>,
    ) -> Result<Option<Self>, Wrong> {
        let number = |name: &str, text: &str| {
            let why = || format!("{name} = {text:?} is no number");
            text.parse::<u32>().map_err(|_| Wrong { why: why(), advice: "give --rank and --size" })
        };
        // The innermost launcher has a number, and no count.
        let mut uncounted: Option<(&str, u32)> = None;
        for launcher in LAUNCHERS {
            let Some(index) = get(launcher.number) else { continue };
            let told = match launcher.count {
                Count::Variable(name) => get(name).map(|told| number(name, &told)).transpose()?,
                Count::Step(name) => match get(name) {
                    Some(told) => Some(number(name, &told)?),
                    None => continue,
                },
                Count::PalsFile(name) => get(name).and_then(|path| count_of_pals(&header_of(&path).ok()?)),
                Count::Untold => None,
            };
            let index = number(launcher.number, &index)?;
            // If the outer launcher has started a daemon of the inner one, its count is that of daemons. Their numbers
            // may be equal even so.
            let proven = launcher.pmix.has_started(&get);
            match (size.or(told), uncounted) {
                (Some(_), Some((_, inner))) if inner != index || proven == Some(false) => break,
                (Some(_), Some(_)) if proven.is_none() => {}
                (Some(count), _) => {
                    let named = |wrong: Wrong| Wrong {
                        why: format!("{} says {}", launcher.number, wrong.why),
                        ..wrong
                    };
                    return Self::new(index, count).map(Some).map_err(named);
                }
                (None, _) => uncounted = uncounted.or(Some((launcher.number, index))),
            }
        }
        let wrong = |why, advice| Err(Wrong { why, advice });
        match (uncounted, get(PBS_TASK)) {
            (Some((name, _)), _) => wrong(
                format!("{name} says that a launcher has started this process, but not how many there are"),
                "give --size",
            ),
            (None, _) if size.is_some() => {
                wrong("no launcher numbers this process".to_owned(), "--size needs --rank")
            }
            (None, Some(task)) if task != "1" => wrong(
                format!(
                    "pbsdsh or pbs_tmrsh has started this process ({PBS_TASK} = {task}), and does not number it"
                ),
                "give --rank and --size; with one process on each host, PBS_NODENUM is its --rank",
            ),
            (None, _) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_size(variables: &[(&str, &str)], size: Option<u32>) -> Result<Option<ProcessNumber>, Wrong> {
        let get = |name: &str| variables.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned());
        ProcessNumber::from_environment(get, size)
    }

    fn process(variables: &[(&str, &str)]) -> Result<Option<ProcessNumber>, Wrong> {
        with_size(variables, None)
    }

    fn of(index: u32, count: u32) -> Result<Option<ProcessNumber>, Wrong> {
        Ok(Some(ProcessNumber { index, count }))
    }

    #[test]
    fn every_launcher_is_understood() {
        for Launcher { number, count, .. } in LAUNCHERS {
            if let Count::Variable(count) | Count::Step(count) = count {
                assert_eq!(process(&[(number, "3"), (count, "4")]), of(3, 4));
            }
            assert_eq!(with_size(&[(number, "3")], Some(4)).is_ok(), *number != "SLURM_PROCID");
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
        assert_eq!(process(&nested), of(5, 8));
    }

    /// A launcher has started a daemon of PRRTE, and `prun` this process by it.
    #[test]
    fn daemons_of_prun_do_not_count() {
        let daemons: [&[(&str, &str)]; 3] = [
            &[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "3")],
            &[("FLUX_TASK_RANK", "0"), ("FLUX_JOB_SIZE", "3"), ("FLUX_JOB_ID", "f2x")],
            &[("JSM_NAMESPACE_RANK", "0"), ("JSM_NAMESPACE_SIZE", "3")],
        ];
        for daemon in daemons {
            for index in [0, 5] {
                let number = index.to_string();
                let rank = ("PMIX_RANK", number.as_str());
                for namespace in [&[][..], &[("PMIX_NAMESPACE", "prterun-n1-17@1")]] {
                    let prun = [daemon, &[rank], namespace].concat();
                    let told = process(&prun);
                    assert!(told.as_ref().is_err_and(|wrong| wrong.advice == "give --size"), "{told:?}");
                    assert_eq!(with_size(&prun, Some(8)), of(index, 8));
                }
            }
        }
        // `srun --mpi=pmix` has started Flux's own processes, and Flux leaves this process their variables.
        let brokers = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "3"), ("PMIX_RANK", "0")];
        let within = [&brokers, daemons[1], &[("PMIX_NAMESPACE", "slurm.pmix.9.0")]].concat();
        assert!(process(&within).is_err());
    }

    #[test]
    fn a_launcher_that_has_pmix_too_counts() {
        for index in [0, 5] {
            let number = index.to_string();
            let rank = ("PMIX_RANK", number.as_str());
            let namespace = ("PMIX_NAMESPACE", "slurm.pmix.123.0");
            let srun = [("SLURM_PROCID", number.as_str()), ("SLURM_STEP_NUM_TASKS", "8")];
            assert_eq!(process(&[&srun[..], &[rank, namespace]].concat()), of(index, 8));
            let namespace = ("PMIX_NAMESPACE", "f2x");
            let flux = [("FLUX_TASK_RANK", number.as_str()), ("FLUX_JOB_SIZE", "8"), ("FLUX_JOB_ID", "f2x")];
            assert_eq!(process(&[&flux[..], &[rank, namespace]].concat()), of(index, 8));
            // With the variables of PALS too, which prove nothing.
            let pals = [("PALS_RANKID", number.as_str())];
            assert_eq!(process(&[&flux[..], &pals, &[rank, namespace]].concat()), of(index, 8));
        }
    }

    /// Else each process would take itself for the whole part, and make a world of its own.
    #[test]
    fn prun_numbers_processes_and_the_user_counts_them() {
        let prun = [("PMIX_RANK", "2")];
        assert_eq!(with_size(&prun, Some(3)), of(2, 3));
        assert!(process(&prun).is_err() && with_size(&prun, Some(2)).is_err());
        assert!(with_size(&[], Some(2)).is_err());
    }

    /// A file as Slurm's and Flux's `apinfo.c` write it: after the header two commands, the PEs, and a node.
    fn apinfo(pes: u32) -> Vec<u8> {
        let (header, command, pe, node) = (136_u64, 12, 12, 68);
        let (commands, nodes) = (2, 1);
        let pes_at = header + command * commands;
        let nodes_at = pes_at + pe * u64::from(pes);
        let total = nodes_at + node * nodes;
        let fields =
            [1, total, 80, header, 0, command, header, commands, pe, pes_at, pes.into(), node, nodes_at];
        let mut bytes: Vec<u8> =
            fields.into_iter().chain([nodes, 112, total, 0]).flat_map(u64::to_ne_bytes).collect();
        bytes.resize(usize::try_from(total).expect("short"), 0);
        bytes
    }

    #[test]
    fn pals_counts_in_a_file() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(&file, apinfo(4)).expect("written");
        let path = file.path().to_str().expect("a name");
        let pals =
            [("PALS_RANKID", "3"), ("PALS_LOCAL_RANKID", "1"), ("PALS_NODEID", "1"), ("PALS_APINFO", path)];
        assert_eq!(process(&pals), of(3, 4));
        // With `--pmi=pmix` nothing proves that PALS has started the process itself.
        let pmix = [&pals[..], &[("PMIX_RANK", "3")]].concat();
        assert!(process(&pmix).is_err_and(|wrong| wrong.advice == "give --size"));
        assert_eq!(with_size(&pmix, Some(4)), of(3, 4));
        for bad in [&apinfo(4)[..83], &[], &apinfo(0), &[0xff; 136]] {
            std::fs::write(&file, bad).expect("written");
            assert!(process(&pals).is_err_and(|wrong| wrong.why.contains("PALS_RANKID")));
            assert_eq!(with_size(&pals, Some(6)), of(3, 6));
        }
    }

    #[test]
    fn tasks_of_pbs_have_no_number_but_its_batch_script_needs_none() {
        let node = ("PBS_NODENUM", "1");
        assert_eq!(process(&[("PBS_TASKNUM", "1"), ("PBS_NODENUM", "0")]), Ok(None));
        for task in ["00000002", "20000001"] {
            let told = process(&[("PBS_TASKNUM", task), node]).expect_err("an error").to_string();
            assert!(told.contains("PBS_NODENUM is its --rank"), "{told}");
        }
        // Hydra passes the variables of the batch script on.
        assert_eq!(process(&[("PBS_TASKNUM", "00000002"), ("PMI_RANK", "1"), ("PMI_SIZE", "2")]), of(1, 2));
    }

    #[test]
    fn what_cannot_be_is_an_error() {
        assert!(process(&[("PMI_RANK", "4"), ("PMI_SIZE", "4")]).is_err());
        assert!(process(&[("PMI_RANK", "one"), ("PMI_SIZE", "4")]).is_err());
        assert!(process(&[("PMI_RANK", "1")]).is_err());
    }
}

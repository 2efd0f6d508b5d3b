//! Steps: the runs that sections plan.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use isthmus_units::{Percent, Rate, Span};

use crate::lab;
use crate::link::EmulatedLink;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// About ten minutes.
    Short,
    /// Hours.
    Full,
}

impl Form {
    /// Its name in samples.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Full => "full",
        }
    }
}

/// Paths of everything that takes part.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The isthmus command.
    pub isthmus: PathBuf,
    /// The folder of the provider.
    pub provider: PathBuf,
    /// The folder of an MPICH: `bin/mpiexec`, `bin/mpicc`.
    pub mpich: PathBuf,
    /// The folder of an Open MPI: `bin/mpirun`, `bin/mpicc`.
    pub open_mpi: PathBuf,
    /// The folder of the mover's libraries, with one folder for each MPI.
    pub movers: PathBuf,
    /// Folder for files that fit into memory.
    pub folder: PathBuf,
    /// Folder for samples, report and longer files.
    pub out: PathBuf,
}

#[cfg(test)]
impl Tools {
    /// Parts that are not there, for plans.
    pub(crate) fn nowhere() -> Self {
        let folder = PathBuf::from("/nonesuch");
        Self {
            isthmus: folder.clone(),
            provider: folder.clone(),
            mpich: folder.clone(),
            open_mpi: folder.clone(),
            movers: folder.clone(),
            folder: folder.clone(),
            out: folder,
        }
    }
}

/// Input of a section's plan.
pub(crate) struct Context<'a> {
    pub(crate) tools: &'a Tools,
    pub(crate) form: Form,
}

impl Context<'_> {
    pub(crate) fn is_full(&self) -> bool {
        self.form == Form::Full
    }

    /// Chooses between a value for the short form and one for the full form.
    pub(crate) fn of<T>(&self, short: T, full: T) -> T {
        if self.is_full() { full } else { short }
    }
}

/// A program that is compiled before the first step that needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// `transfer-mpich`, `transfer-openmpi`: `transfer.c` with the mover's library.
    Transfer(Mpi),
    /// `messages-mpich`, `messages-openmpi`: `messages.c`.
    Messages(Mpi),
    /// `program-mpich`: the program of `isthmus bench wan`.
    Wan,
    /// `collectives-mpich`: the program of `isthmus bench collectives`.
    Collectives,
}

/// An MPI that programs are built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mpi {
    Mpich,
    OpenMpi,
}

impl Mpi {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mpich => "mpich",
            Self::OpenMpi => "openmpi",
        }
    }

    pub(crate) fn folder(self, tools: &Tools) -> PathBuf {
        match self {
            Self::Mpich => tools.mpich.clone(),
            Self::OpenMpi => tools.open_mpi.clone(),
        }
    }
}

/// One run in its own lab. In `script` and `lab`, `@WORK@` is the folder of programs, `@SOURCE@` the file to copy,
/// and `@COPY@` its copy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Step {
    /// Names and values that tell the measurement. They become rows and columns of the report.
    pub(crate) facts: BTreeMap<String, String>,
    /// Name of the contender.
    pub(crate) contender: String,
    pub(crate) link: Option<EmulatedLink>,
    /// The lab's configuration. `None`: runs on this host.
    pub(crate) lab: Option<String>,
    pub(crate) script: String,
    /// Shortest possible time of all that it sends. Seconds.
    pub(crate) floor_s: f64,
    /// Time limit of the lab. Seconds.
    pub(crate) limit_s: f64,
    /// Time limit of the program itself from its `BEGAN` line on, if it has one. Seconds.
    pub(crate) within_s: Option<f64>,
    /// Length of the file to copy. Bytes.
    pub(crate) file: Option<u64>,
    pub(crate) programs: Vec<Program>,
    /// Why it cannot be run here, with the remedy.
    pub(crate) missing: Option<String>,
    /// Names and contents of further files in `@WORK@`.
    pub(crate) files: Vec<(String, String)>,
}

impl Step {
    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.facts.insert(name.to_owned(), value.to_string());
        self
    }

    /// About how long it takes, with its lab's start and end. Seconds.
    pub(crate) fn expected_s(&self) -> f64 {
        if self.missing.is_some() { 0.0 } else { self.floor_s * SLACK + START_S }
    }

    /// Text for people.
    pub(crate) fn title(&self) -> String {
        let facts: Vec<_> = self.facts.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let link = self.link.map_or(String::new(), |link| format!(", {} {}", link.rate, link.title()));
        format!("{}: {}{link}", self.contender, facts.join(", "))
    }
}

/// Estimated time of a run: a multiple of its floor, and seconds for start and end of lab and programs.
const SLACK: f64 = 1.3;
const START_S: f64 = 2.5;

/// A link of MTU 9000.
pub(crate) fn link(rate: Rate, rtt_us: u64, loss: f64) -> EmulatedLink {
    EmulatedLink { rate, rtt: Span(rtt_us * 1_000), loss: Percent(loss), mtu: 9_000, name: None }
}

/// Configuration of a lab with sites a and b and this link between them.
pub(crate) fn lab_of(link: EmulatedLink, congestion: Option<&str>) -> Option<String> {
    Some(lab::config(&[(link, None)], 1, congestion))
}

/// Start of a script. `isthmus bench serve` runs at site b. Then `$to` is its address, and `$bench` starts a
/// measurement at site a.
pub(crate) fn served() -> String {
    let at = |site: &str| format!("lab-rsh {site} env ISTHMUS_CONFIG=@WORK@/wan.toml @ISTHMUS@ bench");
    format!(
        "rm -f where; printf '[device]\\ninterface = \"wan0\"\\n' > wan.toml\n{} serve > where 2> serve.log &\nn=0\n\
         until [ -s where ]; do n=$((n + 1)); [ $n -lt 100 ] || {{ tail -n 1 serve.log >&2; exit 3; }}; sleep 0.1; done\n\
         to=$(cat where); bench='{}'\n",
        at("b"),
        at("a")
    )
}

/// Command line of an MPI job with this number of ranks at each of the sites a and b.
pub(crate) fn job(tools: &Tools, over: Over, ranks: u32, program: &str) -> String {
    match over {
        Over::OpenMpi => open_mpi(tools, ranks, program),
        _ => mpich(tools, over, &["a", "b"], ranks, program),
    }
}

/// Software that carries an MPI job's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// MPICH over Isthmus.
    Isthmus,
    /// The same with the setting `transfer`.
    Transfer(&'static str),
    /// MPICH over libfabric's `tcp;ofi_rxm`.
    Stock,
    /// Open MPI's TCP BTL.
    OpenMpi,
}

impl Over {
    pub(crate) fn mpi(self) -> Mpi {
        if self == Self::OpenMpi { Mpi::OpenMpi } else { Mpi::Mpich }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Isthmus => "Isthmus",
            Self::Transfer(how) => how,
            Self::Stock => "stock tcp",
            Self::OpenMpi => "Open MPI tcp BTL",
        }
    }

    /// What this machine lacks for it, with the remedy.
    pub(crate) fn missing(self, tools: &Tools) -> Option<String> {
        let folder = self.mpi().folder(tools);
        let (launcher, option) = match self.mpi() {
            Mpi::Mpich => ("bin/mpiexec", "--mpi"),
            Mpi::OpenMpi => ("bin/mpirun", "--open-mpi"),
        };
        [launcher, "bin/mpicc"].into_iter().map(|tool| folder.join(tool)).find(|path| !path.is_file()).map(
            |path| {
                let name = self.mpi().name();
                format!("no {}: tools/bootstrap.sh {name}, or name its folder with {option}", path.display())
            },
        )
    }

    /// Why there is no mover's library for its MPI, with the remedy.
    pub(crate) fn no_mover(self, tools: &Tools) -> Option<String> {
        let name = self.mpi().name();
        let mover = tools.movers.join(name).join("libisthmus-mpi.so");
        (!mover.is_file())
            .then(|| format!("no {}: make mpi NAME={name} MPICC=build/mpi/{name}/bin/mpicc", mover.display()))
    }
}

pub(crate) fn quoted(path: &std::path::Path) -> String {
    lab::quoted(&path.display().to_string())
}

/// Command line of a job of MPICH with this number of ranks at each of these sites.
pub(crate) fn mpich(tools: &Tools, over: Over, sites: &[&str], ranks: u32, program: &str) -> String {
    let mut line = format!(
        "{} -launcher rsh -launcher-exec \"$ISTHMUS_LAB_RSH\" -hosts {} -iface mgmt0 -ppn {ranks} -n {}",
        quoted(&tools.mpich.join("bin/mpiexec")),
        sites.join(","),
        sites.len() as u32 * ranks
    );
    let mut set = |name: &str, value: &str| {
        let _ = write!(line, " -genv {name} {value}");
    };
    set("MPIR_CVAR_CH4_NETMOD", "ofi");
    set("MPIR_CVAR_NOLOCAL", "1");
    if over == Over::Stock {
        set("FI_PROVIDER", "'tcp;ofi_rxm'");
        set("FI_TCP_IFACE", "wan0");
    } else {
        set("FI_PROVIDER", "isthmus");
        set("FI_PROVIDER_PATH", &quoted(&tools.provider));
        set("FI_ISTHMUS_INTERFACE", "wan0");
        // At this level the provider logs its choices.
        set("FI_LOG_LEVEL", "info");
        set("FI_LOG_PROV", "isthmus");
        if let Over::Transfer(how) = over {
            set("FI_ISTHMUS_TRANSFER", how);
        }
    }
    format!("{line} {program}")
}

fn open_mpi(tools: &Tools, ranks: u32, program: &str) -> String {
    format!(
        "lab-rsh a {} --allow-run-as-root --bind-to none -np {} --host a:{ranks},b:{ranks} --map-by ppr:{ranks}:node \
         --prtemca plm_ssh_agent \"$ISTHMUS_LAB_RSH\" --prtemca prte_if_include mgmt0 --mca pml ob1 \
         --mca btl self,tcp --mca btl_tcp_if_include wan0 --mca coll ^sm,han --mca mpi_yield_when_idle 1 {program}",
        quoted(&tools.open_mpi.join("bin/mpirun")),
        2 * ranks
    )
}

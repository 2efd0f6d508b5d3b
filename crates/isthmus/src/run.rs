//! `isthmus run`: starts the ranks of several jobs as one world.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use isthmus_launch::{At, OnLoss, Options, ProcessNumber, RunError, become_rank};
use isthmus_units::Span;

use crate::env::{Mpi, variables};
use crate::install::{self, LIBRARY};

/// Start the ranks of one part of an MPI job whose parts are at several sites
///
/// Each site starts its part: srun -n 64 isthmus run --job climate --part 1/2 --at WHERE -- ./model. The parts form one
/// MPI_COMM_WORLD, with the ranks of part 1 first. For MPICH and Intel MPI, and with --pmix for Open MPI 5. See
/// docs/run.md.
///
/// Exit status: that of the first rank that failed, or 128 plus the number of the signal that killed it, as of mpiexec;
/// 1 a part does not come or is lost; 2 the command or the settings are wrong; 3 the system refuses something.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Name of the job, the same at all parts
    #[arg(long, value_name = "NAME")]
    job: String,
    /// Which part this is, and how many there are, such as 1/2
    #[arg(long, value_name = "I/N")]
    part: Part,
    /// Where parts find each other: file:PATH, router:isthmus://AS.SUBNET/IP:PORT[/NAME], HOST:PORT of the first
    /// process of part 1 (with --secret), or the isthmus:// address that part 1 prints if it has no --at
    #[arg(long, value_name = "WHERE", env = "ISTHMUS_RUN_AT", hide_env_values = true)]
    at: Option<At>,
    /// With --at HOST:PORT: file with a secret, the same at all parts
    #[arg(long, value_name = "FILE", env = "ISTHMUS_RUN_SECRET")]
    secret: Option<PathBuf>,
    /// Start this many ranks from this process [default: 1]
    #[arg(short = 'n', long = "ranks", value_name = "COUNT", default_value_t = 1, hide_default_value = true)]
    ranks: u32,
    /// Which process of the part this is, from 0 [default: as the launcher says by Slurm's, PMI's, PMIx's, PALS's,
    /// Flux's, jsrun's, MVAPICH's or Open MPI's variables, else 0]
    #[arg(long, value_name = "INDEX", requires = "size")]
    rank: Option<u32>,
    /// How many processes of isthmus run the part has; prun does not say it [default: as the launcher says, else 1]
    #[arg(long, value_name = "COUNT")]
    size: Option<u32>,
    /// Wait this long for other parts
    #[arg(long, value_name = "TIME", default_value = "10min")]
    wait: Span,
    /// What the job does if it loses a rank, a process of isthmus run or a part: end, or continue with the others
    /// (docs/run.md). The same at all parts [default: end]
    #[arg(long, value_name = "WHAT", default_value = "end", hide_default_value = true)]
    on_loss: OnLoss,
    /// Begin each line of the ranks' output with rank and part
    #[arg(long)]
    label: bool,
    /// Print the output of this process's ranks at the first process of part 1, in whole lines
    #[arg(long)]
    gather: bool,
    /// Write the output of each rank to rank-R.out and rank-R.err in this folder, which is created if it is missing
    #[arg(long, value_name = "DIR", conflicts_with_all = ["label", "gather"])]
    output: Option<PathBuf>,
    /// Serve PMIx, for programs of Open MPI 5, by this host's libpmix (docs/run.md). The same at all parts
    #[arg(long)]
    pmix: bool,
    /// Use libisthmus-fi.so from this folder [default: the one installed with this program]
    #[arg(long, value_name = "DIR")]
    provider_path: Option<PathBuf>,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The argument `I/N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    part: u32,
    parts: u32,
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers =
            text.split_once('/').and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
        match numbers {
            Some((part, parts)) if (1..=parts).contains(&part) => Ok(Self { part, parts }),
            _ => Err("expected I/N, such as 1/2 for the first of two parts".to_owned()),
        }
    }
}

/// The part of `isthmus run` that becomes a rank: see [`become_rank`].
#[derive(clap::Args)]
pub(crate) struct RankArgs {
    #[arg(long)]
    parent: u32,
    #[arg(required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

/// Name of the subcommand with [`RankArgs`].
const BECOME: &str = "run-rank";

/// The PMIx server of `isthmus run`: see [`isthmus_pmix`].
#[derive(clap::Args)]
pub(crate) struct PmixArgs {
    size: u32,
    first: u32,
    count: u32,
    folder: PathBuf,
}

/// Name of the subcommand with [`PmixArgs`].
const SERVE_PMIX: &str = "run-pmix";

pub(crate) fn main(args: Args) -> ExitCode {
    match options(args)
        .and_then(|options| isthmus_launch::run(&options, &mut |text| errln!("isthmus run: {text}")))
    {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            errln!("isthmus run: {error}");
            ExitCode::from(if matches!(error, RunError::Usage(_)) { 2 } else { 3 })
        }
    }
}

pub(crate) fn main_of_rank(args: &RankArgs) -> ExitCode {
    let (status, why) = become_rank(args.parent, &args.program);
    errln!("isthmus run: {why}");
    ExitCode::from(status)
}

pub(crate) fn main_of_pmix(args: PmixArgs) -> ExitCode {
    let PmixArgs { size, first, count, folder } = args;
    let space = env::var(isthmus_launch::PMIX_SPACE).unwrap_or_default();
    isthmus_pmix::serve(&isthmus_pmix::World { space, size, first, count, folder })
}

fn options(args: Args) -> Result<Options, RunError> {
    let usage = |error: &dyn std::fmt::Display| RunError::Usage(error.to_string());
    let process = match (args.rank, args.size) {
        (Some(rank), Some(size)) => ProcessNumber::new(rank, size).map(Some),
        (_, size) => ProcessNumber::from_environment(|name| env::var(name).ok(), size),
    };
    let process = process.map_err(|error| usage(&error))?.unwrap_or(ProcessNumber { index: 0, count: 1 });
    let own = env::current_exe().map_err(|error| RunError::System(error.to_string()))?;
    let starter = ["--parent", &std::process::id().to_string(), "--"].map(OsString::from);
    Ok(Options {
        job: args.job,
        part: args.part.part,
        parts: args.part.parts,
        process,
        ranks: args.ranks,
        at: args.at,
        secret: args.secret,
        wait: args.wait.to_duration(),
        on_loss: args.on_loss,
        label: args.label,
        gather: args.gather,
        print: crate::output::of_rank,
        output: args.output,
        pmix: args.pmix.then(|| vec![own.clone().into(), SERVE_PMIX.into()]),
        program: args.program,
        starter: [own.into(), OsString::from(BECOME)].into_iter().chain(starter).collect(),
        variables: rank_variables(args.provider_path, args.on_loss, args.pmix, |name| env::var_os(name))?,
    })
}

/// The variables of the ranks: those that make their MPI use the provider, and survive losses. Where `set` has one, it
/// stays, unless it only has the value of `isthmus env` and surviving needs another.
fn rank_variables(
    folder: Option<PathBuf>,
    on_loss: OnLoss,
    pmix: bool,
    set: impl Fn(&str) -> Option<OsString>,
) -> Result<Vec<(String, String)>, RunError> {
    let own = || set("FI_PROVIDER_PATH").map(PathBuf::from);
    let folder = folder.or_else(install::provider_folder).or_else(own).ok_or_else(|| {
        RunError::Usage(format!("{LIBRARY} is not beside this program; give its folder with --provider-path"))
    })?;
    let folder = folder.display().to_string();
    // Each MPI ignores the variables of the others.
    let mpis: &[Mpi] = if pmix { &[Mpi::Openmpi] } else { &[Mpi::Mpich, Mpi::Intel] };
    let usual: BTreeMap<&str, String> = mpis.iter().flat_map(|mpi| variables(*mpi, &folder, false)).collect();
    let surviving = match (on_loss, pmix) {
        (OnLoss::End, _) => &[],
        (OnLoss::Continue, true) => SURVIVING_OPENMPI,
        (OnLoss::Continue, false) => SURVIVING_MPICH,
    };
    let mut wanted = usual.clone();
    wanted.extend(surviving.iter().map(|(name, value)| (*name, (*value).to_owned())));
    wanted.retain(|name, _| match (set(name), usual.get(name)) {
        (None, _) => true,
        (Some(value), Some(usual)) => value.to_str() == Some(usual),
        (Some(_), None) => false,
    });
    Ok(wanted.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// What MPICH needs to survive the loss of ranks. Else it ends a rank that waits for a lost one, whatever its error
/// handler.
const SURVIVING_MPICH: &[(&str, &str)] = &[("FI_ISTHMUS_LOST_PEER", "truncate")];

/// What Open MPI needs to survive the loss of ranks.
const SURVIVING_OPENMPI: &[(&str, &str)] = &[
    ("OMPI_MCA_mpi_ft_enable", "1"),
    // "cm" and "mtl" do not survive.
    ("OMPI_MCA_pml", "ob1"),
    ("OMPI_MCA_mtl", "^ofi"),
    ("OMPI_MCA_btl", "self,ofi"),
    // Messages only: btl "ofi" ends the rank when a remote access fails.
    ("OMPI_MCA_btl_ofi_mode", "1"),
    // "han" ignores errors, and returns wrong results. The others are untested by Open MPI or do not survive.
    ("OMPI_MCA_coll", "^han,sm,hcoll,portals4"),
    // Open MPI hears of a loss by PMIx, and cancels its operations. "ob1" may loop for ever if one of them ends later.
    ("FI_ISTHMUS_LOST_PEER", "silent"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_count_from_one() {
        assert_eq!("2/3".parse(), Ok(Part { part: 2, parts: 3 }));
        for wrong in ["0/2", "3/2", "1", "1/", "a/b"] {
            assert!(wrong.parse::<Part>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn part_1_is_not_to_find_itself() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            args: Args,
        }
        let words = "run --job j --part 1/2 --at isthmus://0.0/127.0.0.1:1 --provider-path /lib --rank 0 --size 1 true";
        let cli = <Cli as clap::Parser>::try_parse_from(words.split(' ')).expect("arguments");
        let ended = isthmus_launch::run(&options(cli.args).expect("options"), &mut |_| {});
        assert!(matches!(ended, Err(RunError::Usage(why)) if why.contains("prints its own")));
    }

    #[test]
    fn ranks_are_told_of_the_provider() {
        for (on_loss, pmix, wanted) in [
            (OnLoss::End, false, ("FI_PROVIDER", "isthmus")),
            (OnLoss::End, false, ("I_MPI_OFI_PROVIDER", "isthmus")),
            (OnLoss::End, true, ("OMPI_MCA_pml", "cm")),
            (OnLoss::Continue, true, ("OMPI_MCA_pml", "ob1")),
        ] {
            let all = rank_variables(Some("/lib".into()), on_loss, pmix, |_| None).expect("a folder");
            assert!(all.contains(&(wanted.0.to_owned(), wanted.1.to_owned())));
        }
    }

    #[test]
    fn what_the_user_set_stays_but_not_what_env_set() {
        for (value, expected) in [("cm", Some("ob1")), ("ob1", None), ("ucx", None)] {
            let set = |name: &str| (name == "OMPI_MCA_pml").then(|| value.into());
            let all = rank_variables(Some("/lib".into()), OnLoss::Continue, true, set).expect("a folder");
            let pml = all.iter().find(|(name, _)| name == "OMPI_MCA_pml").map(|(_, value)| value.as_str());
            assert_eq!(pml, expected, "where {value} was set");
        }
    }
}

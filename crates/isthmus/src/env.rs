//! `isthmus env`: prints the environment variables that make an MPI use the provider.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;

use crate::install::{self, LIBRARY};

/// Print the environment that makes an MPI use isthmus
///
/// The output is for the shell: eval "$(isthmus env --mpi mpich)"; with --shell csh
/// eval "`isthmus env ...`", with --shell fish isthmus env ... | source. Within one host MPICH and Intel MPI use shared memory of their own, so isthmus
/// carries nothing there; with --no-shared-memory it carries everything, and can be seen at work. Exit status 1 when
/// there is no provider, 3 when the output cannot be written.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the environment for this MPI
    #[arg(long)]
    mpi: Mpi,
    /// Use libisthmus-fi.so from this folder [default: the one installed with this program]
    #[arg(long, value_name = "DIR")]
    provider_path: Option<PathBuf>,
    /// Also turn shared memory off, so that the provider carries messages inside a host too
    #[arg(long)]
    no_shared_memory: bool,
    /// Also load the library whose collectives cross each wide link once (docs/collectives.md)
    #[arg(long)]
    collectives: bool,
    /// Print commands of this shell
    #[arg(long, value_name = "SHELL", default_value = "sh")]
    shell: Shell,
    /// Print one JSON object
    #[arg(long, conflicts_with = "shell")]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mpi {
    /// MPICH 4 and 5
    Mpich,
    /// Open MPI 4.1 and 5
    Openmpi,
    /// Intel MPI 2021
    #[value(alias("impi"), alias("impi-rt"))]
    Intel,
}

impl Mpi {
    /// The name of its folder of compiled libraries.
    fn name(self) -> &'static str {
        match self {
            Self::Mpich => "mpich",
            Self::Openmpi => "openmpi",
            Self::Intel => "intel",
        }
    }

    /// Whether the MPI has shared memory of its own. Open MPI's pml cm leaves everything to the provider.
    fn has_own_shared_memory(self) -> bool {
        self != Self::Openmpi
    }
}

/// A shell, by how it sets variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shell {
    /// sh, bash, zsh, ksh, dash
    #[value(alias("bash"), alias("zsh"), alias("ksh"), alias("dash"))]
    Sh,
    /// csh, tcsh
    #[value(alias("tcsh"))]
    Csh,
    /// fish
    Fish,
}

impl Shell {
    fn set(self, name: &str, value: &str) -> String {
        match self {
            Self::Sh => format!("export {name}={}", quoted(value)),
            // One line: backquotes turn line ends into spaces.
            Self::Csh => format!("setenv {name} {};", quoted_for_csh(value)),
            Self::Fish => format!("set -gx {name} {};", quoted_for_fish(value)),
        }
    }
}

/// The library that `make collectives` builds, in `collectives/MPI` below the provider's folder.
const COLLECTIVES: &str = "libisthmus-collectives.so";

/// A note for people if the provider would carry nothing within a host.
const OWN_SHARED_MEMORY: &str = "isthmus env: on one host MPI's own shared memory carries everything; to see isthmus at \
    work there, add --no-shared-memory";

pub(crate) fn main(args: Args) -> ExitCode {
    let Some(folder) = args.provider_path.or_else(install::provider_folder) else {
        errln!("isthmus env: {LIBRARY} is not beside this program; give its folder with --provider-path");
        return ExitCode::FAILURE;
    };
    let mut variables = variables(args.mpi, &folder.display().to_string(), args.no_shared_memory);
    if args.collectives {
        let library = folder.join("collectives").join(args.mpi.name()).join(COLLECTIVES);
        if !library.is_file() {
            let name = args.mpi.name();
            errln!(
                "isthmus env: {} is missing; build it: make collectives NAME={name} MPICC=mpicc",
                library.display()
            );
            return ExitCode::FAILURE;
        }
        variables.push(("LD_PRELOAD", library.display().to_string()));
    }
    if args.json {
        let object: serde_json::Map<_, _> =
            variables.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        outln!("{}", serde_json::Value::from(object));
    } else {
        for (name, value) in variables {
            outln!("{}", args.shell.set(name, &value));
        }
        // Standard output belongs to the shell. Programs that capture standard error do not need the note.
        if args.mpi.has_own_shared_memory() && !args.no_shared_memory && std::io::stderr().is_terminal() {
            errln!("{OWN_SHARED_MEMORY}");
        }
    }
    ExitCode::SUCCESS
}

pub(crate) fn variables(mpi: Mpi, folder: &str, no_shared_memory: bool) -> Vec<(&'static str, String)> {
    let mut out = vec![("FI_PROVIDER_PATH", folder.to_owned())];
    let mut set = |name, value: &str| out.push((name, value.to_owned()));
    match mpi {
        Mpi::Mpich => {
            set("FI_PROVIDER", "isthmus");
            set("MPIR_CVAR_CH4_NETMOD", "ofi");
            if no_shared_memory {
                set("MPIR_CVAR_NOLOCAL", "1");
            }
        }
        Mpi::Openmpi => {
            // pml cm sends every message to the provider, also within a host.
            set("OMPI_MCA_pml", "cm");
            set("OMPI_MCA_mtl", "ofi");
            set("OMPI_MCA_mtl_ofi_provider_include", "isthmus");
            set("OMPI_MCA_btl_ofi_provider_include", "isthmus");
            set("OMPI_MCA_osc", "^ucx");
        }
        Mpi::Intel => {
            set("FI_PROVIDER", "isthmus");
            set("I_MPI_OFI_PROVIDER", "isthmus");
            set("I_MPI_OFI_LIBRARY_INTERNAL", "1");
            set("I_MPI_FABRICS", if no_shared_memory { "ofi" } else { "shm:ofi" });
        }
    }
    out
}

fn is_plain(value: &str) -> bool {
    value.chars().all(|c| c.is_ascii_alphanumeric() || "/._-:,^+".contains(c))
}

/// Quotes for csh, which interprets "!" even between quotes.
fn quoted_for_csh(value: &str) -> String {
    if is_plain(value) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', r"'\''").replace('!', r"\!"))
}

/// Quotes for fish, which interprets backslashes between quotes.
fn quoted_for_fish(value: &str) -> String {
    if is_plain(value) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\\', r"\\").replace('\'', r"\'"))
}

/// Quotes for POSIX shells.
fn quoted(value: &str) -> String {
    if is_plain(value) { value.to_owned() } else { format!("'{}'", value.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_safe_in_a_shell() {
        assert_eq!(quoted("/opt/isthmus/lib"), "/opt/isthmus/lib");
        assert_eq!(quoted("/my dir/it's"), r"'/my dir/it'\''s'");
    }

    #[test]
    fn every_shell_has_its_words() {
        assert_eq!(Shell::Sh.set("A", "/it's"), r"export A='/it'\''s'");
        assert_eq!(Shell::Csh.set("A", "/it's!"), r"setenv A '/it'\''s\!';");
        assert_eq!(Shell::Fish.set("A", r"/it's\"), r"set -gx A '/it\'s\\';");
        assert_eq!(Shell::Fish.set("A", "/lib"), "set -gx A /lib;");
    }

    #[test]
    fn intel_mpi_goes_by_the_name_of_its_package_too() {
        for name in ["intel", "impi", "impi-rt"] {
            assert_eq!(Mpi::from_str(name, false), Ok(Mpi::Intel), "{name}");
        }
    }

    #[test]
    fn every_mpi_is_told_where_the_provider_is() {
        for mpi in [Mpi::Mpich, Mpi::Openmpi, Mpi::Intel] {
            let all = variables(mpi, "/lib", true);
            assert!(all.contains(&("FI_PROVIDER_PATH", "/lib".to_owned())), "{mpi:?}");
            assert!(all.iter().any(|(_, value)| value.contains("isthmus")), "{mpi:?}");
        }
    }
}

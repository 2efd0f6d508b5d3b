//! `isthmus env`: what to set so that an MPI uses the provider.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;

use crate::install::{self, LIBRARY};

/// Print the environment that makes an MPI use isthmus
///
/// The output is for the shell: eval "$(isthmus env --mpi mpich)". Exit status 1 when there is no
/// provider, 3 when the output cannot be written.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which MPI
    #[arg(long)]
    mpi: Mpi,
    /// Folder that holds libisthmus-fi.so [default: found beside this program]
    #[arg(long, value_name = "DIR")]
    provider_path: Option<PathBuf>,
    /// Also turn shared memory off, so that the provider carries messages inside a host too
    #[arg(long)]
    no_shared_memory: bool,
    /// Print one JSON object instead
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mpi {
    /// MPICH 4 and 5
    Mpich,
    /// Open MPI 4.1 and 5
    Openmpi,
    /// Intel MPI 2021
    Intel,
}

pub(crate) fn main(args: Args) -> ExitCode {
    let Some(folder) = args.provider_path.or_else(install::provider_folder) else {
        errln!("isthmus env: {LIBRARY} is not beside this program; give its folder with --provider-path");
        return ExitCode::FAILURE;
    };
    let variables = variables(args.mpi, &folder.display().to_string(), args.no_shared_memory);
    if args.json {
        let object: serde_json::Map<_, _> =
            variables.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        outln!("{}", serde_json::Value::from(object));
    } else {
        for (name, value) in variables {
            outln!("export {name}={}", quoted(&value));
        }
    }
    ExitCode::SUCCESS
}

fn variables(mpi: Mpi, folder: &str, no_shared_memory: bool) -> Vec<(&'static str, String)> {
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
            // pml cm takes every message to the provider, those inside a host too.
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

/// For a POSIX shell.
fn quoted(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:,^+".contains(c);
    if value.chars().all(plain) { value.to_owned() } else { format!("'{}'", value.replace('\'', r"'\''")) }
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
    fn every_mpi_is_told_where_the_provider_is() {
        for mpi in [Mpi::Mpich, Mpi::Openmpi, Mpi::Intel] {
            let all = variables(mpi, "/lib", true);
            assert!(all.contains(&("FI_PROVIDER_PATH", "/lib".to_owned())), "{mpi:?}");
            assert!(all.iter().any(|(_, value)| value.contains("isthmus")), "{mpi:?}");
        }
    }
}

"""How each MPI compiles a program and launches one over a transport."""

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build"
PROVIDER = BUILD / "lib" / "libisthmus-fi.so"
# The executable can be another one, while a lab is being developed, say.
ISTHMUS = Path(os.environ.get("ISTHMUS_EXE", BUILD / "bin" / "isthmus"))
C_FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror"]

# isthmus: our provider. tcp and rxm: libfabric's own, as the control (shm too, where ranks share a host).
TRANSPORTS = ("isthmus", "tcp", "rxm")
LIBFABRIC_NAME = {"isthmus": "isthmus", "tcp": "tcp", "rxm": "tcp;ofi_rxm", "shm": "shm"}
# Variables of the lab and of these tests; the others named ISTHMUS_... are the
# provider's settings, and every rank gets them.
NOT_SETTINGS = ("ISTHMUS_LAB", "ISTHMUS_TEST", "ISTHMUS_DEMO", "ISTHMUS_EXE")


@dataclass(frozen=True)
class Place:
    """Where ranks run: on this host, or on the named sites of a lab."""

    name: str
    hosts: tuple = ()
    settings: dict = field(default_factory=dict, compare=False)  # of Isthmus, that ranks there need

    @property
    def many(self):
        return len(self.hosts) > 1

    def enter(self):
        """What precedes a launcher so that it runs on the first host."""
        return [str(ISTHMUS), "lab", "exec", self.hosts[0], "--"] if self.hosts else []


HOST = Place("host")


def provider_env(transport, place, name):
    """The environment of every rank that makes libfabric take the transport, the provider of that name."""
    env = {}
    if transport == "isthmus":
        env["FI_PROVIDER_PATH"] = str(PROVIDER.parent)
        for key, value in os.environ.items():
            if key.startswith("ISTHMUS_") and not key.startswith(NOT_SETTINGS):
                env[key] = value
        env.update(place.settings)
    else:
        env["FI_PROVIDER"] = name
        if place.hosts:
            env["FI_TCP_IFACE"] = "wan0"
    for key in ("FI_LOG_LEVEL", "FI_LOG_PROV"):
        if key in os.environ:
            env[key] = os.environ[key]
    return env


@dataclass
class Mpi:
    """One MPI: its folder, and its way to name hosts and pass environment."""

    name: str
    title: str
    couples: bool  # connects two separately started jobs without a daemon
    verbose: dict  # the environment that makes it name the provider it took
    named: str  # how it then names it: a regular expression before the name

    @property
    def folder(self):
        return BUILD / "mpi" / self.name

    @property
    def programs(self):
        return BUILD / "tests" / self.name

    def missing(self):
        """Why this MPI cannot run here, or None."""
        if not Path(self.launcher()).exists():
            return f"{self.title} is not installed: tools/bootstrap.sh {self.name}"
        return None

    def libfabric_name(self, transport):
        """What the libfabric of this MPI calls the transport's provider."""
        return LIBFABRIC_NAME[transport]

    def launcher(self):
        return str(self.folder / "bin" / "mpiexec")

    def python(self):
        return str(self.folder / "bin" / "python")

    def mpicc(self):
        return [str(self.folder / "bin" / "mpicc")]

    def compile_command(self, source, output, *more):
        return [*self.mpicc(), *C_FLAGS, "-o", str(output), str(source), *more]

    def compile_env(self):
        return {}

    def launch_env(self):
        return {}

    def command(self, ranks, program, transport, place=HOST, env=None):
        """The command line and environment of one job."""
        raise NotImplementedError


class Hydra(Mpi):
    """What MPICH and Intel MPI share: hydra's command line."""

    def command(self, ranks, program, transport, place=HOST, env=None):
        chosen = provider_env(transport, place, self.libfabric_name(transport))
        rank_env = {**self.rank_env(transport, place), **chosen, **(env or {})}
        words = [*place.enter(), self.launcher()]
        if place.many:
            words += ["-launcher", "rsh", "-launcher-exec", str(rsh_script())]
            words += ["-hosts", ",".join(place.hosts), "-iface", "mgmt0", "-ppn", str(-(-ranks // len(place.hosts)))]
        words += ["-n", str(ranks)]
        for key, value in sorted(rank_env.items()):
            words += ["-genv", key, value]
        return words + list(program), self.launch_env()


class Mpich(Hydra):
    def rank_env(self, transport, place):
        env = {
            "MPIR_CVAR_CH4_NETMOD": "ofi",
            # Shared memory off: the provider carries everything. Namespaces of
            # one machine look like one host, so this holds for sites too.
            "MPIR_CVAR_NOLOCAL": "1",
            # A connect to nobody ends after this, not after three minutes.
            "MPIR_CVAR_CH4_COMM_CONNECT_TIMEOUT": "20",
        }
        if transport == "isthmus":
            env["FI_PROVIDER"] = "isthmus"
        return env


class StandardAbi(Mpich):
    """Programs compiled by the standard ABI (MPI 5.0, chapter 20), on the MPICH that is here."""

    @property
    def folder(self):
        return BUILD / "mpi" / "mpich"

    def mpicc(self):
        return [str(self.folder / "bin" / "mpicc_abi")]


class Intel(Hydra):
    def libfabric_name(self, transport):
        # Intel's own libfabric takes no provider by the name tcp;ofi_rxm: its tcp is that.
        return "tcp" if transport == "rxm" else super().libfabric_name(transport)

    def compile_env(self):
        return {"I_MPI_ROOT": str(self.folder)}

    def mpicc(self):
        return [str(self.folder / "bin" / "mpicc"), "-cc=gcc"]

    def launch_env(self):
        return {"I_MPI_ROOT": str(self.folder)}

    def rank_env(self, transport, place):
        return {
            "I_MPI_ROOT": str(self.folder),
            "I_MPI_FABRICS": "ofi",
            "I_MPI_OFI_PROVIDER": self.libfabric_name(transport),
            "I_MPI_PIN": "0",
            "I_MPI_WAIT_MODE": "0",
            "MPIR_CVAR_CH4_COMM_CONNECT_TIMEOUT": "20",
        }


class OpenMpi(Mpi):
    """Open MPI 5: PRRTE starts the ranks."""

    rsh_parameter = ("--prtemca", "plm_ssh_agent")
    interface_parameter = ("--prtemca", "prte_if_include")
    overload = ("--map-by", ":oversubscribe")

    def launcher(self):
        return str(self.folder / "bin" / "mpirun")

    def one_sided(self, transport):
        # Without btl/ofi, one-sided traffic would go past the provider.
        return ["--mca", "osc", "^ucx,sm", "--mca", "btl", "self,ofi" if transport == "isthmus" else "self,tcp"]

    def command(self, ranks, program, transport, place=HOST, env=None):
        words = [*place.enter(), self.launcher(), "--allow-run-as-root", "--bind-to", "none", "-np", str(ranks)]
        if place.many:
            slots = -(-ranks // len(place.hosts))
            words += ["--host", ",".join(f"{host}:{slots}" for host in place.hosts), "--map-by", f"ppr:{slots}:node"]
            words += [*self.rsh_parameter, str(rsh_script()), *self.interface_parameter, "mgmt0"]
        else:
            # Slots, and leave to overload cores, for the processes that a test spawns.
            words += ["--host", f"localhost:{ranks * 4}", *self.overload]
        words += ["--mca", "pml", "cm", "--mca", "mtl", "ofi"]
        words += ["--mca", "mtl_ofi_provider_include", self.libfabric_name(transport)]
        words += ["--mca", "coll", "^sm,han", "--mca", "mpi_yield_when_idle", "1"]
        words += self.one_sided(transport)
        rank_env = {**provider_env(transport, place, self.libfabric_name(transport)), **(env or {})}
        # For ranks only: launchers and remote shells need not load it, too.
        preloaded = rank_env.pop("LD_PRELOAD", None)
        words += ["-x", f"LD_PRELOAD={preloaded}"] if preloaded else []
        for key in sorted(rank_env):
            words += ["-x", key]
        return words + list(program), rank_env


class DebianOpenMpi(OpenMpi):
    """Open MPI 4.1 as Debian packages it: ORTE starts the ranks."""

    rsh_parameter = ("--mca", "plm_rsh_agent")
    interface_parameter = ("--mca", "oob_tcp_if_include")
    overload = ()

    def launcher(self):
        return shutil.which("mpirun.openmpi") or "/usr/bin/mpirun.openmpi"

    def python(self):
        return "/usr/bin/python3"

    def mpicc(self):
        return [shutil.which("mpicc.openmpi") or "mpicc.openmpi"]

    def one_sided(self, transport):
        return ["--mca", "osc", "pt2pt", "--mca", "btl", "^openib,vader,ofi"]


OPEN_MPI_VERBOSE = {"OMPI_MCA_mtl_base_verbose": "100", "OMPI_MCA_opal_common_ofi_verbose": "100"}
OPEN_MPI_NAMED = r"mtl:ofi:prov(?:ider)?: "

MPIS = {
    mpi.name: mpi
    for mpi in (
        Mpich("mpich", "MPICH 5", True, {"MPIR_CVAR_DEBUG_SUMMARY": "1"}, r"libfabric provider: "),
        OpenMpi("openmpi", "Open MPI 5", False, OPEN_MPI_VERBOSE, OPEN_MPI_NAMED),
        Intel("intel", "Intel MPI 2021", True, {"I_MPI_DEBUG": "5"}, r"libfabric provider: "),
        DebianOpenMpi("debian-openmpi", "Debian's Open MPI 4.1", False, OPEN_MPI_VERBOSE, OPEN_MPI_NAMED),
    )
}
STANDARD_ABI = StandardAbi("mpich-abi", "MPI 5 ABI on MPICH 5", True, {"MPIR_CVAR_DEBUG_SUMMARY": "1"}, r"libfabric provider: ")


def rsh_script():
    """A stand-in for rsh: `SCRIPT [options] HOST COMMAND...` enters the site."""
    script = BUILD / "tests" / "rsh"
    text = f"""#!/bin/sh
# Written by tests/harness/mpis.py, for launchers that want one word.
exec {ISTHMUS} lab rsh "$@"
"""
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(text)
        script.chmod(0o755)
    return script


def compile_programs(mpi, sources, log):
    """Compiles what is older than its source. Returns the compiler's words on failure."""
    from . import process

    mpi.programs.mkdir(parents=True, exist_ok=True)
    headers = max(header.stat().st_mtime for header in (ROOT / "tests" / "mpi").glob("*.h"))
    for source in sources:
        output = mpi.programs / source.stem
        newest = max(source.stat().st_mtime, headers)
        if output.exists() and output.stat().st_mtime > newest:
            continue
        ended = process.run(mpi.compile_command(source, output), mpi.compile_env(), log, 120)
        if ended.status != 0:
            return ended.output
    return None


def fortran_compiler():
    """The GNU compiler for Fortran, by the name that it has here; None: there is none."""
    return next((name for name in ("gfortran", "gfortran-12", "gfortran-14") if shutil.which(name)), None)


# --- the mover for MPI programs ----------------------------------------------


def mover_folder(mpi):
    """Where its library for this MPI is."""
    return BUILD / "lib" / "mpi" / mpi.name


def mover_flags(mpi):
    """What compiles and links a program with it, as pkg-config says."""
    env = {**os.environ, "PKG_CONFIG_PATH": str(mover_folder(mpi) / "pkgconfig")}
    return subprocess.run(["pkg-config", "--cflags", "--libs", "isthmus-mpi"], env=env, check=True, capture_output=True, text=True).stdout.split()


MOVER_SOURCES = (*(f"tests/mover/{name}.c" for name in ("mover", "messages", "array", "file", "layout", "cache", "greeting")),
                 *(f"examples/mpi/{name}.c" for name in ("copy", "two_mpis")),
                 "crates/isthmus-bench/src/papers/transfer.c")


def compile_mover(mpi, log, sources=MOVER_SOURCES):
    """Builds its library and programs, where they are older. Returns the compiler's words on failure."""
    from . import process

    command = [str(ROOT / "tools" / "build-mpi.sh"), mpi.name, *mpi.mpicc()]
    library = mover_folder(mpi) / "libisthmus-mpi.so"
    ended = process.run(command, mpi.compile_env(), log, 120)
    if ended.status != 0:
        return ended.output
    mpi.programs.mkdir(parents=True, exist_ok=True)
    for source in (ROOT / name for name in sources):
        output = mpi.programs / source.stem
        newest = max(path.stat().st_mtime for path in (source, library, ROOT / "tests" / "mpi" / "check.h"))
        if output.exists() and output.stat().st_mtime > newest:
            continue
        ended = process.run(mpi.compile_command(source, output, "-pthread", *mover_flags(mpi)), mpi.compile_env(), log, 120)
        if ended.status != 0:
            return ended.output
    return None


# --- the collectives library -------------------------------------------------


def collectives_library(mpi, variant=""):
    return BUILD / "lib" / "collectives" / f"{mpi.name}{variant}" / "libisthmus-collectives.so"


def compile_collectives(mpi, log, variant="", flags=()):
    """Builds the library for this MPI, if it is older. Returns the compiler's words on failure."""
    from . import process

    command = [str(ROOT / "tools" / "build-collectives.sh"), f"{mpi.name}{variant}", *mpi.mpicc(), *flags]
    ended = process.run(command, mpi.compile_env(), log, 120)
    return ended.output if ended.status != 0 else None

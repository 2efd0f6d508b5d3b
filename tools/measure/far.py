"""What the measurements across a lab's link share: their options, and the way into the lab."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from harness import mpis, process  # noqa: E402, F401

UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
RATES = {"Mbit": 1e6, "Gbit": 1e9}
# In the environment of what runs inside the lab: the round trip.
INSIDE = "ISTHMUS_TEST_IN_LAB"


def quantity(text, units):
    """A number with a unit, such as 24ms, in the base unit of `units`."""
    number, unit = re.fullmatch(r"([\d.]+)([A-Za-z]+)", text).groups()
    return float(number) * units[unit]


def add_options(parser):
    """The options of the link and of the ranks."""
    parser.add_argument("--rate", default="1Gbit")
    parser.add_argument("--loss", default="0")
    parser.add_argument("--queue", help="such as 312500B; default: rate times round trip")
    parser.add_argument("--ranks", type=int, default=8, help="of both sites together: an even number")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="in the environment of all ranks")
    parser.add_argument("--mpi", choices=list(mpis.MPIS), default="mpich")
    parser.add_argument("--transport", choices=mpis.TRANSPORTS, default="isthmus")


def settings(args):
    """What `--set` says, as an environment."""
    return dict(setting.split("=", 1) for setting in args.set)


def missing(mpi):
    """What has to be built before anything can be measured."""
    return mpi.missing() or (None if mpis.PROVIDER.exists() else f"{mpis.PROVIDER} is missing: run make build")


def compile_program(mpi, name):
    """Compiles tools/measure/NAME.c. The compiler's words on failure."""
    program = program_of(mpi, name)
    program.parent.mkdir(parents=True, exist_ok=True)
    return run_compiler(mpi, mpi.compile_command(ROOT / "tools" / "measure" / f"{name}.c", program))


def run_compiler(mpi, command):
    """The compiler's words on failure."""
    ended = subprocess.run(command, env={**os.environ, **mpi.compile_env()}, capture_output=True, text=True)
    return ended.stderr if ended.returncode != 0 else None


def program_of(mpi, name):
    """The program of that name for this MPI."""
    return mpi.programs / "measure" / name


def in_lab(args, rtt, **options):
    """Runs the same command once more inside a lab with this round trip."""
    lab = [str(mpis.ISTHMUS), "lab", "run", "--quiet", "--mgmt", "--rate", args.rate, "--rtt", rtt, "--loss", args.loss]
    lab += ["--queue", args.queue] if args.queue else []
    return subprocess.run([*lab, "--", sys.executable, *sys.argv], env={**os.environ, INSIDE: rtt}, **options)

"""ScaLAPACK's tests, PBLAS' and BLACS' among them, as Debian builds and packages them for two MPIs.

Linear algebra of four ranks that checks its own results: many small messages in rows and columns of
process grids, communicators made and freed. Those for MPICH run on the MPICH of PyPI, by library path.
"""

import re
import shutil
from pathlib import Path

from harness import mpis, process

from . import abi, debian
from .table import FAIL, PASS, TIMEOUT, TRANSPORT, Case, Outcome, Plan, Suite

PLAN = Path(__file__).resolve().parent.parent / "scalapack.txt"
SECONDS, RANKS = 900, 4
MPIS = {"mpich": "mpich", "debian-openmpi": "openmpi"}
# Of the four kinds of numbers that each is built for, the longer two.
PROGRAMS = ("x[dz]*", "PBLAS/[dz]pb?tst", "BLACS/x?btest")
# Linked for MPICH, the tests of BLACS want its Fortran names too, which the wheel of PyPI has not.
FORTRAN = "libmpich12"
CLEAN = re.compile(r"^\s*0 tests completed and failed", re.M)
# What most say of each test in a line, at its end or its beginning, and how many tests of a subroutine, or of a type,
# failed: PBLAS' table, BLACS' lines.
VERDICT = re.compile(r"(?:\d\s+(PASSED|FAILED)\s*$|^(Passed|Failed)\s)", re.M)
FAILURES = re.compile(r"^\s*\|\s+\w+\s+\d+\s+\d+\s+(\d+)|PASSED,\s+\d+ SKIPPED,\s+(\d+) FAILED", re.M)


def prepare(options):
    cases = []
    for name, flavour in MPIS.items():
        mpi = mpis.MPIS[name]
        if mpi.missing():
            continue
        tests = libraries("scalapack-mpi-test") / "scalapack" / f"{flavour}-tests"
        for program in (path for pattern in PROGRAMS for path in sorted(tests.glob(pattern))):
            cases.append(Case(f"ScaLAPACK {name} {program.name}", (mpi, program), alone=True))
    chosen, skipped = Plan(PLAN).chosen(cases, options)
    return Suite("ScaLAPACK's tests", chosen, lambda case, provider: perform(case, provider, options), skipped)


def libraries(package):
    return next((debian.unpacked(package) / "usr" / "lib").glob("*-linux-gnu"))


def perform(case, provider, options):
    mpi, program = case.body
    transport = TRANSPORT[provider]
    folder = debian.emptied(options.logs / re.sub(r"\W+", "_", f"{case.name}.{transport}"))
    # They read their problems from, and write to, the folder where they are started.
    for source in program.parent.glob("*.dat"):
        # Links lead to another package's usr/share.
        common = debian.unpacked("scalapack-test-common") / "usr"
        shutil.copy(common / str(source.readlink()).lstrip("./") if source.is_symlink() else source, folder)
    command, env = mpi.command(RANKS, [str(program)], transport, env=environment(mpi))
    ended = process.run(command, env, folder / "output.log", SECONDS, cwd=folder)
    return judge(ended, folder, program.name)


def environment(mpi):
    folders = [libraries(f"libscalapack-{MPIS[mpi.name]}2.2"), libraries("libblas3") / "blas", libraries("liblapack3") / "lapack"]
    env = {}
    if mpi.name == "mpich":
        env = abi.environment(mpi)
        folders = [env["LD_LIBRARY_PATH"], *folders, libraries(FORTRAN)]
    return {**env, "LD_LIBRARY_PATH": ":".join(map(str, folders))}


def judge(ended, folder, program):
    if ended.timed_out:
        return Outcome(TIMEOUT, f"{SECONDS} s")
    # Some write their verdict to a file.
    text = ended.output + "".join(path.read_text(errors="replace") for path in folder.iterdir() if path.suffix in (".out", ".SUMM"))
    counts = [int(one or other) for one, other in FAILURES.findall(text)]
    verdicts = [(one or other).upper() for one, other in VERDICT.findall(text)]
    counts.append(verdicts.count("FAILED"))
    if not (CLEAN.search(text) or verdicts or len(counts) > 1) or any(counts):
        return Outcome(FAIL, f"status {ended.status}: {sum(counts)} of its tests failed")
    # The last test of BLACS is that its abort ends all processes.
    if ended.status and not program.endswith("btest"):
        return Outcome(FAIL, f"status {ended.status}")
    return Outcome(PASS)

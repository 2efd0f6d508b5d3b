"""mpi4py's own test suite, compared with what the stock tcp provider fails."""

import re

from . import process
from .cases import Case, Failure, Skip, last_words
from .mpis import BUILD, ROOT

MAIN = BUILD / "mpi4py" / "test" / "main.py"
KNOWN = ROOT / "tests" / "mpi4py-known-failures.txt"

# Each rank writes a log of its own: lines of several ranks in one would mix.
RANK_SHELL = 'log=$2.${PMI_RANK:-$OMPI_COMM_WORLD_RANK}; main=$1; shift 2; exec "$0" "$main" -v --no-builddir "$@" >"$log" 2>&1'


class Suite:
    """A run of the suite, or of these parts of it: the program of all ranks, and their logs."""

    def __init__(self, c, ranks, *words):
        if not MAIN.exists():
            raise Skip("mpi4py's tests are not here: tools/bootstrap.sh mpi4py-tests")
        self.mpi = c.mpi.name
        log = f"{c.label}.{c.case}.rank"
        self.logs = [c.scratch(f"rank.{rank}") for rank in range(ranks)]
        self.program = ["/bin/sh", "-c", RANK_SHELL, c.mpi.python(), str(MAIN), str(c.logs / log), *words]

    def judge(self, ended):
        """What it did, when nothing failed that passes over the stock provider."""
        texts = [log.read_text(errors="replace") if log.exists() else "" for log in self.logs]
        ran = [re.search(r"^Ran (\d+) tests in", text, re.M) for text in texts]
        failed = set().union(*map(failures, texts))
        new = sorted(failed - known(self.mpi))
        if not all(ran):
            rank = next(i for i, match in enumerate(ran) if not match)
            how = "no end" if ended.timed_out else f"exit {ended.status}"
            more = f"; failed before: {', '.join(new[:3])}" if new else ""
            raise Failure(f"{how} after {ended.seconds:.0f} s, rank {rank} in {under_way(texts[rank])}{more}")
        if new:
            raise Failure(f"{len(new)} fail that stock tcp passes: {', '.join(new[:5])}{' ...' if len(new) > 5 else ''}")
        return f"{ran[0].group(1)} tests a rank, {len(failed)} fail as over stock tcp"


def whole(ranks, seconds, *words):
    """The body of a case: the suite with so many ranks, on this host."""

    def body(c):
        suite = Suite(c, ranks, *words)
        command, env = c.mpi.command(ranks, suite.program, c.transport, c.place)
        return suite.judge(process.run(command, env, c.log(), seconds))

    return body


def failures(text):
    """The names of the tests that failed, parameters of subtests left out."""
    found = re.findall(r"^(?:ERROR|FAIL|UNEXPECTED SUCCESS): (\S+) \(([^)]+)\)", text, re.M)
    return {f"{where}" if where.endswith("." + name) else f"{where}.{name}" for name, where in found}


def under_way(text):
    begun = re.findall(r"^(\w+) \(([\w.]+)\)", text, re.M)
    return begun[-1][1] if begun else f"no test at all: {last_words(text)}"


def known(mpi):
    rows = (line.split() for line in KNOWN.read_text().splitlines() if line and not line.startswith("#"))
    return {row[1] for row in rows if row[0] == mpi}


# Four ranks that share two cores take minutes for each of the accumulate tests, over the stock
# provider too. Files and the pickling of datatypes have little to do with the network, and were a
# quarter of the time. All of these run with two ranks, and with four by mpi4py-4-all.
CASES = {
    case.name: case
    for case in (
        Case("mpi4py-2", whole(2, 420), places=("host",), mpis=("mpich",)),
        Case("mpi4py-4", whole(4, 600, "-x", "Accumulate", "-e", "test_(io|datatype)"), places=("host",), mpis=("mpich",)),
        Case("mpi4py-4-all", whole(4, 3600), places=("host",), mpis=("mpich",), long=True),
    )
}

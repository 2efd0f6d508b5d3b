"""mpi4py's own test suite, compared with what the stock tcp provider fails."""

import re

from . import process
from .cases import FAILED, PASSED, SKIPPED, Outcome, last_words
from .mpis import BUILD, ROOT

# What `--suite` runs, and what only a name brings. Four ranks that share two cores take
# minutes for each of the accumulate tests, over the stock provider too: those run with
# two ranks, and with four by `make suites`.
NAMES = ("mpi4py-2", "mpi4py-4")
FULL = ("mpi4py-4-all",)
LEFT_OUT = {"mpi4py-4": ("-x", "Accumulate")}
MPIS = ("mpich",)
SECONDS = {"mpi4py-2": 420, "mpi4py-4": 600, "mpi4py-4-all": 3600}
MAIN = BUILD / "mpi4py" / "test" / "main.py"
KNOWN = ROOT / "tests" / "mpi4py-known-failures.txt"

# Each rank writes a log of its own: lines of several ranks in one would mix.
RANK_SHELL = 'log=$2.${PMI_RANK:-$OMPI_COMM_WORLD_RANK}; main=$1; shift 2; exec "$0" "$main" -v --no-builddir "$@" >"$log" 2>&1'


def perform(context) -> Outcome:
    if not MAIN.exists():
        return Outcome(SKIPPED, "mpi4py's tests are not here: tools/bootstrap.sh mpi4py-tests")
    ranks = int(context.case.split("-")[1])
    logs = [context.logs / f"{context.label}.{context.case}.rank.{rank}" for rank in range(ranks)]
    for log in logs:
        log.unlink(missing_ok=True)
    program = ["/bin/sh", "-c", RANK_SHELL, context.mpi.python(), str(MAIN), str(logs[0])[:-2],
               *LEFT_OUT.get(context.case, ())]
    command, env = context.mpi.command(ranks, program, context.transport, context.place)
    job = process.Running(command, env, context.log())
    ended = job.wait(SECONDS[context.case])
    texts = [log.read_text(errors="replace") if log.exists() else "" for log in logs]
    return judge(texts, ended, context.mpi.name)


def judge(texts, ended, mpi):
    ran = [re.search(r"^Ran (\d+) tests in", text, re.M) for text in texts]
    failed = set().union(*map(failures, texts))
    new = sorted(failed - known(mpi))
    if not all(ran):
        rank = next(i for i, match in enumerate(ran) if not match)
        how = "no end" if ended.timed_out else f"exit {ended.status}"
        more = f"; failed before: {', '.join(new[:3])}" if new else ""
        return Outcome(FAILED, f"{how} after {ended.seconds:.0f} s, rank {rank} in {under_way(texts[rank])}{more}")
    if new:
        return Outcome(FAILED, f"{len(new)} fail that stock tcp passes: {', '.join(new[:5])}{' ...' if len(new) > 5 else ''}")
    return Outcome(PASSED, f"{ran[0].group(1)} tests a rank, {len(failed)} fail as over stock tcp")


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

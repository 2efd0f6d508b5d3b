"""mpi4py's own test suite on the three MPIs of PyPI, with 1, 2 and 4 ranks.

A row of the table is one run of the whole suite. What counts is each of its tests: a row
stands against us when a test fails over Isthmus that passes over the stock provider.
"""

import re
from pathlib import Path

from harness import mpis, process, suite

from . import parts
from .table import FAIL, OURS, PASS, TIMEOUT, TRANSPORT, Case, Outcome, Plan, Suite, Unavailable, wanted

PLAN = Path(__file__).resolve().parent.parent / "mpi4py.txt"
MPIS = ("mpich", "openmpi", "intel")
RANKS = (1, 2, 4)
# Four ranks that share two cores take minutes for each of the accumulate tests.
SECONDS = {1: 900, 2: 1800, 4: 3600}


def prepare(options):
    if not suite.MAIN.exists():
        raise Unavailable("its tests are not here: tools/bootstrap.sh mpi4py-tests")
    names, counts = (("mpich",), (4,)) if options.parts else (MPIS, RANKS)
    cases = [Case(f"{name} {ranks}", (mpis.MPIS[name], ranks), alone=ranks > 2) for name in names for ranks in counts]
    cases = [case for case in cases if wanted(case.name, options) and not case.body[0].missing()]
    # In this suite the patterns name tests of mpi4py, not rows, and what they are said of is an MPI.
    left_out, skipped = {name: [] for name in MPIS}, {}
    for name in MPIS:
        for pattern, reason in Plan(PLAN, name).skips:
            left_out[name].append(pattern.pattern)
            skipped.setdefault(reason, []).append(f"{name} {pattern.pattern}")
    return Suite("mpi4py's tests", cases, lambda case, provider: perform(case, provider, left_out, options), skipped)


def perform(case, provider, left_out, options):
    mpi, ranks = case.body
    transport = TRANSPORT[provider]
    logs = [options.logs / f"{mpi.name}-{ranks}.{transport}.rank.{rank}" for rank in range(ranks)]
    for log in logs:
        log.unlink(missing_ok=True)
    program = ["/bin/sh", "-c", suite.RANK_SHELL, mpi.python(), str(suite.MAIN), str(logs[0])[:-2]]
    program += [word for pattern in left_out[mpi.name] for word in ("-x", f"*{pattern}*")]
    log = options.logs / f"{mpi.name}-{ranks}.{transport}.log"
    if options.parts and provider == OURS:
        ended = parts.run(mpi, ranks, program, f"mpi4py-{ranks}", log, SECONDS[ranks])
    else:
        command, env = mpi.command(ranks, program, transport)
        ended = process.run(command, env, log, SECONDS[ranks])
    texts = [log.read_text(errors="replace") if log.exists() else "" for log in logs]
    return judge(texts, ended)


def judge(texts, ended):
    ran = [re.search(r"^Ran (\d+) tests in", text, re.M) for text in texts]
    failed = frozenset().union(*map(suite.failures, texts))
    if ended.timed_out and all(ran):
        return Outcome(TIMEOUT, f"{ended.seconds:.0f} s: all tests ran, but not all ranks ended", failed)
    if not all(ran):
        rank = next(i for i, match in enumerate(ran) if not match)
        how = f"{ended.seconds:.0f} s" if ended.timed_out else f"exit {ended.status}"
        return Outcome(TIMEOUT if ended.timed_out else FAIL, f"{how} in {suite.under_way(texts[rank])}", failed)
    if failed:
        names = sorted(failed)
        more = " ..." if len(names) > 4 else ""
        return Outcome(FAIL, f"{len(names)} of {ran[0].group(1)} fail: {', '.join(names[:4])}{more}", failed)
    return Outcome(PASS, f"{ran[0].group(1)} tests a rank")

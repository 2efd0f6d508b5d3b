"""The collectives library: its results beside the MPI's own, the sites that it finds, its settings."""

import os
import re
import time

from . import mpis, process, suite
from .cases import FAILED, Case, Failure, Skip, die, last_words, must_pass, ranks_of

SEED = int(os.environ.get("ISTHMUS_SEED", "1"))
# Ranks, and which of them share a site: in blocks, alternating, unequal, three sites, one rank alone.
LAYOUTS = ((6, "0-2;3-5"), (6, "0,2,4;1,3,5"), (7, "0;1-6"), (8, "0,3,6;1,2;4,5,7"), (5, "0-3;4"), (8, "2-4;0,1,5-7"))
# Small ones, so that short vectors have many.
SEGMENT = {"ISTHMUS_COLLECTIVES_SEGMENT": "1KiB"}
# Sends that outlive their collective: all, none, and as the library chooses on one host.
DETACHED = ({"ISTHMUS_COLLECTIVES_DETACH": "64MiB"}, {"ISTHMUS_COLLECTIVES_DETACH": "off"}, {})


def preload(c):
    """The environment that loads the library, which is built where it is older than its source."""
    said = mpis.compile_collectives(c.mpi, c.log(".library"))
    if said:
        raise Failure(f"the library does not compile: {last_words(said)}")
    return {"LD_PRELOAD": str(mpis.collectives_library(c.mpi))}


def start(c, ranks, words, env, suffix):
    """Starts a job with the library preloaded."""
    return c.start(ranks, *words, env={**preload(c), **env}, suffix=suffix)


def random_calls(c):
    """Random collectives give what the MPI's own give: each algorithm, sites of every kind."""
    rounds = 0
    for algorithm in ("leaders", "parallel", "auto"):
        for number, (ranks, sites) in enumerate(LAYOUTS):
            env = {**SEGMENT, "ISTHMUS_COLLECTIVES_SITES": sites, "ISTHMUS_COLLECTIVES_PIN": f"all:{algorithm}", **DETACHED[number % 3]}
            words = ("far_collectives", SEED + number, 100, 4000 if number == 0 else 300)
            must_pass(start(c, ranks, words, env, f".{algorithm}.{number}").wait(120))
            rounds += 100
    return f"{rounds} random calls with sites {', '.join(sites for _, sites in LAYOUTS)}"


def threads(c):
    """Three threads call collectives at once, each on a communicator of its own."""
    for algorithm in ("leaders", "parallel"):
        env = {**SEGMENT, "ISTHMUS_COLLECTIVES_SITES": "0,2;1,3-4", "ISTHMUS_COLLECTIVES_PIN": f"all:{algorithm}", **DETACHED[0]}
        must_pass(start(c, 5, ("far_collectives", SEED, 50, 300, 3), env, f".{algorithm}").wait(120))
    return "three threads, both algorithms"


def sites_found(c):
    """Without settings the library measures: one host is one site, ranks at two ends of a wide link are two."""
    ended = start(c, 4, ("far_collectives", SEED, 20, 300), {"ISTHMUS_COLLECTIVES_TRACE": "1"}, ".measured").wait(120)
    must_pass(ended)
    wanted = "0 0 1 1" if c.place.many else "0 0 0 0"
    found = re.search(r"sites of ranks 0 to 3, by measured round trips: ([\d ]+)$", ended.output, re.M)
    if not found or found[1] != wanted:
        raise Failure(f"sites {found[1] if found else 'not told'}, expected {wanted}")
    used = set(re.findall(r"isthmus-collectives: \w+ of \d+ B .*: (\w+) \(", ended.output))
    if c.place.many != bool(used & {"leaders", "parallel"}):
        raise Failure(f"algorithms used: {', '.join(sorted(used)) or 'none'}")
    return f"sites {wanted}; algorithms: {', '.join(sorted(used)) or 'only those of the MPI'}"


def settings(c):
    """What cannot be is refused, with what was expected; what only some ranks are told does no harm."""
    trials = {
        "pin": ({"ISTHMUS_COLLECTIVES_PIN": "allreduce:best"}, 'ISTHMUS_COLLECTIVES_PIN: "allreduce:best": expected COLLECTIVE:ALGORITHM'),
        "rtt": ({"ISTHMUS_COLLECTIVES_RTT": "24"}, 'ISTHMUS_COLLECTIVES_RTT = "24": expected a positive quantity, such as "24ms"'),
        "sites": ({"ISTHMUS_COLLECTIVES_SITES": "0-1;;2"}, 'ISTHMUS_COLLECTIVES_SITES = "0-1;;2": expected ranks or names of hosts'),
    }
    for name, (env, words) in trials.items():
        ended = start(c, 2, ("far_collectives", SEED, 5, 30), env, f".{name}").wait(60)
        if ended.timed_out or ended.status == 0 or f"isthmus-collectives: refused: {words}" not in ended.output:
            raise Failure(f"{name}: exit {ended.status}, {last_words(ended.output)}")
    return f"{len(trials)} refused with what to do"


def killed_rank(c):
    """A rank dies amid collectives: the job ends with an error, as without the library."""
    env = {**SEGMENT, **DETACHED[0], "ISTHMUS_COLLECTIVES_SITES": "0-1;2-3"}
    job = start(c, 4, ("far_collectives", SEED, 10000000, 3000), env, "")
    try:
        pids = ranks_of(job, 4, "far_collectives")
        time.sleep(1)
        ended, took = die(job, pids)
    finally:
        job.end()
    return f"ended {took:.1f} s after, exit {ended.status}"


# mpi4py's tests of what the library covers.
MPI4PY = ("test_cco_buf", "test_cco_obj", "test_cco_vec", "test_op", "test_msgzero")


def mpi4py(c):
    """mpi4py's tests of collectives, with three ranks at two sites."""
    if not suite.MAIN.exists():
        raise Skip("mpi4py's tests are not here: tools/bootstrap.sh mpi4py-tests")
    logs = [c.logs / f"{c.label}.{c.case}.rank.{rank}" for rank in range(3)]
    for log in logs:
        log.unlink(missing_ok=True)
    words = ["/bin/sh", "-c", suite.RANK_SHELL, c.mpi.python(), str(suite.MAIN), str(logs[0])[:-2], *MPI4PY]
    env = {**SEGMENT, **DETACHED[0], "ISTHMUS_COLLECTIVES_SITES": "0,2;1", "ISTHMUS_COLLECTIVES_PIN": "all:parallel", **preload(c)}
    command, launch_env = c.mpi.command(3, words, c.transport, c.place, env)
    ended = process.Running(command, launch_env, c.log()).wait(240)
    outcome = suite.judge([log.read_text(errors="replace") if log.exists() else "" for log in logs], ended, c.mpi.name)
    if outcome.verdict == FAILED:
        raise Failure(outcome.detail)
    return outcome.detail


CASES = {
    case.name: case
    for case in (
        Case("far-random", random_calls, places=("host",), mpis=("mpich",)),
        Case("far-threads", threads, places=("host",), mpis=("mpich",)),
        Case("far-sites", sites_found, places=("host", "sites"), mpis=("mpich",)),
        Case("far-killed", killed_rank, places=("host",), mpis=("mpich",)),
        Case("far-mpi4py", mpi4py, places=("host",), mpis=("mpich",)),
        Case("far-settings", settings, places=("host",), mpis=("mpich",)),
    )
}

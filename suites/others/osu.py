"""The OSU micro-benchmarks in Python, which mpi4py's source brings, on the three MPIs of PyPI.

They check no data; what is judged is that each ends with every size measured. A row shows the geometric mean
of its times, or of its rates, over all sizes.
"""

import re
import statistics

from harness import mpis, process, suite

from .table import COLUMN, FAIL, PASS, TIMEOUT, TRANSPORT, Case, Outcome, Suite, Unavailable, wanted

DEMOS = suite.MAIN.parent.parent / "demo"
SECONDS = 900
MPIS = ("mpich", "openmpi", "intel")
# How many ranks each runs with. Four share two processors.
RANKS = {"osu_latency": 2, "osu_bw": 2, "osu_bibw": 2, "osu_multi_lat": 4, "osu_barrier": 4, "osu_bcast": 4,
         "osu_gather": 4, "osu_scatter": 4, "osu_allgather": 4, "osu_alltoall": 4, "osu_alltoallv": 4}
# Sizes up to 4 MiB, of rooted collectives up to 1 MiB; the others' room is shared by the ranks. A barrier has none.
SIZES_MIN = {"osu_barrier": 1}
SIZES_USUAL = 20


def prepare(options):
    if not DEMOS.exists():
        raise Unavailable("its programs are not here: tools/bootstrap.sh mpi4py-tests")
    cases = [Case(f"{name} {program} {ranks}", (mpis.MPIS[name], program, ranks), alone=True)
             for name in MPIS for program, ranks in RANKS.items()]
    cases = [case for case in cases if wanted(case.name, options) and not case.body[0].missing()]
    return Suite("OSU's benchmarks in Python", cases, lambda case, provider: perform(case, provider, options))


def perform(case, provider, options):
    mpi, program, ranks = case.body
    transport = TRANSPORT[provider]
    command, env = mpi.command(ranks, [mpi.python(), str(DEMOS / f"{program}.py")], transport)
    ended = process.run(command, env, options.logs / f"{mpi.name}-{program}.{transport}.log", SECONDS)
    if ended.timed_out:
        return Outcome(TIMEOUT, f"{SECONDS} s")
    figures = [float(figure) for figure in re.findall(r"^ *(?:\d+ +)?(\d+\.\d+)$", ended.output, re.M)]
    if ended.status or len(figures) < SIZES_MIN.get(program, SIZES_USUAL) or not all(figures):
        return Outcome(FAIL, f"status {ended.status}, {len(figures)} sizes measured")
    unit = "MB/s" if program.endswith("bw") else "us"  # whatever their heads say
    mean = statistics.geometric_mean(figures)
    return Outcome(PASS, f"{COLUMN[provider]} {len(figures)} sizes, mean {mean:.0f} {unit}")

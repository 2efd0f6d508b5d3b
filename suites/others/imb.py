"""Intel's MPI benchmarks, which the wheel of Intel MPI brings, on it and on MPICH, whose ABI is the same.

They check no data; what is judged is that each ends with every size measured. A row shows the geometric mean
of all its times, over benchmarks and sizes, which tells at a glance whether a provider is far off.
"""

import re
import statistics

from harness import mpis, process

from . import abi
from .table import COLUMN, FAIL, PASS, TIMEOUT, TRANSPORT, Case, Outcome, Suite, Unavailable, wanted

SECONDS = 600
RANKS = 4
# Sizes up to 256 KiB, ten repetitions, all four ranks; so long a sample that none is cut short.
WORDS = ["-msglog", "0:18", "-iter", "10", "-npmin", str(RANKS), "-time", "30"]
PROGRAMS = ("IMB-MPI1", "IMB-NBC", "IMB-RMA", "IMB-P2P")
SKIPPED = {"needs the OpenMP library of Intel's compiler, which the wheel has not": ["IMB-MT"]}
MPIS = ("mpich", "intel")
# Of the columns of times of a benchmark, the one that counts.
TIMES = ("t[usec]", "t_avg[usec]", "t_ovrl[usec]")


def prepare(options):
    if mpis.MPIS["intel"].missing():
        raise Unavailable(mpis.MPIS["intel"].missing())
    cases = [Case(f"{name} {program}", (mpis.MPIS[name], program), alone=True) for name in MPIS for program in PROGRAMS]
    cases = [case for case in cases if wanted(case.name, options) and not case.body[0].missing()]
    return Suite("Intel's MPI benchmarks", cases, lambda case, provider: perform(case, provider, options), SKIPPED)


def perform(case, provider, options):
    mpi, program = case.body
    transport = TRANSPORT[provider]
    words = [str(mpis.MPIS["intel"].folder / "bin" / program), *WORDS]
    command, env = mpi.command(RANKS, words, transport, env=abi.environment(mpi))
    ended = process.run(command, env, options.logs / f"{mpi.name}-{program}.{transport}.log", SECONDS)
    if ended.timed_out:
        return Outcome(TIMEOUT, f"{SECONDS} s")
    times = times_of(ended.output)
    cut = re.findall(r"^.*time-out.*$", ended.output, re.M)
    if ended.status or cut or not times or "All processes entering MPI_Finalize" not in ended.output:
        return Outcome(FAIL, f"status {ended.status}, {len(times)} times measured {cut[0].strip() if cut else ''}")
    mean = statistics.geometric_mean(times)
    return Outcome(PASS, f"{COLUMN[provider]} {len(times)} times, mean {mean:.0f} us")


def times_of(output):
    """All times above 0 of the tables in what a program has printed, in us."""
    times, column, width = [], None, 0
    for line in output.splitlines():
        words = line.split()
        if "#repetitions" in words:
            names = [word for word in words if word != "#"]
            column = next((names.index(name) for name in TIMES if name in names), None)
            width = len(names)
        elif column is not None and len(words) == width and re.fullmatch(r"[\d.]+", words[column]):
            times.append(float(words[column]))
        elif line.startswith("#"):
            column = None
    return [time for time in times if time > 0]

"""Programs that Debian packages: NetPIPE and hpcc, unpacked but not installed.

NetPIPE for MPICH was linked with Debian's own, which can load no libfabric provider; by
library path it runs on the MPICH of PyPI and on Intel MPI, which have the same ABI.
"""

import re

from harness import mpis, process

from . import abi, debian
from .table import COLUMN, FAIL, PASS, TIMEOUT, TRANSPORT, Case, Outcome, Suite, wanted

SECONDS = 300
# NetPIPE's ways: its plain ping-pong, checked data, streaming, and both ways at once.
NETPIPE = {"": [], " integrity": ["-i"], " stream": ["-s"], " both ways": ["-2"]}
NETPIPE_MAX = 4 << 20
NETPIPES = {"mpich": ("netpipe-mpich2", "NPmpich2"), "intel": ("netpipe-mpich2", "NPmpich2"),
            "debian-openmpi": ("netpipe-openmpi", "NPopenmpi")}
HPCC_RANKS = 4
# hpccinf.txt: one problem of order 600 in blocks of 40 on a grid of 2 x 2, and as many of PTRANS.
HPCC_INPUT = """HPLinpack benchmark input file
suites/others/programs.py
HPL.out      output file name (if any)
8            device out (6=stdout,7=stderr,file)
1            # of problems sizes (N)
600          Ns
1            # of NBs
40           NBs
0            PMAP process mapping (0=Row-,1=Column-major)
1            # of process grids (P x Q)
2            Ps
2            Qs
16.0         threshold
1            # of panel fact
2            PFACTs (0=left, 1=Crout, 2=Right)
1            # of recursive stopping criterium
4            NBMINs (>= 1)
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs (0=left, 1=Crout, 2=Right)
1            # of broadcast
1            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
1            # of lookahead depth
1            DEPTHs (>=0)
2            SWAP (0=bin-exch,1=long,2=mix)
64           swapping threshold
0            L1 in (0=transposed,1=no-transposed) form
0            U  in (0=transposed,1=no-transposed) form
1            Equilibration (0=no,1=yes)
8            memory alignment in double (> 0)
##### This line (no. 32) is ignored (it serves as a separator). ######
0                      Number of additional problem sizes for PTRANS
1200 10000 30000       values of N
0                      number of additional blocking sizes for PTRANS
40 9 8 13 13 20 16 32 64       values of NB
"""


def prepare(options):
    cases = [Case(f"NetPIPE {name}{how}", (name, netpipe, args), alone=True)
             for name in NETPIPES for how, args in NETPIPE.items()]
    cases.append(Case("hpcc debian-openmpi", ("debian-openmpi", hpcc, ()), alone=True))
    cases = [case for case in cases if wanted(case.name, options) and not mpis.MPIS[case.body[0]].missing()]
    return Suite("programs of Debian", cases, lambda case, provider: perform(case, provider, options))


def perform(case, provider, options):
    mpi, how, args = case.body
    folder = debian.emptied(options.logs / re.sub(r"\W+", "_", f"{case.name}.{TRANSPORT[provider]}"))
    return how(mpis.MPIS[mpi], provider, folder, args)


def netpipe(mpi, provider, folder, args):
    package, name = NETPIPES[mpi.name]
    program = debian.unpacked(package) / "usr" / "bin" / name
    words = [str(program), "-u", str(NETPIPE_MAX), "-o", "figures", *args]
    env = abi.environment(mpi) if package == "netpipe-mpich2" else {}
    ended = run(mpi, 2, words, provider, folder, env)
    if ended.timed_out:
        return Outcome(TIMEOUT, f"{SECONDS} s")
    figures = folder / "figures"
    rows = [line.split() for line in figures.read_text().splitlines()] if figures.exists() else []
    if ended.status or len(rows) < 30 or "Integrity check failed" in ended.output:
        return Outcome(FAIL, f"status {ended.status}, {len(rows)} sizes measured")
    if "-i" in args:
        # It writes how often it has sent each size, and no times.
        return Outcome(PASS, f"{COLUMN[provider]} {len(rows)} sizes intact")
    best = max(float(row[1]) for row in rows)
    return Outcome(PASS, f"{COLUMN[provider]} {float(rows[0][-1]) * 1e6:.1f} us, {best / 1000:.1f} Gb/s")


def hpcc(mpi, provider, folder, _args):
    program = debian.unpacked("hpcc") / "usr" / "bin" / "hpcc"
    (folder / "hpccinf.txt").write_text(HPCC_INPUT)
    blas = next(debian.unpacked("libblas3").rglob("libblas.so.3")).parent
    ended = run(mpi, HPCC_RANKS, [str(program)], provider, folder, {"LD_LIBRARY_PATH": str(blas)})
    if ended.timed_out:
        return Outcome(TIMEOUT, f"{SECONDS} s")
    output = folder / "hpccoutf.txt"
    text = output.read_text() if output.exists() else ""
    wrong = re.findall(r"^.*(?:FAILED|\bFailure\b).*$", text, re.M)
    if ended.status or wrong or "Success=1" not in text:
        return Outcome(FAIL, f"status {ended.status}; {(wrong or ['no Success=1'])[0][:100]}")
    return Outcome(PASS)


def run(mpi, ranks, words, provider, folder, env):
    command, launch_env = mpi.command(ranks, words, TRANSPORT[provider], env=env)
    return process.run(command, launch_env, folder / "output.log", SECONDS, cwd=folder)

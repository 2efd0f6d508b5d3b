"""`isthmus run`: jobs whose parts are at two sites, and their ends, good and bad."""

import contextlib
import ctypes.util
import os
import re
import shutil
import signal
import tempfile
import time
from pathlib import Path

from . import cases, far_cases, process, slurm, suite
from .cases import Case, Failure, last_words
from .mpis import BUILD, ISTHMUS

# A job ends so many seconds after one of its ranks or parts, at most.
END = 5
# Says who it is in its world, and in its part's program; MPMD: what each part's ranks know of the other's.
WHO = """
import os, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
everybody = world.allgather((sys.argv[1], os.environ["ISTHMUS_RUN_PART"], world.Get_attr(MPI.APPNUM)))
node = world.Split_type(MPI.COMM_TYPE_SHARED)
nodes = world.allgather(node.size)
if world.rank == 0:
    print("everybody", *("/".join(map(str, who)) for who in everybody), "nodes", *nodes, flush=True)
"""


class Part:
    """A part of a job: one `isthmus run`, or what a launcher makes of it."""

    def __init__(self, c, site, part, words, *options, launcher=(), env=None, at=None, suffix="", settings=None, cwd=None):
        self.name = f"part {part}"
        number, parts = part.split("/")
        enter = [str(ISTHMUS), "lab", "exec", site, "--"] if site else []
        at = ["--at", str(at)] if at else []
        command = [*enter, *launcher, str(ISTHMUS), "run", "--job", c.case, "--part", part, *at, *map(str, options), "--", *map(str, words)]
        env = {**c.mpi.launch_env(), **rank_env(c), **(settings or c.place.settings), **(env or {})}
        self.job = process.Running(command, env, c.log(f".{number}{suffix}"), cwd)

    def runs(self):
        """The processes of `isthmus run`."""
        return [pid for pid in self.job.pids("isthmus") if subcommand(pid) == "run"]

    def servers(self):
        """The processes that serve PMIx."""
        return [pid for pid in self.job.pids("isthmus") if subcommand(pid) == "run-pmix"]


def subcommand(pid):
    try:
        return (Path(f"/proc/{pid}/cmdline").read_text().split("\0") + [""])[1]
    except OSError:
        return ""


def rank_env(c):
    """What ranks of the lab need beside what `isthmus run` sets."""
    return {
        "intel": {"I_MPI_ROOT": str(c.mpi.folder), "I_MPI_PIN": "0", "I_MPI_WAIT_MODE": "0"},
        "openmpi": {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl": "self,ofi", "OMPI_MCA_osc": "^ucx,sm"},
    }.get(c.mpi.name, {})


def sites(c):
    """Where the parts are: the sites of the lab, or this host."""
    return c.place.hosts[:2] if c.place.many else (None, None)


def program(c, name, *words):
    return [c.mpi.programs / name, *words]


def python(c, text, *words):
    return [c.mpi.python(), "-c", text, *words]


class Job:
    """Its parts; all end when this is left."""

    def __init__(self, parts):
        self.parts = parts

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for part in self.parts:
            part.job.end()

    def succeed(self, seconds=90, gone=()):
        """All parts end well but those that are gone; all that they said."""
        said = []
        for part in self.parts:
            if part in gone:
                continue
            ended = part.job.wait(seconds)
            if ended.timed_out or ended.status:
                raise Failure(f"{part.name}: {'no end' if ended.timed_out else f'exit {ended.status}'}: {last_words(ended.output)}")
            said.append(ended.output)
        return "\n".join(said)

    def fail(self, words, status, since, gone=None, bound=END, further=()):
        """All parts end in time with the status, and say the words (a regular expression); not those that are gone.

        Those in `further` are not the first process of their part: they do not say why the job ends.
        """
        took = 0
        for part in self.parts:
            ended = part.job.wait(since - part.job.began + bound + 5)
            took = max(took, time.monotonic() - since)
            if ended.timed_out:
                raise Failure(f"{part.name}: no end; {last_words(ended.output)}")
            if part is gone:
                continue
            if part in further:
                if "the job ends" in ended.output:
                    raise Failure(f"{part.name}: another process of it says why the job ends: {last_words(ended.output)}")
            elif not re.search(words, ended.output, re.M):
                raise Failure(f"{part.name}: exit {ended.status}, and no word of {words!r}: {last_words(ended.output)}")
            if ended.status != status:
                raise Failure(f"{part.name}: exit {ended.status}, expected {status}: {last_words(ended.output)}")
        if took > bound:
            raise Failure(f"ended {took:.1f} s after, expected {bound} s at most")
        return f"ended {took:.1f} s after"


def meeting(c):
    return f"file:{c.scratch('at')}"


def ok(said, ranks):
    line = re.search(rf"^OK collectives: (.*\b{ranks} ranks)$", said, re.M)
    if not line:
        raise Failure(f"no OK line of {ranks} ranks: {last_words(said)}")
    return line.group(1)


def world(c):
    """Parts of three and two ranks are one world; the second starts later."""
    a, b = sites(c)
    at = meeting(c)
    second = Part(c, b, "2/2", program(c, "collectives", "64k"), "-n", 2, at=at)
    try:
        cases.await_output(second.job, "waits for part 1 at", 20)
        with Job([Part(c, a, "1/2", program(c, "collectives", "64k"), "-n", 3, at=at), second]) as job:
            return ok(job.succeed(), 5)
    finally:
        second.job.end()


def mpmd(c):
    """Three parts of different programs, of which two share a site: ranks, programs and nodes are told apart."""
    a, b = sites(c)
    at = meeting(c)
    parts = [Part(c, site, f"{number}/3", python(c, WHO, name), "-n", ranks, at=at)
             for number, (site, name, ranks) in enumerate(((a, "ocean", 2), (b, "ice", 1), (a, "air", 3)), 1)]
    with Job(parts) as job:
        said = job.succeed()
    wanted = "everybody ocean/1/0 ocean/1/0 ice/2/1 air/3/2 air/3/2 air/3/2 nodes 2 2 1 3 3 3"
    if wanted not in said:
        raise Failure(f"expected {wanted!r}: {last_words(said)}")
    return wanted


# What a rank knows of the sites of all ranks, and of two that are not there.
SITES = """
import ctypes, sys
from mpi4py import MPI
site = ctypes.CDLL(sys.argv[1]).isthmus_site
world = MPI.COMM_WORLD
told = world.gather([site(rank) for rank in range(-1, world.size + 1)])
if world.rank == 0:
    assert told == [told[0]] * world.size, told
    print("sites", *told[0], flush=True)
"""


def with_collectives(c, name, *words):
    """A program that loads the collectives library, which tells what it does."""
    env = {**far_cases.preload(c), "ISTHMUS_COLLECTIVES_TRACE": "1"}
    return ["env", *(f"{key}={value}" for key, value in env.items()), *program(c, name, *words)]


def at_sites(c):
    """Each part is a site: ranks are told so, and the collectives library takes them for it without measuring."""
    a, b = sites(c)

    def said(words):
        at = meeting(c)
        with Job([Part(c, site, f"{part}/2", words, "-n", ranks, at=at) for part, site, ranks in ((1, a, 3), (2, b, 2))]) as job:
            return job.succeed()

    for wanted, told in (
        ("sites -1 0 0 0 1 1 -1", said(python(c, SITES, BUILD / "lib" / "libisthmus.so"))),
        ("sites of ranks 0 to 4, by parts of isthmus run: 0 0 0 1 1", said(with_collectives(c, "collectives", "4k"))),
    ):
        if wanted not in told:
            raise Failure(f"expected {wanted!r}: {last_words(told)}")
    return "known to the ranks, and to the collectives library"


def launched(c):
    """Each site's own launcher starts a process of `isthmus run` for each rank."""
    a, b = sites(c)
    at = meeting(c)
    hydra = [c.mpi.launcher(), "-n"]
    with Job([Part(c, a, "1/2", program(c, "collectives", "64k"), "--label", launcher=[*hydra, "3"], at=at),
              Part(c, b, "2/2", program(c, "collectives", "64k"), "--label", launcher=[*hydra, "2"], at=at)]) as job:
        said = job.succeed()
    if "[rank 0, part 1] OK collectives" not in said:
        raise Failure(f"no labelled OK line: {last_words(said)}")
    return "five ranks of two mpiexecs, labelled"


def hello(c):
    """mpi4py's own greeting, over parts that have a secret in common."""
    a, b = sites(c)
    secret = c.scratch("secret")
    secret.write_text(os.urandom(32).hex())
    secret.chmod(0o600)
    words = [c.mpi.python(), "-m", "mpi4py.bench", "helloworld"]
    at = f"{address(c)}:{PORT}"
    with Job([Part(c, site, f"{part}/2", words, "-n", 2, "--secret", secret, at=at) for part, site in ((1, a), (2, b))]) as job:
        said = job.succeed()
    for rank in range(4):
        if f"I am process {rank} of 4" not in said:
            raise Failure(f"rank {rank} does not greet: {last_words(said)}")
    return "four ranks greet"


# mpi4py's tests of what depends on how a world is started, and some of what does not.
MPI4PY = ("test_environ", "test_info", "test_dynproc", "test_comm_topo", "test_p2p_obj", "test_cco_obj")


def mpi4py(c):
    """Some of mpi4py's tests, with four ranks at two sites."""
    tests = suite.Suite(c, 4, *MPI4PY)
    a, b = sites(c)
    at = meeting(c)
    with Job([Part(c, site, f"{part}/2", tests.program, "-n", 2, at=at) for part, site in ((1, a), (2, b))]) as job:
        ended = [part.job.wait(240) for part in job.parts]
    return tests.judge(ended[0])


PORT = 4377


def address(c):
    """Where the first site is reached."""
    if not c.place.many:
        return "127.0.0.1"
    words = [*c.place.enter(), "ip", "-4", "-o", "addr", "show", "dev", "wan0"]
    ended = process.run(words, {}, c.log(".address"), 20)
    return re.search(r"inet ([\d.]+)", ended.output).group(1)


def wrong_secret(c):
    """A part with another secret is told so at once; the first goes on waiting, and says for whom it waited."""
    a, b = sites(c)
    secrets = []
    for name in ("secret", "other"):
        path = c.scratch(name)
        path.write_text(os.urandom(32).hex())
        path.chmod(0o600)
        secrets.append(path)
    at = f"{address(c)}:{PORT}"
    words = ["/bin/true"]
    with Job([Part(c, a, "1/2", words, "--secret", secrets[0], "--wait", "6s", at=at)]) as first:
        time.sleep(1)
        began = time.monotonic()
        with Job([Part(c, b, "2/2", words, "--secret", secrets[1], at=at)]) as second:
            told = second.fail(r"isthmus run: .*another secret or another job", 1, began)
        first.fail(r"part 2 did not come", 1, first.parts[0].job.began, bound=12)
    return f"the other part {told}"


def missing(c):
    """A part that never comes: who waits says for whom, and ends."""
    a, b = sites(c)
    at = meeting(c)
    with Job([Part(c, a, "1/3", ["/bin/true"], "--wait", "4s", at=at), Part(c, b, "2/3", ["/bin/true"], at=at)]) as job:
        return job.fail(r"isthmus run: job run-missing, part \d: the job ends: part 1 \(host \S+\) gave up after 4 s: part 3 did not come", 1,
                        job.parts[0].job.began + 4)


def churning(c):
    """Two parts of two ranks that exchange for minutes, under way."""
    a, b = sites(c)
    at, progress = meeting(c), c.scratch("progress")
    words = program(c, "churn", 120, "64k", progress)
    job = Job([Part(c, site, f"{part}/2", words, "-n", 2, at=at) for part, site in ((1, a), (2, b))])
    try:
        cases.await_file(progress, job.parts[0].job)
        time.sleep(0.5)
    except BaseException:
        job.__exit__()
        raise
    return job


def killed_rank(c):
    """A rank is killed: all parts end, name it, and have its status."""
    with churning(c) as job:
        victim = max(job.parts[1].job.pids("churn"))
        os.kill(victim, signal.SIGKILL)
        return job.fail(r"the job ends: rank [23] \(part 2, host \S+\) was ended by SIGKILL", 137, time.monotonic())


def killed_part(c):
    """A part is killed with everything in it, or only its `isthmus run`; then that of part 1."""
    told = []
    for index in (1, 0):
        with churning(c) as job:
            gone = job.parts[index]
            ranks = gone.job.pids("churn")
            for pid in gone.runs():
                os.kill(pid, signal.SIGKILL)
            told.append(job.fail(rf"the job ends: part {index + 1} \(host \S+\) is gone", 1, time.monotonic(), gone=gone))
            left = [pid for pid in ranks if process.program_of(pid) == "churn"]
            if left:
                raise Failure(f"ranks outlive their isthmus run: {left}")
    return ", ".join(told)


def ended_part(c):
    """The site's scheduler ends a part: SIGTERM."""
    with churning(c) as job:
        for pid in job.parts[1].runs():
            os.kill(pid, signal.SIGTERM)
        return job.fail(r"the job ends: part 2 \(host \S+\) was told to end: its isthmus run received SIGTERM", 143, time.monotonic())


def aborted(c):
    """MPI_Abort of one rank gives all parts its code."""
    a, b = sites(c)
    at = meeting(c)
    text = "from mpi4py import MPI; w = MPI.COMM_WORLD; w.barrier(); w.rank == 2 and w.Abort(7); w.recv(source=2)"
    with Job([Part(c, site, f"{part}/2", python(c, text), "-n", 2, at=at) for part, site in ((1, a), (2, b))]) as job:
        return job.fail(r"the job ends: rank 2 \(part 2, host \S+\) called MPI_Abort with 7", 7, time.monotonic(), bound=20)


# --- a job that goes on ---------------------------------------------------------


def survive(c, lost, kill, gone=None, name="survivors", options=(), env=None):
    """Two parts of two ranks, of which `kill` ends some under way: the others go on, check what they do then, and end well."""
    a, b = sites(c)
    at, progress = meeting(c), c.scratch("progress")
    words = program(c, name, lost, progress)
    with Job([Part(c, site, f"{part}/2", words, "-n", 2, "--on-loss", "continue", *options, at=at, env=env) for part, site in ((1, a), (2, b))]) as job:
        cases.await_file(progress, job.parts[0].job)
        kill(job)
        since, said = time.monotonic(), []
        for part in job.parts:
            ended = part.job.wait(since - part.job.began + 30)
            if part is not (job.parts[gone] if gone is not None else None) and (ended.timed_out or ended.status):
                raise Failure(f"{part.name}: {'no end' if ended.timed_out else f'exit {ended.status}'}: {last_words(ended.output)}")
            said.append(ended.output)
        took = time.monotonic() - since
    said = "\n".join(said)
    if f"OK {name}: {4 - lost} of 4 ranks go on" not in said:
        raise Failure(f"no OK line: {last_words(said)}")
    return said, took


def goes_on(c, name="survivors", single=2, **how):
    """Ranks are killed: one of each of the first `single` parts, and each part as a whole. The others finish."""
    def one_of_each(job):
        for part in job.parts[:single]:
            os.kill(max(part.job.pids(name)), signal.SIGKILL)

    def whole(index):
        def kill(job):
            for pid in job.parts[index].runs():
                os.kill(pid, signal.SIGKILL)
        return kill

    told = []
    for lost, kill, gone, words in (
        (single, one_of_each, None, r"rank 1 \(part 1, host \S+\) was ended by SIGKILL; the job goes on without it"),
        (2, whole(0), 0, r"part 1 \(host \S+\) is gone: .*; the job goes on without ranks 0-1"),
        (2, whole(1), 1, r"part 2 \(host \S+\) is gone: .*; the job goes on without ranks 2-3"),
    ):
        said, took = survive(c, lost, kill, gone, name, **how)
        if not re.search(words, said):
            raise Failure(f"no word of {words!r}: {last_words(said)}")
        told.append(f"{took:.1f} s after")
    return "the others end well " + ", ".join(told)


def surviving(c):
    """What a job of this MPI needs to go on after a loss: the program, options, and a folder for temporary files."""
    return ("shrink", ("--pmix",)) if c.mpi.name == "openmpi" else ("survivors", ())


def killed_at_once(c, parts, gone, lost):
    """Kills these processes of `isthmus run` at the same moment. The others go on without their ranks, and end well."""
    name, options = surviving(c)
    at, progress = meeting(c), c.scratch("progress")
    with tempfile.TemporaryDirectory(prefix="killed-") as folder:
        env = {**(pmix_env(c, own=True) if options else {}), "TMPDIR": folder}
        with Job([Part(c, site, part, program(c, name, lost, progress), "--on-loss", "continue", *options, *more, at=at, env=env,
                       suffix=f".{number}") for number, (site, part, *more) in enumerate(parts)]) as job:
            cases.await_file(progress, job.parts[0].job, 90)
            dead = [job.parts[number] for number in gone]
            for pid in [pid for part in dead for pid in part.runs()]:
                os.kill(pid, signal.SIGKILL)
            since = time.monotonic()
            said = job.succeed(since - job.parts[0].job.began + 40, gone=dead)
            took = time.monotonic() - since
    if not re.search(rf"OK {name}: \d+ of \d+ ranks go on", said):
        raise Failure(f"no OK line: {last_words(said)}")
    return f"the others end well {took:.1f} s after"


def half_site_killed(c):
    """Half of a site's ranks is killed at once: one of the two processes of part 2."""
    a, b = sites(c)
    half = [(b, "2/2", "-n", 2, "--rank", rank, "--size", 2) for rank in range(2)]
    return killed_at_once(c, [(a, "1/2", "-n", 2), *half], gone=(2,), lost=2)


def two_parts_killed(c):
    """Two of three parts are killed at once: the third goes on; and where the job is to end, it ends and names one of them."""
    a, b = sites(c)
    told = killed_at_once(c, [(a, "1/3", "-n", 2), (b, "2/3"), (a, "3/3")], gone=(1, 2), lost=2)
    at, progress = meeting(c), c.scratch("progress")
    _, options = surviving(c)
    env = pmix_env(c, own=True) if options else {}
    with tempfile.TemporaryDirectory(prefix="killed-") as folder:
        parts = [Part(c, site, f"{part}/3", program(c, "churn", 120, "64k", progress), *options, at=at, env={**env, "TMPDIR": folder})
                 for part, site in enumerate((a, b, a), 1)]
        with Job(parts) as job:
            cases.await_file(progress, parts[0].job, 60)
            for pid in [pid for part in parts[1:] for pid in part.runs()]:
                os.kill(pid, signal.SIGKILL)
            since = time.monotonic()
            ended = Job(parts[:1]).fail(r"the job ends: part [23] \(host \S+\) is gone", 1, since)
    return f"{told}; or the job {ended}"


# Each rank writes short lines and a long one to both of its outputs, in pieces. Rank 3 fails when the others are done.
SPEAK = """
import os, sys, time
from pathlib import Path
rank = int(os.environ["ISTHMUS_RUN_RANK"])
for line in range(50):
    for out in (1, 2):
        text = f"<{out} {rank} {line} " + "x" * (20000 if line == 7 else 20) + f" {line} {rank}>\\n"
        os.write(out, text[:9].encode())
        os.write(out, text[9:].encode())
if sys.argv[1] != "well":
    Path(sys.argv[1], str(rank)).touch()
    while rank < 3 or len(list(Path(sys.argv[1]).iterdir())) < 4:
        time.sleep(0.02)
    os.write(2, b"last words")
    sys.exit(5)
"""


def gathered(c):
    """The output of all ranks comes out at part 1 in whole lines, the last words of a rank that fails too; or in files."""
    a, b = sites(c)

    def parts(how, *options):
        at = meeting(c)
        return [Part(c, site, f"{part}/2", python(c, SPEAK, how), "-n", 2, *options, at=at) for part, site in ((1, a), (2, b))]

    done, folder = Path(tempfile.mkdtemp(prefix="done-", dir=c.logs)), Path(tempfile.mkdtemp(prefix="output-", dir=c.logs))
    with Job(parts(str(done), "--gather", "--label")) as job:
        job.fail(r"the job ends: rank 3 \(part 2, host \S+\) ended with status 5", 5, time.monotonic(), bound=30)
        first, second = (part.job.output() for part in job.parts)
    lines = first.splitlines()
    for rank in range(4):
        label = f"[rank {rank}, part {1 + rank // 2}] "
        for out in (1, 2):
            whole = [line for line in lines if re.fullmatch(re.escape(label) + rf"<{out} {rank} (\d+) x+ \1 {rank}>", line)]
            if len(whole) != 50:
                raise Failure(f"{len(whole)} whole lines of 50 of rank {rank}")
    if "[rank 3, part 2] last words" not in lines or "<1 " in second:
        raise Failure("the last words are lost, or part 2 has output")
    with Job(parts("well", "--output", folder)) as job:
        job.succeed()
    sizes = {path.name: len(path.read_text().splitlines()) for path in folder.iterdir()}
    if sizes != {f"rank-{rank}.{end}": 50 for rank in range(4) for end in ("out", "err")}:
        raise Failure(f"the files have {sizes} lines")
    for path in (done, folder):
        shutil.rmtree(path)
    return "400 whole lines, and 8 files"


# --- PMI-2 ------------------------------------------------------------------------

# What an MPI that was built for PMI-2 does, by Slurm's client library.
BY_PMI_2 = """
import ctypes, os, sys
pmi = ctypes.CDLL(sys.argv[1])
def must(name, *words):
    status = getattr(pmi, name)(*words)
    assert status == 0, (name, status)
numbers = [ctypes.c_int() for _ in range(4)]
must("PMI2_Init", *map(ctypes.byref, numbers))
spawned, size, rank, appnum = (number.value for number in numbers)
value, length, found = ctypes.create_string_buffer(1024), ctypes.c_int(), ctypes.c_int()
must("PMI2_Job_GetId", value, 1024)
job = value.value
for turn in range(3):
    must("PMI2_KVS_Put", b"card-%d-%d" % (turn, rank), b"of %d" % rank)
    must("PMI2_KVS_Fence")
    for other in range(size):
        must("PMI2_KVS_Get", job, -1, b"card-%d-%d" % (turn, other), value, 1024, ctypes.byref(length))
        assert value.value == b"of %d" % other, value.value
must("PMI2_Info_GetJobAttr", b"PMI_process_mapping", value, 1024, ctypes.byref(found))
mapping = value.value.decode()
key = b"segment-%d" % (rank // 2)
if rank % 2:
    must("PMI2_Info_GetNodeAttr", key, value, 1024, ctypes.byref(found), 1)
    assert value.value == b"memory", value.value
else:
    must("PMI2_Info_PutNodeAttr", key, b"memory")
must("PMI2_Finalize")
# In one write: the ranks of a part share a pipe.
os.write(1, f"rank {rank} of {size} program {appnum} mapping {mapping}\\n".encode())
"""


def pmi2(c):
    """Ranks that speak PMI-2 have one key-value space, over two parts."""
    library = next(iter(sorted(slurm.ROOT.glob("usr/lib/*/libpmi2.so.0"))), None)
    if not library:
        raise cases.Skip("Slurm's libpmi2 is not here: tools/bootstrap.sh slurm")
    a, b = sites(c)
    at = meeting(c)
    with Job([Part(c, site, f"{part}/2", python(c, BY_PMI_2, library), "-n", 2, at=at) for part, site in ((1, a), (2, b))]) as job:
        said = job.succeed()
    for rank in range(4):
        if f"rank {rank} of 4 program {rank // 2} mapping (vector,(0,2,2))" not in said:
            raise Failure(f"rank {rank} is not in the world: {last_words(said)}")
    return "four ranks of two programs"


# --- PMIx -------------------------------------------------------------------------


def pmix_env(c, own):
    """What `isthmus run --pmix` needs: the libpmix of this host, or (`own`, or where there is none) that of Open MPI."""
    libraries = c.mpi.folder / "lib" / "openmpi"
    env = {"LD_LIBRARY_PATH": str(libraries)} if own or not ctypes.util.find_library("pmix") else {}
    # Where Open MPI finds its own files, as its mpirun says.
    return {"OPAL_PREFIX": str(c.mpi.folder), **env}


def pmix(c):
    """Open MPI 5 in two parts, with a PMIx server beside each process. A rank aborts; a rank and a server are killed."""
    a, b = sites(c)
    # Without the shared memory of Open MPI's own, nothing would tell whether it is removed.
    env = {**pmix_env(c, own=False), "OMPI_MCA_btl": "self,sm,ofi"}

    def parts(words, folder):
        at = meeting(c)
        where = {**env, "TMPDIR": folder}
        # Part 2 has a process for each rank.
        return [Part(c, a, "1/2", words, "-n", 2, "--pmix", at=at, env=where),
                *(Part(c, b, "2/2", words, "--rank", rank, "--size", 2, "--pmix", at=at, env=where, suffix=f".{rank}") for rank in range(2))]

    with emptied(segments) as folder:
        with Job(parts(program(c, "collectives", "16k"), folder)) as job:
            said = ok(job.succeed(), 4)
        text = "from mpi4py import MPI; w = MPI.COMM_WORLD; w.barrier(); w.rank == 2 and w.Abort(7); w.recv(source=2)"
        with Job(parts(python(c, text), folder)) as job:
            job.fail(r"rank 2 \(part 2, host \S+\) called MPI_Abort with 7", 7, time.monotonic(), bound=20, further=job.parts[2:])
        progress = c.scratch("progress")
        with Job(parts(program(c, "churn", 120, "64k", progress), folder)) as job:
            cases.await_file(progress, job.parts[0].job)
            os.kill(max(job.parts[0].job.pids("churn")), signal.SIGKILL)
            told = job.fail(r"the job ends: rank [01] \(part 1, host \S+\) was ended by SIGKILL", 137, time.monotonic(), further=job.parts[2:])
        # A scheduler sends SIGTERM to all processes of a part at once, also to the PMIx servers. Here they get it first.
        progress.unlink()
        with Job(parts(program(c, "churn", 120, "64k", progress), folder)) as job:
            cases.await_file(progress, job.parts[0].job)
            for pid in job.parts[0].servers():
                os.kill(pid, signal.SIGTERM)
            time.sleep(0.5)
            for pid in job.parts[0].runs():
                os.kill(pid, signal.SIGTERM)
            job.fail(r"part 1 \(host \S+\) was told to end: its isthmus run received SIGTERM", 143, time.monotonic(), further=job.parts[2:])
    # A server that is killed can remove nothing; `isthmus run` removes the folder.
    before = segments()
    with emptied() as folder:
        progress.unlink()
        with Job(parts(program(c, "churn", 120, "64k", progress), folder)) as job:
            cases.await_file(progress, job.parts[0].job)
            os.kill(job.parts[0].servers()[0], signal.SIGKILL)
            job.fail(r"part 1 \(host \S+\) has lost its PMIx server: its process has ended", 1, time.monotonic(), further=job.parts[2:])
    for name in segments() - before:
        Path("/dev/shm", name).unlink()
    return f"{said}; {told}"


@contextlib.contextmanager
def emptied(also=set):
    """A folder for temporary files, in which jobs must leave none. They must not add to what `also` names either."""
    folder, before = tempfile.mkdtemp(prefix="pmix-"), also()
    yield folder
    if left := [*os.listdir(folder), *(also() - before)]:
        raise Failure(f"left: {left}")
    os.rmdir(folder)


def segments():
    """The shared memory of Open MPI's ranks."""
    return {path.name for path in Path("/dev/shm").glob("sm_segment*")}


def pmix_missing(c):
    """Where there is no libpmix, a job of Open MPI says so, and what to do."""
    empty = Path(tempfile.mkdtemp(prefix="no-pmix-", dir=c.logs))
    # A file of the library's name that is none.
    (empty / "libpmix.so.2").write_text("")
    with Job([Part(c, None, "1/1", ["/bin/true"], "--pmix", env={"LD_LIBRARY_PATH": str(empty)})]) as job:
        told = job.fail(r"no PMIx server: libpmix\.so\.2 cannot be loaded \(.*\); install libpmix 4", 126, time.monotonic())
    shutil.rmtree(empty)
    return told


def pmix_goes_on(c):
    """A rank of Open MPI, and each part, is killed. The others hear of it by PMIx, shrink their world by ULFM, and finish."""
    # Open MPI 5.0.11 may crash if a second loss comes while it shrinks the world after the first.
    # Both a process and its PMIx server may be killed here, so that files may be left.
    with tempfile.TemporaryDirectory(prefix="pmix-") as folder:
        return goes_on(c, "shrink", single=1, options=("--pmix",), env={**pmix_env(c, own=True), "TMPDIR": folder})


# What the ranks listen at, and what site b then drops of it. The processes of `isthmus run` use other ports.
RANKS_AT = "5000-5100"
CUT = f"""table inet out_of_reach {{ chain in {{ type filter hook input priority 0;
  iifname wan0 meta l4proto {{ tcp, udp }} th dport {RANKS_AT} drop; iifname wan0 meta l4proto {{ tcp, udp }} th sport {RANKS_AT} drop; }}; }}
"""


@contextlib.contextmanager
def ranks_cut_off(c, site):
    """A function that cuts the ranks of this site off from those of the other one. Later they can reach each other again."""
    nft = shutil.which("nft", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if not nft:
        raise cases.Skip("it takes nft (Debian: nftables)")
    rules, enter = c.scratch("nft"), [str(ISTHMUS), "lab", "exec", site, "--", nft]
    rules.write_text(CUT)

    def cut_off():
        ended = process.run([*enter, "-f", str(rules)], {}, c.log(".cut"), 20)
        if ended.status != 0:
            raise Failure(f"nft: {last_words(ended.output)}")

    try:
        yield cut_off
    finally:
        process.run([*enter, "delete", "table", "inet", "out_of_reach"], {}, c.log(".joined"), 20)


def pmix_out_of_reach(c):
    """Ranks of Open MPI lose sight of each other for longer than `peer_timeout`, while all processes of `isthmus run` reach
    each other. The rank of the smaller part is lost, and the others hear of it by PMIx and finish."""
    a, b = sites(c)
    at, progress = meeting(c), c.scratch("progress")
    words = ["env", f"FI_ISTHMUS_PORT_RANGE={RANKS_AT}", "FI_ISTHMUS_PEER_TIMEOUT=4s", *program(c, "shrink", 1, progress)]
    with tempfile.TemporaryDirectory(prefix="pmix-") as folder, ranks_cut_off(c, b) as cut_off:
        env = {**pmix_env(c, own=True), "TMPDIR": folder}
        with Job([Part(c, site, f"{part}/2", words, "-n", ranks, "--on-loss", "continue", "--pmix", at=at, env=env)
                  for part, site, ranks in ((1, a, 2), (2, b, 1))]) as job:
            cases.await_file(progress, job.parts[0].job)
            cut_off()
            since = time.monotonic()
            said = job.succeed(since - job.parts[0].job.began + 60)
            took = time.monotonic() - since
    for wanted in (r"OK shrink: 2 of 3 ranks go on",
                   r"rank 2 \(part 2, host \S+\) is lost, because it and rank [01]( and 1 more)? cannot reach each other "
                   r"\(.* was out of reach for .*\); the job goes on without it"):
        if not re.search(wanted, said):
            raise Failure(f"no {wanted!r}: {last_words(said)}")
    return f"the others end well {took:.1f} s after"


# --- through routers ------------------------------------------------------------


def at_router(c):
    """A name at a router of the first site, as both sites write it."""
    side = c.net.sides["a"]
    return f"router:isthmus://{side.as_id}.{side.shape.subnets[0].id}/{side.routers[0]}"


# Ranks of the parts of a job, which lie at sites a, b and a.
UNEQUAL = (3, 1, 2)


def routed_parts(c, words, sizes=(2, 2)):
    at, count = at_router(c), len(sizes)
    return [Part(c, site, f"{part}/{count}", words, "-n", ranks, at=at, settings=c.net.place(site).settings)
            for part, (site, ranks) in enumerate(zip("aba", sizes), 1)]


def routed(c):
    """Three unequal parts at two sites that only routers join: a name at a router is where they meet. A rank is killed."""
    with Job(routed_parts(c, program(c, "collectives", "64k"), UNEQUAL)) as job:
        said = ok(job.succeed(), sum(UNEQUAL))
    progress = c.scratch("progress")
    with Job(routed_parts(c, program(c, "churn", 120, "64k", progress), UNEQUAL)) as job:
        cases.await_file(progress, job.parts[0].job)
        os.kill(max(job.parts[2].job.pids("churn")), signal.SIGKILL)
        killed = job.fail(r"the job ends: rank [45] \(part 3, host \S+\) was ended by SIGKILL", 137, time.monotonic())
    return f"{said}; {killed}"


def routed_sites(c):
    """The collectives library takes AS and subnet of each rank for its site, before the parts: two of three share one."""
    with Job(routed_parts(c, with_collectives(c, "far_collectives", far_cases.SEED, 20, 300), UNEQUAL)) as job:
        said = job.succeed()
    if "sites of ranks 0 to 5, by AS and subnet: 0 0 0 1 0 0\n" not in said:
        raise Failure(f"other sites: {last_words(said)}")
    if not (ran := far_cases.operations_run(said)):
        raise Failure("the library ran nothing")
    return f"{len(ran)} collectives over two AS"


def router_killed(c):
    """The router at which the parts met is killed: the job goes on by the other one. So does its end, which crosses the WAN."""
    progress = c.scratch("progress")
    with Job(routed_parts(c, program(c, "churn", 10, "64k", progress))) as job:
        cases.await_file(progress, job.parts[0].job)
        began = time.monotonic()
        c.net.routers["a"][0].send(signal.SIGKILL)
        said = job.succeed(90)
        took = time.monotonic() - began
    if "OK churn" not in said:
        raise Failure(f"no OK line: {last_words(said)}")
    return f"over {took:.0f} s after"


def cut(c):
    """The WAN is cut for 20 s: the job goes on. Afterwards a fence crosses it: the ranks' MPI_Finalize, and the job's end."""
    progress = c.scratch("progress")
    with Job(routed_parts(c, program(c, "churn", 10, "64k", progress))) as job:
        cases.await_file(progress, job.parts[0].job)
        began = time.monotonic()
        job.succeed(120)
        took = time.monotonic() - began
    if took < 15:
        raise Failure(f"the job took {took:.0f} s: it was over before the cut was")
    return f"over after {took:.0f} s"


CASES = {
    case.name: case
    for case in (
        Case("run-world", world, places=("host", "sites"), mpis=("mpich", "intel")),
        Case("run-mpmd", mpmd, places=("sites",), mpis=("mpich",)),
        Case("run-sites", at_sites, places=("sites",), mpis=("mpich",)),
        Case("run-launched", launched, places=("sites",), mpis=("mpich",)),
        Case("run-hello", hello, places=("sites",), mpis=("mpich",)),
        Case("run-mpi4py", mpi4py, places=("sites",), mpis=("mpich",)),
        Case("run-wrong-secret", wrong_secret, places=("sites",), mpis=("mpich",)),
        Case("run-missing", missing, places=("sites",), mpis=("mpich",)),
        Case("run-killed-rank", killed_rank, places=("sites",), mpis=("mpich", "intel")),
        Case("run-killed-part", killed_part, places=("sites",), mpis=("mpich",)),
        Case("run-ended-part", ended_part, places=("sites",), mpis=("mpich",)),
        Case("run-goes-on", goes_on, places=("sites",), mpis=("mpich",)),
        Case("run-half-site-killed", half_site_killed, places=("sites",), mpis=("mpich", "openmpi")),
        Case("run-two-parts-killed", two_parts_killed, places=("sites",), mpis=("mpich", "openmpi")),
        Case("run-gathered", gathered, places=("sites",), mpis=("mpich",)),
        Case("run-pmi2", pmi2, places=("sites",), mpis=("mpich",)),
        Case("run-pmix", pmix, places=("sites",), mpis=("openmpi",)),
        Case("run-pmix-goes-on", pmix_goes_on, places=("sites",), mpis=("openmpi",)),
        Case("run-pmix-out-of-reach", pmix_out_of_reach, places=("sites",), mpis=("openmpi",)),
        Case("run-pmix-missing", pmix_missing, places=("host",), mpis=("openmpi",)),
        Case("run-aborted", aborted, places=("sites",), mpis=("mpich",)),
    )
}

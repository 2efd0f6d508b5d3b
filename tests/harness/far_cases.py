"""The collectives library: its results beside the MPI's own, the sites that it finds, its settings."""

import dataclasses
import os
import re
import time

from . import mpis, process, suite
from .cases import Case, Failure, Skip, die, last_words, must_pass, ranks_of

# What the library covers, by its own names.
OPERATIONS = ("barrier", "bcast", "reduce", "allreduce", "gather", "gatherv", "scatter", "scatterv", "allgather", "alltoall", "alltoallv",
              "alltoallw", "reduce_scatter", "scan", "exscan")
# Of these it runs non-blocking and persistent forms, on the MPIs that let it.
NONBLOCKING = tuple(f"i{name}" for name in OPERATIONS if "scan" not in name)
NONBLOCKING_MPIS = ("mpich", "openmpi", "debian-openmpi")
PERSISTENT = tuple(f"{name}_init" for name in OPERATIONS if "scan" not in name)
PERSISTENT_MPIS = ("mpich", "openmpi")
# The MPIs that it is tested with.
MPIS = ("mpich", "openmpi", "intel", "debian-openmpi")
SEED = int(os.environ.get("ISTHMUS_SEED", "1"))
# Ranks, and which of them share a site: in blocks, alternating, unequal, three sites, one rank alone.
LAYOUTS = ((6, "0-2;3-5"), (6, "0,2,4;1,3,5"), (7, "0;1-6"), (8, "0,3,6;1,2;4,5,7"), (5, "0-3;4"), (8, "2-4;0,1,5-7"), (7, "0-3;4;5-6"))
# Small ones, so that short vectors have many.
SEGMENT = {"ISTHMUS_COLLECTIVES_SEGMENT": "1KiB"}
NO_PERSISTENT = {"ISTHMUS_COLLECTIVES_PERSISTENT": "off"}
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


def operations_run(output):
    """What the library says that it ran itself."""
    return set(re.findall(r"isthmus-collectives: (\w+) of \d+ B .*: (?:leaders|parallel) \(", output))


def random_calls(c):
    """Random collectives give what the MPI's own give: each algorithm, sites of every kind."""
    rounds, ran = 0, set()
    for turn, algorithm in enumerate(("leaders", "parallel", "auto")):
        for number, (ranks, sites) in enumerate(LAYOUTS):
            # The library is the same code on all MPIs: the others run each layout once, each algorithm twice.
            if c.mpi.name != "mpich" and number // 3 != turn:
                continue
            env = {**SEGMENT, "ISTHMUS_COLLECTIVES_SITES": sites, "ISTHMUS_COLLECTIVES_PIN": f"all:{algorithm}", **DETACHED[number % 3],
                   "ISTHMUS_COLLECTIVES_TRACE": "1"}
            words = ("far_collectives", SEED + number, 100, 4000 if number == 0 else 300)
            ended = start(c, ranks, words, env, f".{algorithm}.{number}").wait(120)
            must_pass(ended)
            ran |= operations_run(ended.output)
            rounds += 100
    wanted = {*OPERATIONS, *(NONBLOCKING if c.mpi.name in NONBLOCKING_MPIS else ()),
              *(PERSISTENT if c.mpi.name in PERSISTENT_MPIS else ())}
    if missed := wanted - ran:
        raise Failure(f"the library did not run {', '.join(sorted(missed))}")
    return f"{rounds} random calls with sites {', '.join(sites for _, sites in LAYOUTS)}"


# An MPI without large counts packs at most 1 GiB at once. With this most, all datatypes are taken apart.
SMALL_PACKS = ("-small", ("-DPACK_MAX=8",))


def taken_apart(c):
    """Elements that are too long to be packed at once are packed part by part."""
    if said := mpis.compile_collectives(c.mpi, c.log(".library"), *SMALL_PACKS):
        raise Failure(f"the library does not compile: {last_words(said)}")
    library = mpis.collectives_library(c.mpi, SMALL_PACKS[0])
    for algorithm in ("leaders", "parallel"):
        env = {**SEGMENT, **DETACHED[0], "ISTHMUS_COLLECTIVES_SITES": "0-2;3-5",
               "ISTHMUS_COLLECTIVES_PIN": f"all:{algorithm}", "LD_PRELOAD": str(library)}
        must_pass(c.start(6, "far_collectives", SEED, 200, 300, env=env, suffix=f".{algorithm}").wait(120))
    return "400 random calls"


def freed(c):
    """Communicators that are freed at once: data under way arrive, and nothing stays behind or is used after."""
    for algorithm in ("leaders", "parallel"):
        env = {"ISTHMUS_COLLECTIVES_SITES": "0-1;2-3", "ISTHMUS_COLLECTIVES_PIN": f"all:{algorithm}", **DETACHED[0],
               "MALLOC_PERTURB_": "165"}
        must_pass(start(c, 4, ("far_comms", "freed", 120, "1M"), env, f".{algorithm}").wait(180))
    # Sites exchange what they measured, also three of unequal size. One host is no wide link, so there is nothing to tell.
    env = {"ISTHMUS_COLLECTIVES_SITES": "0;1-2;3-5", "ISTHMUS_COLLECTIVES_PIN": "all:parallel"}
    must_pass(start(c, 6, ("far_comms", "steady", 40, "128k"), env, ".steady").wait(120))
    return "240 communicators freed while data were under way"


def buffers(c):
    """Buffers by address are taken; those that MPI forbids do not make some ranks wait for others."""
    for algorithm in ("leaders", "parallel"):
        env = {"ISTHMUS_COLLECTIVES_SITES": "0-1;2-4", "ISTHMUS_COLLECTIVES_PIN": f"all:{algorithm}"}
        must_pass(start(c, 5, ("far_comms", "buffers"), env, f".{algorithm}").wait(60))
    return "both algorithms"


# Weights of a program with an Allreduce in its loop, and its steps.
WEIGHTS, STEPS = 1 << 18, 20


def training(c):
    """Data-parallel gradient descent across two sites, with the library and without."""
    seconds = {}
    for name in ("with", "without"):
        words = ("descent", WEIGHTS, STEPS)
        job = start(c, 4, words, {"ISTHMUS_COLLECTIVES_TRACE": "1"}, ".with") if name == "with" else c.start(4, *words, suffix=".without")
        ended = job.wait(120)
        must_pass(ended)
        seconds[name] = float(re.search(r"([\d.]+) s a step", ended.output)[1])
        if name == "with" and "allreduce" not in operations_run(ended.output):
            raise Failure("the library ran no Allreduce")
    return f"{1e3 * seconds['with']:.1f} ms a step, {1e3 * seconds['without']:.1f} ms without"


def late(c):
    """After an error no late message is written to the program's buffer, and its sender does not wait for ever."""
    env = {"ISTHMUS_COLLECTIVES_SITES": "0-1;2-4", "ISTHMUS_COLLECTIVES_PIN": "all:parallel", **DETACHED[1]}
    for bytes in ("4k", "1M"):
        must_pass(start(c, 5, ("far_comms", "late", bytes), env, f".{bytes}").wait(60))
        for kind in ("ilate", "fails") if c.mpi.name in NONBLOCKING_MPIS else ():
            must_pass(start(c, 5, ("far_comms", kind, bytes), env, f".{kind}{bytes}").wait(60))
    return "short and long messages"


def error_handler(c):
    """While a thread waits in a collective, another one sets an error handler: it stays."""
    env = {"ISTHMUS_COLLECTIVES_SITES": "0-1;2-3", "ISTHMUS_COLLECTIVES_PIN": "all:parallel"}
    must_pass(start(c, 4, ("far_comms", "handler"), env, "").wait(60))
    return "set, read and freed meanwhile"


def reproducible(c):
    """Sums have the same bits by any algorithm and of any length, if the program asks for it."""
    env = {**SEGMENT, "ISTHMUS_COLLECTIVES_SITES": "0-3;4-8", "ISTHMUS_COLLECTIVES_REPRODUCIBLE": "1"}
    for pin in ("auto", "leaders"):
        must_pass(start(c, 9, ("far_comms", "bits", 4), {**env, "ISTHMUS_COLLECTIVES_PIN": f"all:{pin}"}, f".{pin}").wait(60))
    return "added by rank, then site by site"


def persistent(c):
    """Persistent collectives, started again and again beside persistent messages: the library runs them, unless told not to."""
    env = {**SEGMENT, "ISTHMUS_COLLECTIVES_SITES": "0-1;2-4", "ISTHMUS_COLLECTIVES_TRACE": "1", **DETACHED[0]}
    operations = {"barrier_init", "bcast_init", "allreduce_init"}
    ended = start(c, 5, ("far_persistent", "again"), env, "").wait(60)
    must_pass(ended)
    if missed := operations - operations_run(ended.output):
        raise Failure(f"the library did not run {', '.join(sorted(missed))}")
    # A program that is told so, or a communicator whose algorithm is pinned, has the MPI's own.
    for name, told in (("off", NO_PERSISTENT), ("mpi", {"ISTHMUS_COLLECTIVES_PIN": "all:mpi"})):
        ended = start(c, 5, ("far_persistent", "again", "stock"), {**env, **told}, f".{name}").wait(60)
        must_pass(ended)
        if run := operations & operations_run(ended.output):
            raise Failure(f"{name}: the library ran {', '.join(sorted(run))}")
    # Communicators are freed before their requests, and requests left to MPI_Finalize.
    must_pass(start(c, 5, ("far_persistent", "left"), env, ".left").wait(60))
    return "20 starts of each"


def persistent_orders(c):
    """Each rank starts and frees persistent collectives in an order of its own, from several threads, amid other collectives."""
    for number, (ranks, sites) in enumerate(LAYOUTS):
        env = {**SEGMENT, "ISTHMUS_COLLECTIVES_SITES": sites, **DETACHED[number % 3]}
        must_pass(start(c, ranks, ("far_persistent", "orders", SEED + number, 60), env, f".{number}").wait(60))
        must_pass(start(c, ranks, ("far_persistent", "threads", 30), env, f".threads.{number}").wait(60))
    env = {**SEGMENT, "ISTHMUS_COLLECTIVES_SITES": "0-1;2-4", **NO_PERSISTENT}
    must_pass(start(c, 5, ("far_persistent", "orders", SEED, 60, "stock"), env, ".off").wait(60))
    return f"{60 * len(LAYOUTS)} rounds, and {30 * len(LAYOUTS)} of two threads"


def persistent_errors(c):
    """An error after the start reaches the error handler of the program's communicator, and harms nothing else."""
    # No other rank gets its data from the last one.
    env = {**SEGMENT, "ISTHMUS_COLLECTIVES_SITES": "0-1;2-4"}
    must_pass(start(c, 5, ("far_persistent", "errors"), env, "").wait(60))
    # One rank cannot make the communicators of persistent collectives.
    ended = start(c, 5, ("far_persistent", "unmade"), {**env, "ISTHMUS_COLLECTIVES_TRACE": "1"}, ".unmade").wait(60)
    must_pass(ended)
    if operations_run(ended.output) & set(PERSISTENT):
        raise Failure("the library ran persistent collectives without their communicators")
    return "MPI_ERR_TRUNCATE at one rank of five"


# Libraries whose persistent collectives use up their tags soon: 512 are enough for the test's, 48 are not.
FEW_TAGS, TOO_FEW_TAGS = ("-few", ("-DCHANNEL_TAGS_MAX=512",)), ("-too-few", ("-DCHANNEL_TAGS_MAX=48",))
TAGS_USED_UP = "tags are left for a persistent collective"


def persistent_tags(c):
    """Persistent collectives are made time after time: tags are used again, and memory does not grow."""
    env = {**SEGMENT, "ISTHMUS_COLLECTIVES_SITES": "0-1;2-4", "ISTHMUS_COLLECTIVES_TRACE": "1", **DETACHED[0]}
    quiet = {**env, "ISTHMUS_COLLECTIVES_TRACE": "counts"}
    # Each kind is large enough that a few hundred bytes for each time, or each start, would show.
    must_pass(start(c, 5, ("far_persistent", "many", 6000, 1), quiet, ".times").wait(120))
    must_pass(start(c, 5, ("far_persistent", "many", 64, 200), quiet, ".starts").wait(120))
    for variant, words, all_run in ((FEW_TAGS, (), True), (TOO_FEW_TAGS, ("stock",), False)):
        if said := mpis.compile_collectives(c.mpi, c.log(".library"), *variant):
            raise Failure(f"the library does not compile: {last_words(said)}")
        library = {"LD_PRELOAD": str(mpis.collectives_library(c.mpi, variant[0]))}
        ended = c.start(5, "far_persistent", "many", 400, 3, *words, env={**env, **library}, suffix=variant[0]).wait(120)
        must_pass(ended)
        if all_run == (TAGS_USED_UP in ended.output) or not operations_run(ended.output) & set(PERSISTENT):
            raise Failure(f"tags were{'' if all_run else ' not'} used up, or the library ran nothing")
    return "6,000 made, 400 with few tags, and 12,800 starts"


# What the lab `sites` carries, and the least and the most that a busy machine makes of it. Mbit/s.
LINK_MBIT, LINK_MIN_MBIT, LINK_MAX_MBIT = 1000, 100, 2000


def rate(c):
    """The library measures the rate of the link, and all ranks change their choices in the same call."""
    env = {"ISTHMUS_COLLECTIVES_TRACE": "1", "ISTHMUS_COLLECTIVES_PIN": "all:parallel"}
    words = ("far_comms", "steady", 20, "2M")
    ended = start(c, 4, words, env, "").wait(120)
    must_pass(ended)
    told = [int(rate) for rate in re.findall(r"isthmus-collectives: measured on 4 ranks: the link of a site carries (\d+) Mbit/s", ended.output)]
    if not told or not all(LINK_MIN_MBIT <= rate <= LINK_MAX_MBIT for rate in told):
        raise Failure(f"rates of a link of {LINK_MBIT} Mbit/s: {told}")
    # What the model expects of a call of the same length changes with the rate.
    expected = {}
    for call, ms in re.findall(r"isthmus-collectives: (\w+ of \d+ B) on .*; expected: .*parallel ([\d.]+) ms$", ended.output, re.M):
        expected.setdefault(call, set()).add(ms)
    if not any(len(times) > 1 for times in expected.values()):
        raise Failure(f"the measured rate changes nothing that the model expects: {expected}")
    ended = start(c, 4, words, {**env, "ISTHMUS_COLLECTIVES_RATE": "1Gbit"}, ".set").wait(120)
    must_pass(ended)
    if ": measured on" in ended.output:
        raise Failure("the rate is set, and yet measured")
    return f"a link of {LINK_MBIT} Mbit/s carries {', '.join(map(str, told))} Mbit/s"


def sessions(c):
    """A program that uses MPI by sessions only: the library runs its collectives, session after session."""
    env = {"ISTHMUS_COLLECTIVES_SITES": "0-1;2-4", "ISTHMUS_COLLECTIVES_TRACE": "1", **DETACHED[0]}
    # Open MPI's second session in one process crashes at its end, and Intel MPI's fails, also without the library.
    times = 3 if c.mpi.name == "mpich" else 1
    ended = start(c, 5, ("far_comms", "sessions", times), env, "").wait(120)
    must_pass(ended)
    # Open MPI cannot combine values without MPI_COMM_WORLD, so there reductions are left to it.
    combined = {"mpich": {"allreduce", "iallreduce"}, "intel": {"allreduce"}, "openmpi": set()}[c.mpi.name]
    wanted = {"barrier", "bcast", "allgather", *combined}
    if missed := wanted - operations_run(ended.output):
        raise Failure(f"the library did not run {', '.join(sorted(missed))}")
    if not re.search(r"isthmus-collectives: \d+ bcast by ", ended.output):
        raise Failure("no counts at the end of the last session")
    return f"{times} session(s), one after the other"


def standard_abi(c):
    """Random collectives, of a library and a program compiled by the standard ABI, give what the MPI's own give."""
    c = dataclasses.replace(c, mpi=mpis.STANDARD_ABI)
    said = mpis.compile_programs(c.mpi, [mpis.ROOT / "tests" / "mpi" / "far_collectives.c"], c.log(".compile"))
    if said:
        raise Failure(f"far_collectives.c does not compile: {last_words(said)}")
    for algorithm in ("leaders", "parallel"):
        env = {**SEGMENT, "ISTHMUS_COLLECTIVES_SITES": "0-2;3-5", "ISTHMUS_COLLECTIVES_PIN": f"all:{algorithm}"}
        must_pass(start(c, 6, ("far_collectives", SEED, 100, 300), env, f".{algorithm}").wait(120))
    return "200 random calls, both algorithms"


def threads(c):
    """Three threads call collectives at once, each on communicators of its own."""
    # Open MPI's own non-blocking collectives hang or crash if several threads use them (5.0.11, also over its own TCP). So
    # there all communicators have all ranks, in runs of a site: then the library leaves nothing to the MPI.
    whole = "openmpi" in c.mpi.name
    sites, words = ("0-1;2-4", ("whole",)) if whole else ("0,2;1,3-4", ())
    for algorithm in ("leaders", "parallel"):
        env = {**SEGMENT, **DETACHED[0], "ISTHMUS_COLLECTIVES_SITES": sites,
               "ISTHMUS_COLLECTIVES_PIN": f"all:{algorithm}"}
        must_pass(start(c, 5, ("far_collectives", SEED, 50, 300, 3, *words), env, f".{algorithm}").wait(120))
    return "three threads, both algorithms"


# A library that finds at most one site by measuring.
ONE_LANDMARK = ("-one", ("-DLANDMARKS_MAX=1",))


def too_many_sites(c):
    """If there are more sites than the library can measure, it leaves all calls of all communicators to the MPI."""
    if said := mpis.compile_collectives(c.mpi, c.log(".library"), *ONE_LANDMARK):
        raise Failure(f"the library does not compile: {last_words(said)}")
    env = {"ISTHMUS_COLLECTIVES_TRACE": "1", "LD_PRELOAD": str(mpis.collectives_library(c.mpi, ONE_LANDMARK[0]))}
    ended = c.start(4, "far_collectives", SEED, 20, 300, env=env, suffix="").wait(120)
    must_pass(ended)
    if "by measured round trips: 0 0 0 0\n" not in ended.output or operations_run(ended.output):
        raise Failure("the library found sites, or ran collectives")
    return "two sites are one too many"


# Fences of the library, and those that it leaves to the MPI: for some epochs, where one had calls that it does not run.
FENCES = re.compile(r"isthmus-collectives: (\d+) fences aggregated, (\d+) left to the MPI")


def windows(c):
    """Random epochs of MPI_Win_fence have the result that MPI defines, and the library runs most of them."""
    told = []
    for number, (ranks, sites) in enumerate(((5, "0-1;2-4"), (4, "0,2;1,3"), (3, "0;1;2"))):
        env = {"ISTHMUS_COLLECTIVES_SITES": sites, "ISTHMUS_COLLECTIVES_TRACE": "counts", "ISTHMUS_COLLECTIVES_WINDOWS": "1"}
        ended = start(c, ranks, ("far_windows", SEED + number, 120), env, f".{number}").wait(120)
        must_pass(ended)
        found = FENCES.search(ended.output)
        if not found or not int(found[1]) or not int(found[2]):
            raise Failure(f"fences with sites {sites}: {found[0] if found else 'none told'}")
        told.append(f"{found[1]} of {int(found[1]) + int(found[2])}")
    # All windows are left to the MPI where one rank has not switched them on, and where none has.
    switched_off = {name: value for name, value in env.items() if name != "ISTHMUS_COLLECTIVES_WINDOWS"}
    for suffix, words, env in (("apart", ("apart",), env), ("off", (), switched_off)):
        ended = start(c, ranks, ("far_windows", SEED, 20, *words), env, f".{suffix}").wait(60)
        must_pass(ended)
        if FENCES.search(ended.output):
            raise Failure(f"the library ran fences that were to be left to the MPI: {suffix}")
    return f"{', '.join(told)} fences aggregated"


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
    ended = start(c, 2, ("far_comms", "pinned", "bcast:best"), {"ISTHMUS_COLLECTIVES_SITES": "0;1"}, ".pinned").wait(60)
    words = 'isthmus_collectives_pin: "bcast:best": expected COLLECTIVE:ALGORITHM'
    if ended.timed_out or ended.status == 0 or f"isthmus-collectives: refused: {words}" not in ended.output:
        raise Failure(f"a wrong pin by info: exit {ended.status}, {last_words(ended.output)}")
    # Pins of the environment hold for all communicators but the one that has its own.
    env = {"ISTHMUS_COLLECTIVES_SITES": "0;1", "ISTHMUS_COLLECTIVES_PIN": "bcast:leaders", "ISTHMUS_COLLECTIVES_TRACE": "counts"}
    ended = start(c, 2, ("far_collectives", SEED, 30, 30), env, ".pins").wait(60)
    must_pass(ended)
    by = {algorithm: int(count) for count, algorithm in re.findall(r"isthmus-collectives: (\d+) bcast by (\w+) \(pinned\)", ended.output)}
    if by.get("mpi") != 1 or by.get("parallel") != 1 or by.get("leaders", 0) < 1:
        raise Failure(f"Bcasts by pin: {by}")
    return f"{len(trials) + 1} refused with what to do; pins of one communicator"


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
MPI4PY = ("test_cco_buf", "test_cco_nb_buf", "test_cco_pr_buf", "test_cco_obj", "test_cco_vec", "test_cco_nb_vec", "test_cco_pr_vec", "test_op",
          "test_msgzero")


def mpi4py(c):
    """mpi4py's tests of collectives, with three ranks at two sites."""
    tests = suite.Suite(c, 3, *MPI4PY)
    env = {**SEGMENT, **DETACHED[0], "ISTHMUS_COLLECTIVES_SITES": "0,2;1", "ISTHMUS_COLLECTIVES_PIN": "all:parallel", **preload(c)}
    command, launch_env = c.mpi.command(3, tests.program, c.transport, c.place, env)
    return tests.judge(process.run(command, launch_env, c.log(), 240))


# How a Fortran program gets to know MPI, and the options that the program and old interfaces need for it.
FORTRAN = {"mpif.h": ["-fallow-argument-mismatch"], "use mpi": ["-DUSE_MPI", "-fallow-argument-mismatch"], "use mpi_f08": ["-DUSE_MPI_F08"]}


def compile_fortran(c, interface, program):
    """The program with this interface, or why the MPI here has no such interface."""
    real = mpis.fortran_compiler()
    if not real:
        raise Skip("no Fortran compiler: apt-get install gfortran")
    if c.mpi.name == "debian-openmpi":
        words, env = ["mpif90.openmpi"], {"OMPI_FC": real}
    else:
        # Its wrapper knows its own compiler; its modules are of this one for two of the interfaces.
        base = c.mpi.folder
        modules = sorted(base.glob("include/mpi/gfortran/12.*"))
        words, env = [real, f"-I{base}/include", *(f"-I{folder}" for folder in modules)], {}
        words += [f"-L{base}/lib", f"-Wl,-rpath,{base}/lib"]
    source = mpis.ROOT / "tests" / "mpi" / "far_fortran.F90"
    libraries = [] if c.mpi.name == "debian-openmpi" else ["-lmpifort", "-lmpi"]
    build = process.run([*words, "-O1", "-Wall", *FORTRAN[interface], "-o", str(program), str(source), *libraries], env, c.log(".compile"), 60)
    if build.status != 0:
        raise Failure(f"{interface}: it does not compile: {last_words(build.output)}")


def fortran(c):
    """Each collective, called from Fortran by each interface, is run by the library, and gives what it must."""
    interfaces = list(FORTRAN) if c.mpi.name == "debian-openmpi" else list(FORTRAN)[:2]
    for number, interface in enumerate(interfaces):
        program = c.mpi.programs / f"far_fortran_{number}"
        compile_fortran(c, interface, program)
        for algorithm in ("leaders", "parallel"):
            env = {**SEGMENT, "ISTHMUS_COLLECTIVES_SITES": "0-1;2-4", "ISTHMUS_COLLECTIVES_PIN": f"all:{algorithm}",
                   "ISTHMUS_COLLECTIVES_TRACE": "1"}
            ended = start(c, 5, (program.name,), env, f".{number}.{algorithm}").wait(60)
            must_pass(ended)
            wanted = {*OPERATIONS, *(NONBLOCKING if c.mpi.name in NONBLOCKING_MPIS else ())}
            if missed := wanted - operations_run(ended.output):
                raise Failure(f"{interface}, {algorithm}: the library did not run {', '.join(sorted(missed))}")
    return f"{len(OPERATIONS)} collectives by {', '.join(interfaces)}"


CASES = {
    case.name: case
    for case in (
        Case("far-random", random_calls, places=("host",), mpis=MPIS),
        Case("far-standard-abi", standard_abi, places=("host",), mpis=("mpich",)),
        Case("far-threads", threads, places=("host",), mpis=MPIS),
        # The others have large counts.
        Case("far-taken-apart", taken_apart, places=("host",), mpis=("openmpi", "debian-openmpi")),
        Case("far-freed", freed, places=("host",), mpis=MPIS),
        Case("far-buffers", buffers, places=("host",), mpis=MPIS),
        Case("far-late", late, places=("host",), mpis=MPIS),
        # Open MPI's errors go to the communicator of the request, so the library sets no handlers there.
        # With Intel MPI the handler is lost, for a reason that is not known yet.
        Case("far-error-handler", error_handler, places=("host",), mpis=("mpich",)),
        Case("far-reproducible", reproducible, places=("host",), mpis=("mpich", "openmpi", "debian-openmpi")),
        Case("far-persistent", persistent, places=("host",), mpis=PERSISTENT_MPIS),
        Case("far-persistent-orders", persistent_orders, places=("host",), mpis=PERSISTENT_MPIS),
        Case("far-persistent-errors", persistent_errors, places=("host",), mpis=PERSISTENT_MPIS),
        Case("far-persistent-tags", persistent_tags, places=("host",), mpis=PERSISTENT_MPIS),
        Case("far-rate", rate, places=("sites",), mpis=("mpich", "openmpi")),
        Case("far-sessions", sessions, places=("host",), mpis=("mpich", "openmpi", "intel")),
        Case("far-windows", windows, places=("host",), mpis=("mpich", "intel")),
        Case("far-sites", sites_found, places=("host", "sites"), mpis=MPIS),
        Case("far-too-many-sites", too_many_sites, places=("sites",), mpis=("mpich",)),
        Case("far-training", training, places=("sites",), mpis=MPIS),
        Case("far-killed", killed_rank, places=("host",), mpis=MPIS),
        # Debian's has no mpi4py.
        Case("far-mpi4py", mpi4py, places=("host",), mpis=("mpich", "openmpi", "intel")),
        Case("far-settings", settings, places=("host",), mpis=MPIS),
        # Those here that have Fortran bindings.
        Case("far-fortran", fortran, places=("host",), mpis=("debian-openmpi", "intel")),
    )
}

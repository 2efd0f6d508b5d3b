"""MPICH's own test suite, from Debian's source package, on the MPICH of PyPI.

Its testlists say what is run, with how many ranks and for how long, and what must be
seen; its configure and makefiles build the programs. Read as its runtests does.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from harness import mpis, process

from . import debian, parts
from .table import ABSENT, BUILD, FAIL, OURS, PASS, ROOT, TIMEOUT, TRANSPORT, Case, Outcome, Plan, Suite, Unavailable

PLAN = Path(__file__).resolve().parent.parent / "mpich.txt"
WORK = BUILD / "mpich"
CONFIGURED = ["--disable-fortran", "--disable-cxx", "--disable-static", "--disable-dependency-tracking"]
CONFIGURED += ["--enable-threads=multiple", "--with-thread-package=posix", "CFLAGS=-O1 -w"]
# What a test may take whose testlist says nothing of it, and the least that any may:
# their limits are for a machine that does nothing else.
SECONDS, AT_LEAST = 180, 60
# Tests that want this much memory run with nothing beside them; more is not wanted.
ALONE_GIB, GIB_MAX = 1.0, 16.0
# Ranks give different lengths; with the collectives library a rank that sees an error stands alone (docs/collectives.md).
WRONG = re.compile(r"^errors/coll/i?bcastlength ")
NO_ERRORS = re.compile(r"^\s*No [Ee]rrors\s*$", re.M)


@dataclass
class Test:
    """A line of a testlist."""

    folder: str
    program: str
    ranks: int
    args: list = field(default_factory=list)
    env: dict = field(default_factory=dict)
    launcher_args: list = field(default_factory=list)
    options: dict = field(default_factory=dict)

    @property
    def name(self):
        words = [f"{self.folder}/{self.program}", str(self.ranks), *self.args]
        return " ".join(words + [f"{key}={value}" for key, value in self.env.items()])

    @property
    def gib(self):
        """The memory that its list says it wants."""
        return float(self.options.get("mem", 0))

    @property
    def alone(self):
        """Whether nothing may run beside it: files of the I/O tests have all the same name."""
        return self.gib > ALONE_GIB or "io" in self.folder.split("/")

    @property
    def seconds(self):
        return max(float(self.options.get("timeLimit") or SECONDS), AT_LEAST)

    @property
    def launcher_env(self):
        """The launcher's own environment. One test wants the launcher to end it, by its limit."""
        ended_by_it = self.options.get("resultTest") == "TestErrFatal" and "timeLimit" in self.options
        return {**self.env, "MPIEXEC_TIMEOUT": self.options["timeLimit"]} if ended_by_it else self.env


def prepare(options):
    mpi = mpis.MPIS["mpich"]
    if mpi.missing():
        raise Unavailable(f"{mpi.missing()}")
    configured(debian.source("mpich", "test/mpi"), mpi)
    cases = [Case(test.name, test, test.alone) for test in tests(WORK, "")]
    chosen, skipped = Plan(PLAN).chosen(cases, options)
    kept = []
    for case in chosen:
        if case.body.options.get("xfail"):
            skipped.setdefault("MPICH's own list expects it to fail", []).append(case.name)
        elif options.sites and WRONG.match(case.name):
            skipped.setdefault("not a valid program: the rank with an error leaves further collectives to the MPI, and the others wait for it", []).append(case.name)
        elif case.body.gib > GIB_MAX:
            skipped.setdefault(f"wants more than {GIB_MAX:.0f} GiB of memory", []).append(case.name)
        else:
            kept.append(case)
    compiled(kept, options)
    title, library = f"MPICH's tests{', over Isthmus in two parts' if options.parts else ''}", {}
    if options.sites:
        title, library = f"MPICH's tests with the collectives library, sites {options.sites}", collectives_library(mpi, options)
    return Suite(title, kept, lambda case, provider: perform(case.body, provider, mpi, options, library if provider == OURS else None), skipped)


def collectives_library(mpi, options):
    """The environment of ranks that load the collectives library."""
    said = mpis.compile_collectives(mpi, options.logs / "library.log")
    if said:
        raise Unavailable(f"the collectives library does not compile: {said}")
    env = {"LD_PRELOAD": str(mpis.collectives_library(mpi)), "ISTHMUS_COLLECTIVES_SITES": options.sites, "ISTHMUS_COLLECTIVES_SEGMENT": "1KiB"}
    return {**env, **({"ISTHMUS_COLLECTIVES_PIN": options.pin} if options.pin else {})}


# --- building ------------------------------------------------------------------


def configured(source, mpi):
    if (WORK / "Makefile").exists():
        return
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    print("mpich: configuring its tests", flush=True)
    log = WORK / "configure.out"
    with open(log, "wb") as output:
        command = [source / "configure", f"--with-mpi={mpi.folder}", *CONFIGURED]
        done = subprocess.run(command, cwd=WORK, stdout=output, stderr=subprocess.STDOUT)
    if done.returncode:
        (WORK / "Makefile").unlink(missing_ok=True)
        raise Unavailable(f"configure failed, see {log}")
    for folder in ("util", "dtpools"):
        make(folder, ["all"])


def compiled(cases, options):
    """Builds the cases' programs, folder by folder. What does not build fails as a test."""
    folders = {}
    for case in cases:
        if not program(case.body).exists():
            folders.setdefault(case.body.folder, set()).add(case.body.program)
    if folders:
        print(f"mpich: compiling {sum(map(len, folders.values()))} programs", flush=True)
    for folder, names in folders.items():
        make(folder, sorted(names))


def make(folder, targets):
    with open(WORK / "make.out", "ab") as output:
        subprocess.run(["make", "-k", "-j2", "-C", WORK / folder, *targets], stdout=output, stderr=subprocess.STDOUT)


def program(test):
    return WORK / test.folder / test.program


# --- the testlists ---------------------------------------------------------------


def tests(build, folder):
    """The tests of a folder and those below it, in the order of its testlists."""
    found = []
    for line in testlist(build, folder):
        words = re.sub(r"#.*", "", line).split()
        if not words or words[0].startswith("!"):
            continue
        below = f"{folder}/{words[0]}".lstrip("/")
        if (build / below).is_dir():
            found += tests(build, below)
        elif folder:
            found.append(parsed(folder, words))
    return found


def testlist(build, folder):
    """A list that configure wrote is in the build's folder, one that it need not in the source's."""
    source = BUILD / "source" / f"mpich-{debian.this_release()}" / "test" / "mpi"
    paths = (build / folder / "testlist", source / folder / "testlist")
    return next((path.read_text().splitlines() for path in paths if path.exists()), [])


def parsed(folder, words):
    """A test by its line: program [ranks [key=value ...]]."""
    folder, _, name = f"{folder}/{words[0]}".rpartition("/")
    test = Test(folder, name, int(words[1]) if len(words) > 1 else 2)
    for key, _, value in (word.partition("=") for word in words[2:]):
        if key == "arg":
            test.args.append(value)
        elif key == "env":
            variable, _, setting = value.partition("=")
            test.env[variable] = setting
        elif key == "mpiexecarg":
            test.launcher_args.append(value)
        else:
            test.options[key] = value
    return test


# --- running ---------------------------------------------------------------------


def perform(test, provider, mpi, options, more=None):
    label = re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{test.name}.{TRANSPORT[provider]}")
    log = options.logs / f"{label[:200]}.log"
    return run_in_parts(test, mpi, log) if options.parts and provider == OURS else run(test, provider, mpi, log, more)


def run_in_parts(test, mpi, log):
    """One run of a test whose ranks are two parts."""
    if not program(test).exists():
        return Outcome(FAIL, "does not build")
    if test.launcher_args:
        return Outcome(ABSENT, "arguments of mpiexec")
    ended = parts.run(mpi, test.ranks, [program(test), *test.args], test.name, log, test.seconds, test.env, program(test).parent)
    return Outcome(TIMEOUT, f"{test.seconds:.0f} s") if ended.timed_out else judge(test, ended)


def run(test, provider, mpi, log, more=None, at_least=0):
    """One run of a test, whose ranks get `more` environment, in its time or `at_least` seconds."""
    if not program(test).exists():
        return Outcome(FAIL, "does not build")
    command, env = mpi.command(test.ranks, [str(program(test)), *test.args], TRANSPORT[provider], env={**test.env, **(more or {})})
    launcher = command.index(mpi.launcher()) + 1
    command[launcher:launcher] = test.launcher_args
    seconds = max(test.seconds, at_least)
    ended = process.run(command, {**env, **test.launcher_env}, log, seconds, cwd=program(test).parent)
    if ended.timed_out:
        return Outcome(TIMEOUT, f"{seconds:.0f} s; stacks: {log.with_suffix('.stacks')}")
    return judge(test, ended)


def judge(test, ended):
    """As runtests judges: "No Errors" and nothing else, or what the test's resultTest wants."""
    how = test.options.get("resultTest", "")
    if how in ("TestStatus", "TestErrFatal"):
        return Outcome(PASS) if ended.status else Outcome(FAIL, "ended with status 0, must not")
    if how == "TestStatusNoErrors" and not ended.status:
        return Outcome(FAIL, "ended with status 0, must not")
    if not how and ended.status:
        return Outcome(FAIL, f"status {ended.status}: {first_words(ended.output)}")
    if not NO_ERRORS.search(ended.output):
        return Outcome(FAIL, f"no 'No Errors': {first_words(ended.output)}")
    others = [line for line in ended.output.splitlines() if not re.match(r"^\s*(No [Ee]rrors|Test Passed)?\s*$", line)]
    if others and not how:
        return Outcome(FAIL, f"it says: {others[0][:100]}")
    return Outcome(PASS)


def first_words(output):
    lines = [line.strip() for line in output.splitlines() if line.strip(" =-\t*|")]
    telling = [line for line in lines if re.search(r"error|abort|fail|signal|expect", line, re.I)]
    return (telling or lines or ["nothing"])[0][:100]

"""Start commands with a hard time limit, and end all that they started."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from . import stacks

# The files of stacks of all commands whose time was up until now. A test that adds one has hung, whatever else it says.
hangs = []

# What a command prints of a process that it waited for in vain, and whose stacks it kept.
HUNG = re.compile(r"^HUNG: .*; stacks: (.+)$", re.M)

# Every process of a test carries this variable. Launchers' daemons leave their
# process group, so after a test the stragglers are found by it; nobody else's
# process has our value. A command that uses this module itself adds its own
# value to the one it was given, so that both find what it started.
MARK = "ISTHMUS_TEST_ID"

# Where the daemons of Open MPI 5 and 4 keep the files of a job, named by process id only. A
# daemon that crashed or was killed leaves them, so each command gets a folder of its own.
SESSIONS = ("PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_orte_tmpdir_base")


class Failure(Exception):
    """The test did not see what it must see; the text says what it saw."""


@dataclass
class Ended:
    """How a command ended: status is None when its time was up."""

    status: int | None
    output: str
    seconds: float

    @property
    def timed_out(self):
        return self.status is None


class Running:
    """A command under way, its output (both streams) going to a file."""

    def __init__(self, command, env, log: Path, cwd=None):
        self.mark = uuid.uuid4().hex
        self.folder = tempfile.mkdtemp(prefix="isthmus-test-")
        self.log = log
        self.command = command
        self.began = time.monotonic()
        log.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(log, "wb")
        self._file.write(("$ " + describe(command, env) + "\n").encode())
        self._file.flush()
        self._skip = self._file.tell()
        self.process = subprocess.Popen(
            command,
            env={
                **os.environ,
                **dict.fromkeys(SESSIONS, self.folder),
                "PYTHONFAULTHANDLER": "1",
                **env,
                MARK: f"{os.environ.get(MARK, '')},{self.mark}",
            },
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=cwd,
        )

    def pids(self, name=None):
        """The processes of this command, its descendants included, by program name."""
        return [pid for pid in marked(self.mark) if name is None or program_of(pid) == name]

    def output(self):
        with open(self.log, "rb") as file:
            file.seek(self._skip)
            # Open MPI's launcher ends its help texts with a NUL, wherever they fall.
            return file.read().decode(errors="replace").replace("\0", "")

    def wait(self, seconds) -> Ended:
        """Waits, at most until `seconds` after the start, and leaves nothing running."""
        left = max(0.0, self.began + seconds - time.monotonic())
        try:
            status = self.process.wait(left)
        except subprocess.TimeoutExpired:
            status = None
            self.keep_stacks()
        took = time.monotonic() - self.began
        self.end()
        output = self.output()
        hangs.extend(Path(file) for file in HUNG.findall(output))
        return Ended(status, output, took)

    def keep_stacks(self):
        """Time is up: keeps where all its processes stand, beside its log, and counts a hang."""
        keep_stacks(self.pids(), self.log)

    def end(self):
        """Ends the command's process group and what left it."""
        for number, grace in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
            group_alive = self.process.poll() is None
            if group_alive:
                _signal_group(self.process.pid, number)
            stragglers = marked(self.mark)
            for pid in stragglers:
                _signal(pid, number)
            if not group_alive and not stragglers:
                break
            until = time.monotonic() + grace
            while time.monotonic() < until and (self.process.poll() is None or marked(self.mark)):
                time.sleep(0.02)
        shutil.rmtree(self.folder, ignore_errors=True)
        if not self._file.closed:
            self._file.close()


def run(command, env, log, seconds, cwd=None) -> Ended:
    return Running(command, env, log, cwd).wait(seconds)


def await_until(jobs, seen, seconds, what, also=(), look=0.05):
    """Waits until `seen()` is true, and returns its value.

    `what` says in a failure what was waited for: words, or a function that returns them. It is a failure that one of
    the jobs ends before. It is a hang that the time is up: the stacks of `jobs` and of `also` are kept. The time
    between two looks is `look` seconds.
    """
    until = time.monotonic() + seconds
    while True:
        # A job may do what is waited for, and end. So its state is read first.
        ended = [job for job in jobs if job.process.poll() is not None]
        late = time.monotonic() > until
        if value := seen():
            return value
        if ended or late:
            break
        time.sleep(look)
    words = what() if callable(what) else what
    if ended:
        raise Failure(f"ended with status {ended[0].process.returncode} before {words}: {last_words(ended[0].output())}")
    for job in (*jobs, *also):
        job.keep_stacks()
    raise Failure(f"no {words} after {seconds} s: {last_words(''.join(job.output() for job in jobs))}")


def ask(command, env, log, seconds):
    """Runs a command that may leave processes behind. Returns it, with its two outputs apart. Too long is a hang."""
    asked = subprocess.Popen(command, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, errors="replace")  # fmt: skip
    try:
        told = asked.communicate(timeout=seconds)
        return subprocess.CompletedProcess(command, asked.returncode, *told)
    except subprocess.TimeoutExpired:
        family = [asked.pid, *stacks.descendants(asked.pid)]
        keep_stacks(family, log)
        for pid in family:
            stacks.end(pid)
        asked.communicate()
        raise Failure(f"no end after {seconds} s: {describe(command, env)}") from None


def keep_stacks(pids, log):
    """Keeps the stacks of these processes beside the log, and counts a hang."""
    file = log.with_suffix(".stacks")
    hangs.append(file)
    stacks.keep(pids, file)


def last_words(output):
    """The line that most likely tells why: a FAIL, an error, or the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip(" =-\t*")]
    for pattern in (r"^FAIL ", r"panicked|Assertion failed|isthmus.*(error|refused|lost|gave up)", r"\berror\b|Abort", r"."):
        for line in lines:
            if re.search(pattern, line, re.I):
                return line[:200]
    return "no output"


def marked(mark):
    """The live processes whose environment carries the mark."""
    prefix, needle = f"{MARK}=".encode(), mark.encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if any(word.startswith(prefix) and needle in word for word in file.read().split(b"\0")):
                    found.append(int(entry))
        except OSError:
            continue
    return found


def program_of(pid):
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return None


def describe(command, env):
    words = [f"{key}={quoted(value)}" for key, value in sorted(env.items())]
    return " ".join(words + [quoted(str(word)) for word in command])


def quoted(word):
    plain = all(c.isalnum() or c in "-_./=:,@+" for c in word)
    return word if plain and word else "'" + word.replace("'", "'\\''") + "'"


def _signal_group(pid, number):
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass


def _signal(pid, number):
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass

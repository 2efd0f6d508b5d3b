"""Where processes stand that did not end in their time: stacks of all threads, and what Isthmus waits for."""

import os
import signal
import subprocess
import time
from pathlib import Path

from .mpis import ISTHMUS, ROOT

__all__ = ["ROOT", "descendants", "end", "keep"]

# For one question to one process. On an idle machine gdb needs 8 s to read the debug information of `isthmus`, and on
# a busy one, as after a hang, many times as long. Seconds.
PATIENCE = 120
# gdb's command: all threads, with no question asked and no symbols fetched.
GDB = ["gdb", "-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex", "thread apply all bt 40", "-p"]
# The same without debug information: the innermost frames, in less than a second.
GDB_QUICK = [*GDB[:-1], "--readnever", GDB[-1]]
SILENT = f"no answer in {PATIENCE} s\n"


def asked(command):
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=PATIENCE, text=True, errors="replace")
        return done.stdout
    except FileNotFoundError:
        return f"{command[0]} is not here: tools/bootstrap.sh base, or make build\n"
    except subprocess.TimeoutExpired:
        return SILENT


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "(it has ended)"


def is_python(pid):
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
    except OSError:
        return False


def state_of(pid):
    """What its endpoints wait for, by `isthmus state`, which asks in the network namespace of the process.

    Any process may have endpoints: Rust tests and the command itself have the engine linked in."""
    command = [str(ISTHMUS), "state", str(pid)]
    try:
        if os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net"):
            command = ["nsenter", "-t", str(pid), "-n", "--", *command]
    except OSError:
        pass
    return asked(command)


def descendants(pid):
    """The processes that this one started, and those that they did."""
    children = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += map(int, task.read_text().split())
        except OSError:
            pass
    return [one for child in children for one in (child, *descendants(child))]


def end(pid):
    """Ends a process that does not end by itself."""
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def keep(pids, file):
    """Writes the stacks of these processes and the state of their endpoints to a file; Python's go to their own logs."""
    with open(file, "w") as out:
        for pid in pids:
            out.write(f"==== {pid}: {command_line(pid)}\n")
            out.write(state_of(pid))
            native = asked([*GDB, str(pid)])
            out.write(native if native != SILENT else native + asked([*GDB_QUICK, str(pid)]))
            out.flush()
    # faulthandler writes the Python stacks of all threads to the process's error output.
    pythons = [pid for pid in pids if is_python(pid)]
    for pid in pythons:
        try:
            os.kill(pid, signal.SIGABRT)
        except (ProcessLookupError, PermissionError):
            pass
    if pythons:
        time.sleep(1)

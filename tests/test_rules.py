"""What a run of the MPI tests makes of tests that fail, hang and pass at their second attempt."""

import json
import os
import re
import subprocess
import sys

from harness import mpis

# A plugin that puts these cases in the place of all others.
CASES = """
import functools, pathlib, pytest, unsteady, test_mpi
from harness import process
from harness.cases import Case, Failure

unsteady.note = functools.partial(unsteady.note, file=pathlib.Path("unsteady.json"))
attempts = []

def fails(c):
    attempts.append(c.case)
    raise Failure(f"attempt {attempts.count(c.case)}")

def shaky(c):
    attempts.append(c.case)
    if attempts.count(c.case) == 1:
        raise Failure("once")
    return "well"

def hangs(c):
    attempts.append(c.case)
    assert attempts.count(c.case) == 1
    process.run(["sleep", "60"], {}, c.log(), 0.1)
    raise Failure("no end")

test_mpi.compile_all = lambda name, logs: None
test_mpi.mpis.MPIS["mpich"].missing = lambda: None
test_mpi.CASES = [Case(body.__name__, body, places=("host",), mpis=("mpich",)) for body in (hangs, shaky, fails)]
"""


def run(folder, *words):
    (folder / "rules.py").write_text(CASES)
    command = [sys.executable, "-m", "pytest", "-c", mpis.ROOT / "pytest.ini", "-p", "rules", mpis.ROOT / "tests" / "test_mpi.py",
               "--logs", folder, "-o", f"cache_dir={folder}/cache", *words]  # fmt: skip
    path = os.pathsep.join(map(str, (folder, mpis.ROOT / "tests", mpis.ROOT / "tools")))
    return subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)


def test_failures_get_a_second_attempt_and_hangs_none(tmp_path):
    ended = run(tmp_path)
    name = r"FAILED \S*test_mpi.py::test\[mpich.isthmus.host.%s\] - Failed: %s"
    assert ended.returncode == 1, ended.stdout
    assert re.search(name % ("hangs", rf"no end; stacks: {tmp_path}/mpich.isthmus.host.hangs.stacks$"), ended.stdout, re.M), ended.stdout
    assert re.search(name % ("fails", r"attempt 2 \[mpich.isthmus.host.fails.log\]$"), ended.stdout, re.M), ended.stdout
    assert "2 failed, 1 unsteady in" in ended.stdout, ended.stdout


def test_the_second_run_in_which_a_test_is_unsteady_fails(tmp_path):
    first, second = (run(tmp_path, "-k", "shaky") for _ in range(2))
    assert first.returncode == 0 and re.search(r"^unsteady: .*shaky\]: unsteady in 1 of .*: once$", first.stdout, re.M), first.stdout
    assert second.returncode == 1 and re.search(r"^FAILED: .*shaky\]: unsteady in 2 of .*: once$", second.stdout, re.M), second.stdout
    runs = json.loads((tmp_path / "unsteady.json").read_text())["MPI tests"]
    assert [len(run) for run in runs] == [1, 1]

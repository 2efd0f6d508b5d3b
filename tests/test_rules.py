"""What a run of the MPI tests makes of tests that fail, hang and pass at their second attempt."""

import argparse
import functools
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import unsteady
from harness import mpis, process, stacks
from others import mpi4py as others_mpi4py
from others import table

# A plugin that puts these cases in the place of all others.
CASES = """
import functools, pathlib, pytest, unsteady, test_mpi
from harness import cases, process
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

# Waits beside that for a job's end, each for something that does not come.
WAITS = {
    "ranks": lambda c, job: cases.ranks_of(job, 2, "no-such-program", 0.1),
    "file": lambda c, job: cases.await_file(c.scratch("none"), job, 0.1),
    "output": lambda c, job: cases.await_output(job, "no such words", 0.1),
    "journal": lambda c, job: cases.await_journal([job], c.logs, 0.1),
    "ask": lambda c, job: process.ask(["sleep", "60"], {}, c.log(), 0.1),
}

def waits(c):
    attempts.append(c.case)
    assert attempts.count(c.case) == 1
    job = process.Running(["sleep", "60"], {}, c.log())
    try:
        WAITS[c.case](c, job)
    finally:
        job.end()

# A job that ends before it did what is waited for, at the first attempt.
def ends(c):
    attempts.append(c.case)
    if attempts.count(c.case) == 2:
        return "well"
    cases.await_output(process.Running(["sh", "-c", "echo last words; exit 3"], {}, c.log()), "ready", 60)

# Passes although a command did not end.
def mistaken(c):
    attempts.append(c.case)
    assert attempts.count(c.case) == 1
    process.run(["sleep", "60"], {}, c.log(), 0.1)
    return "well"

# A command that waited in vain itself says so.
def reports(c):
    attempts.append(c.case)
    assert attempts.count(c.case) == 1
    process.run(["echo", "HUNG: the sender; stacks: /of/the/sender.stacks"], {}, c.log(), 10)
    raise Failure("status 3")

test_mpi.compile_all = lambda name, logs: None
test_mpi.mpis.MPIS["mpich"].missing = lambda: None
bodies = {**dict.fromkeys(WAITS, waits), **{body.__name__: body for body in (hangs, shaky, fails, ends, mistaken, reports)}}
test_mpi.CASES = [Case(name, body, places=("host",), mpis=("mpich",)) for name, body in bodies.items()]
"""


def run(folder, *words):
    (folder / "rules.py").write_text(CASES)
    command = [sys.executable, "-m", "pytest", "-c", mpis.ROOT / "pytest.ini", "-p", "rules", mpis.ROOT / "tests" / "test_mpi.py",
               "--logs", folder, "-o", f"cache_dir={folder}/cache", *words]  # fmt: skip
    path = os.pathsep.join(map(str, (folder, mpis.ROOT / "tests", mpis.ROOT / "tools")))
    return subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)


def test_failures_get_a_second_attempt_and_hangs_none(tmp_path):
    ended = run(tmp_path, "-k", "hangs or shaky or fails")
    name = r"FAILED \S*test_mpi.py::test\[mpich.isthmus.host.%s\] - Failed: %s"
    assert ended.returncode == 1, ended.stdout
    assert re.search(name % ("hangs", rf"no end; stacks: {tmp_path}/mpich.isthmus.host.hangs.stacks$"), ended.stdout, re.M), ended.stdout
    assert re.search(name % ("fails", r"attempt 2 \[mpich.isthmus.host.fails.log\]$"), ended.stdout, re.M), ended.stdout
    assert re.search(r"2 failed, .*1 unsteady in", ended.stdout), ended.stdout


def test_the_second_run_in_which_a_test_is_unsteady_fails(tmp_path):
    first, second = (run(tmp_path, "-k", "shaky") for _ in range(2))
    assert first.returncode == 0 and re.search(r"^unsteady: .*shaky\]: unsteady in 1 of .*: once$", first.stdout, re.M), first.stdout
    assert second.returncode == 1 and re.search(r"^FAILED: .*shaky\]: unsteady in 2 of .*: once$", second.stdout, re.M), second.stdout
    kept = json.loads((tmp_path / "unsteady.json").read_text())["MPI tests"]
    assert list(kept.values()) == ["uu"]


def test_runs_of_other_tests_make_no_outcome_old(tmp_path):
    run(tmp_path, "-k", "shaky")
    for _ in range(unsteady.RUNS):
        unsteady.note("MPI tests", {"another": False}, tmp_path / "unsteady.json")
    again = run(tmp_path, "-k", "shaky")
    assert again.returncode == 1 and "unsteady in 2 of" in again.stdout, again.stdout


def test_an_outcome_is_forgotten_once_its_test_ran_so_often_again(tmp_path):
    file = tmp_path / "unsteady.json"
    outcomes = [unsteady.note("kind", {"test": shaky}, file) for shaky in (True, *[False] * (unsteady.RUNS - 2), True, True)]
    assert outcomes[0] == {"test": 1} and outcomes[-2:] == [{"test": 2}, {"test": 2}]
    for _ in range(unsteady.RUNS):
        unsteady.note("kind", {"test": False}, file)
    assert json.loads(file.read_text()) == {"kind": {}}


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"kind": 3}', '{"kind": [3]}'])
def test_a_file_that_cannot_be_read_is_as_none(tmp_path, text):
    (tmp_path / "unsteady.json").write_text(text)
    assert unsteady.note("kind", {"test": True, "other": False}, tmp_path / "unsteady.json") == {"test": 1}


def test_the_file_of_an_earlier_version_counts(tmp_path):
    (tmp_path / "unsteady.json").write_text(json.dumps({"kind": [["test"], [], ["other"]]}))
    assert unsteady.note("kind", {"test": True, "third": True, "other": False}, tmp_path / "unsteady.json") == {"test": 2, "third": 1}
    assert json.loads((tmp_path / "unsteady.json").read_text()) == {"kind": {"other": "..u.", "test": "u..u", "third": "u"}}


# A stand-in for cargo, with one package of one test program. Each run of the tests prints the next of `runs`.
CARGO = """#!/usr/bin/env python3
import json, pathlib, sys
runs = {runs!r}
if "metadata" in sys.argv:
    print(json.dumps({{"packages": [{{"id": "the id", "name": "pack", "targets": [{{"kind": ["test"], "name": "prog"}}]}}]}}))
elif "--no-run" in sys.argv:
    target = {{"kind": ["test"], "name": "prog"}}
    print(json.dumps({{"reason": "compiler-artifact", "package_id": "the id", "target": target, "executable": "/t/deps/prog-0a1b"}}))
else:
    count = pathlib.Path("count")
    number = len(count.read_text()) if count.exists() else 0
    count.write_text("x" * (number + 1))
    print("     Running tests/prog.rs (target/debug/deps/prog-0a1b)")
    print(runs[number])
    if "FAILED" in runs[number]:
        print("error: test failed, to rerun pass `-p pack --test prog`")
        sys.exit(101)
"""
FAILS = "test good ... ok\ntest bad ... FAILED\nthread 'bad' (7) panicked at prog.rs:3:\nexpected so\ntest result: FAILED. 1 passed; 1 failed;"
PASSES = "test bad ... ok\ntest result: ok. 1 passed; 0 failed;"


def run_rust(folder, *runs, words=()):
    """tools/rust-tests.py, with a stand-in for cargo that prints these outputs."""
    (folder / "cargo").write_text(CARGO.format(runs=runs))
    (folder / "cargo").chmod(0o755)
    (folder / "count").unlink(missing_ok=True)
    text = f"""import functools, pathlib, runpy, sys, unsteady
unsteady.note = functools.partial(unsteady.note, file=pathlib.Path("unsteady.json"))
sys.argv = ["rust-tests.py", *{words!r}]
runpy.run_path({str(mpis.ROOT / "tools" / "rust-tests.py")!r}, run_name="__main__")
"""
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(mpis.ROOT / "tools")}
    return subprocess.run([sys.executable, "-c", text], cwd=folder, env=env, capture_output=True, text=True)


def test_the_second_run_in_which_a_rust_test_is_unsteady_fails(tmp_path):
    first, other, second = (run_rust(tmp_path, *runs) for runs in ((FAILS, PASSES), (PASSES,), (FAILS, PASSES)))
    assert first.returncode == 0 and "unsteady: -p pack --test prog bad: unsteady in 1 of" in first.stdout, first.stdout + first.stderr
    assert other.returncode == 0, other.stdout
    assert second.returncode == 1 and "FAILED: -p pack --test prog bad: unsteady in 2 of" in second.stdout, second.stdout
    assert json.loads((tmp_path / "unsteady.json").read_text()) == {"Rust tests": {"-p pack --test prog bad": "u.u"}}


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """A run of the other cases: its folder and what it printed."""
    folder = tmp_path_factory.mktemp("others")
    ended = run(folder, "-k", "not (hangs or shaky or fails)")
    assert ended.returncode == 1, ended.stdout
    return folder, ended.stdout


@pytest.mark.parametrize("wait", ["ranks", "file", "output", "journal", "ask"])
def test_every_wait_of_the_harness_that_ends_by_its_time_is_a_hang(others, wait):
    folder, said = others
    kept = folder / f"mpich.isthmus.host.{wait}.stacks"
    assert re.search(rf"FAILED .*host.{wait}\] - .*no .* after 0.1 s: .*; stacks: {kept}$", said, re.M), said
    assert kept.exists()


def test_a_job_that_ends_before_what_is_waited_for_gets_a_second_attempt(others):
    assert "1 unsteady in" in others[1], others[1]
    assert "at the first attempt: ended with status 3 before output 'ready': last words" in others[1], others[1]


def test_a_command_that_does_not_end_fails_a_test_that_passes(others):
    assert re.search(r"FAILED .*it says 'well', but .*; stacks: \S+mistaken.stacks$", others[1], re.M), others[1]


def test_a_command_that_reports_a_hang_has_hung(others):
    assert re.search(r"FAILED .*status 3; stacks: /of/the/sender.stacks$", others[1], re.M), others[1]


def test_no_case_waits_by_a_loop_of_its_own():
    """Such a loop would not keep stacks, and its time-out would get a second attempt."""
    for file in sorted((mpis.ROOT / "tests" / "harness").glob("*.py")):
        if file.name not in ("process.py", "stacks.py"):
            assert not re.search(r"while .*\bmonotonic\(|subprocess\.run\([^)]*\btimeout=", file.read_text()), file.name


# As libtest shows a failed test's output. The marker may be the text of a panic, or a line by itself.
@pytest.mark.parametrize("marker", ["HUNG: no answer in 30 s", "thread 'bad' (7) panicked at prog.rs:3:\nHUNG: no answer in 30 s"])
def test_a_rust_test_that_reached_its_own_limit_has_hung_and_gets_no_second_attempt(tmp_path, marker):
    ended = run_rust(tmp_path, FAILS.replace("FAILED\n", f"FAILED\n\n---- bad stdout ----\n{marker}\n", 1), PASSES)
    assert ended.returncode == 1 and (tmp_path / "count").read_text() == "x", ended.stdout + ended.stderr
    assert "\nFAILED: a test has hung, and gets no second attempt: no answer in 30 s\n" in ended.stdout, ended.stdout
    assert "\nFAILED: -p pack --test prog bad" in ended.stdout, ended.stdout


def test_a_rust_test_that_passes_may_print_the_marker(tmp_path):
    assert run_rust(tmp_path, f"HUNG: says a child\n{PASSES}").returncode == 0


@pytest.mark.skipif(not shutil.which("gdb"), reason="gdb is not here: tools/bootstrap.sh base")
def test_a_hang_leaves_native_stacks_and_those_of_python(tmp_path):
    log = tmp_path / "hang.log"
    ended = process.run([sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)"], {}, log, 2)
    assert ended.timed_out and "begun" in ended.output
    assert re.search(r"^Thread 1 \(.*\n#0 ", log.with_suffix(".stacks").read_text(), re.M), log.with_suffix(".stacks").read_text()
    assert "Current thread" in ended.output and 'File "<string>", line 1' in ended.output, ended.output


# Starts a command in this network namespace, and in one of its own.
NAMESPACES = {"same": [], "other": ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]}


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_hang_leaves_the_state_of_endpoints_of_a_program_that_has_the_engine_linked_in(tmp_path, monkeypatch, namespace):
    if not mpis.ISTHMUS.exists():
        pytest.skip("build/ has no command: make build")
    if namespace == "other" and os.geteuid() != 0:
        pytest.skip("a network namespace takes root")
    (tmp_path / "serve.toml").write_text(f'listen = "127.0.0.1:0"\nplain = true\n[export.data]\npath = "{tmp_path}"\n')
    # Its stacks take gdb 8 s and more.
    monkeypatch.setattr(stacks, "GDB", ["true"])
    command = [*NAMESPACES[namespace], str(mpis.ISTHMUS), "serve", "--config", str(tmp_path / "serve.toml")]
    job = process.Running(command, {"ISTHMUS_LOG": "info", "NO_COLOR": "1"}, tmp_path / "serve.log")
    try:
        process.await_until([job], lambda: "serving at" in job.output(), 60, "service")
        job.keep_stacks()
    finally:
        job.end()
    said = (tmp_path / "serve.stacks").read_text()
    assert re.search(r"^endpoint isthmus://0\.0/127\.0\.0\.1:", said, re.M), said


def test_stacks_are_kept_of_processes_that_give_no_answer(tmp_path, monkeypatch):
    answers = {"gdb": iter([stacks.SILENT, "Thread 1 (quick)\n"]), str(mpis.ISTHMUS): iter(["the state\n"])}
    monkeypatch.setattr(stacks, "asked", lambda command: next(answers[command[0]]))
    with subprocess.Popen(["sleep", "60"]) as asleep:
        stacks.keep([asleep.pid], tmp_path / "stacks")
        asleep.kill()
    assert (tmp_path / "stacks").read_text().splitlines()[1:] == ["the state", "no answer in 120 s", "Thread 1 (quick)"]


class Suite:
    """A suite of one case, whose outcomes come one after the other, over Isthmus and over stock."""

    def __init__(self, monkeypatch, folder):
        self.options = argparse.Namespace(at_once=1, lazy=True, provider=None, logs=folder)
        monkeypatch.setattr(table.unsteady, "note", functools.partial(unsteady.note, file=folder / "unsteady.json"))

    def run(self, ours, stock=table.PASS):
        """Exit status of a run with these verdicts, one for each attempt."""
        attempts = {table.OURS: iter(ours), table.THEIRS: itertools.repeat(stock)}
        perform = lambda case, provider: table.Outcome(next(attempts[provider]), "its words")
        tables = {"suite": table.judged(table.Suite("suite", [table.Case("rma/one 2")], perform), self.options)}
        table.summary(tables)
        return table.status(tables)


@pytest.fixture
def suite(monkeypatch, tmp_path):
    return Suite(monkeypatch, tmp_path)


def test_a_suites_test_that_passes_at_its_second_attempt_twice_fails(suite, capsys):
    assert suite.run([table.FAIL, table.PASS]) == 0
    assert "\nunsteady: rma/one 2: unsteady in 1 of its last 20 runs here; at the first attempt: its words\n" in capsys.readouterr().out
    assert suite.run([table.PASS]) == 0
    assert suite.run([table.FAIL, table.PASS]) == 1
    assert "\nFAILED: rma/one 2: unsteady in 2 of its last 20 runs here: this run fails; find the cause\n" in capsys.readouterr().out


@pytest.mark.parametrize("ours", [[table.TIMEOUT], [table.FAIL, table.TIMEOUT]])
@pytest.mark.parametrize("stock", [table.PASS, table.TIMEOUT])
def test_a_suites_test_that_does_not_end_fails(suite, capsys, ours, stock):
    assert suite.run(ours, stock) == 1
    assert "\nFAILED: rma/one 2: TIME OUT: its words\n" in capsys.readouterr().out


def test_a_suites_test_that_fails_twice_fails_unless_it_does_over_stock(suite, capsys):
    assert suite.run([table.FAIL, table.FAIL], table.FAIL) == 0
    assert suite.run([table.FAIL, table.FAIL]) == 1
    assert "\nFAILED: rma/one 2: the stock provider is better: FAIL its words\n" in capsys.readouterr().out


def test_mpi4pys_tests_that_all_ran_but_do_not_end_have_timed_out():
    ended = process.Ended(None, "", 60.0)
    assert others_mpi4py.judge(["Ran 7 tests in 3 s"], ended).verdict == table.TIMEOUT


def tool(name):
    """A script of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(name.replace("-", "_"), mpis.ROOT / "tools" / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """tools/measured.py with a page and a folder of its own."""
    module = tool("measured")
    (tmp_path / "measured").mkdir()
    monkeypatch.setattr(module, "PAGE", tmp_path / "measured.md")
    monkeypatch.setattr(module, "DATA", tmp_path / "measured")
    return module


def run_measured(module, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["measured.py", *words])
    return module.main()


def test_the_tables_of_docs_measured_are_what_their_files_say(monkeypatch):
    assert run_measured(tool("measured"), monkeypatch, "--check") == 0


def test_a_table_shows_single_runs_or_medians_and_a_changed_file_is_noticed(measured, monkeypatch):
    rows = ["24 ms,Isthmus,0 %,,,samples,2,0.98 0.97", "24 ms,Isthmus,1 %,s,*,samples,4,1.5 1.25 9 1.75", "24 ms,iperf3,1 %,s,†,limit,1,60"]
    data = measured.DATA / "runs.csv"
    data.write_text("\n".join(["# where from", "RTT,Program,Loss,unit,mark,kept,runs,values", *rows]) + "\n")
    measured.PAGE.write_text("Before.\n\n<!-- table runs: RTT, Program | Loss -->\nold\n<!-- end -->\n\nAfter.\n")
    assert "run tools/measured.py" in run_measured(measured, monkeypatch, "--check")
    assert run_measured(measured, monkeypatch) == 0
    assert run_measured(measured, monkeypatch, "--check") == 0
    assert measured.PAGE.read_text().splitlines()[2:8] == [
        "<!-- table runs: RTT, Program | Loss -->",
        "| RTT | Program | 0 % | 1 % |",
        "|---|---|---|---|",
        "| 24 ms | Isthmus | 0.98, 0.97 | 1.62 (1.25 to 9.00) s* |",
        "| | iperf3 | | not ended after 60 s† |",
        "<!-- end -->",
    ]
    data.write_text(data.read_text().replace("0.97", "0.96"))
    assert "run tools/measured.py" in run_measured(measured, monkeypatch, "--check")
    data.rename(measured.DATA / "other.csv")
    data.write_text("RTT,Program,Loss,unit,mark,kept,runs,values\n")
    assert "no table for other.csv" in run_measured(measured, monkeypatch)


LINK = {"rate": "1Gbit", "rtt": "24ms", "loss": "0%", "mtu": 9000}
RUN = {"version": "1.0", "kernel": "6.18", "work": "stream", "bytes": 1000, "link": LINK, "contender": "isthmus", "floor_s": 4.0, "seconds": 5.0, "emulator": {}}
WAN = "# isthmus bench wan\n# Isthmus 0.9, kernel 6.1\nRTT,Program,Loss,unit,mark,kept,runs,values\n24 ms,Isthmus,0 %,,,median,5,0.9\n"


def take(module, monkeypatch, file, runs):
    """`--take` with these runs and the table wan, whose file is `file` at first."""
    (module.DATA / "wan.csv").write_text(file)
    module.PAGE.write_text("<!-- table wan: RTT, Program | Loss -->\n<!-- end -->")
    samples = module.DATA.parent / "samples.jsonl"
    samples.write_text("".join(json.dumps(sample) + "\n" for sample in runs))
    return run_measured(module, monkeypatch, "--take", str(samples), "wan")


def test_samples_of_bench_wan_become_rows_of_single_runs(measured, monkeypatch):
    runs = [RUN, {**RUN, "seconds": 4.0, "emulator": {"spoiled": True}}, {**RUN, "seconds": None, "not_ended_s": 8.0}]
    failed = {**RUN, "contender": "stock-bbr", "seconds": None}
    assert take(measured, monkeypatch, WAN, [*runs, failed, {**RUN, "contender": "iperf3-cubic-x8"}]) == 0
    assert measured.PAGE.read_text().splitlines()[3:] == [
        "| 24 ms | Isthmus | 0.800, 1.000, 0.500* |",
        "| | stock `tcp`, `bbr` | 0.000 |",
        "| | iperf3 `cubic` x8 | 0.800 |",
        "<!-- end -->",
    ]
    assert measured.PAGE.read_text().endswith("-->\n")
    assert (measured.DATA / "wan.csv").read_text().splitlines()[:2] == ["# isthmus bench wan", "# Isthmus 1.0, kernel 6.18"]


def test_links_of_a_catalogue_have_a_row_for_each_size_of_packets(measured, tmp_path):
    runs = [{**RUN, "link": {**LINK, "name": "jitter 3 ms", "mtu": mtu}} for mtu in (1500, 9000)]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in runs))
    data = measured.DATA / "wild.csv"
    data.write_text("# isthmus bench wan --links wild\nLink,Program,unit,mark,kept,runs,values\n")
    assert measured.take(tmp_path / "samples.jsonl", "wild") is None
    assert [row["Link"] for row in measured.read(data)] == ["jitter 3 ms; 24ms, MTU 1500", "jitter 3 ms; 24ms, MTU 9000"]


@pytest.mark.parametrize(
    ("file", "runs", "why"),
    [
        (WAN, [], "has no samples"),
        (WAN.replace("Loss", "Ahead"), [RUN], "has the columns RTT, Program, Ahead"),
        (WAN, [RUN, {**RUN, "bytes": 2000}], "differ in bytes for the one cell 24 ms, Isthmus, 0 %"),
    ],
)
def test_samples_that_do_not_fit_a_file_leave_it_as_it_is(measured, monkeypatch, file, runs, why):
    assert why in take(measured, monkeypatch, file, runs)
    assert (measured.DATA / "wan.csv").read_text() == file


def test_samples_need_a_file_with_the_command(measured, monkeypatch, tmp_path):
    assert "there is no new.csv" in run_measured(measured, monkeypatch, "--take", str(tmp_path / "samples.jsonl"), "new")


class NoLauncher:
    """Runs a program by itself."""

    @staticmethod
    def command(ranks, program, transport, place=None, env=None):
        return program, env or {}


@pytest.fixture
def soak_live(monkeypatch):
    module = tool("soak-live")
    monkeypatch.setattr(module, "SECONDS", 0.5)
    return module


# A program, its kind of lane, and what the end of make test says of it.
@pytest.mark.parametrize("words, lane, told", [
    (["sleep", "60"], "udp", r"FAILED: job_2.udp hung: no end after 0.5 s; stacks: (\S+)$"),
    (["false"], "tcp", r"FAILED: job_2.tcp: status 1: no output; log: (\S+)$"),
    (["sleep", "60"], "stock", None),
    (["false"], "stock", None),
    (["true"], "udp", None),
])  # fmt: skip
def test_a_hang_or_a_failure_over_ours_makes_the_soak_red_and_is_told_at_the_end(soak_live, tmp_path, capsys, words, lane, told):
    rows = soak_live.soak({"job 2": [soak_live.program(NoLauncher, "job", 2, words)]}, [lane], 0, tmp_path)
    assert soak_live.status(rows) == (1 if told else 0)
    last = tool("test").follow(capsys.readouterr().out.splitlines(keepends=True))
    if told:
        assert Path(re.fullmatch(told, last[0])[1]).exists()
    else:
        assert not last


def test_a_round_of_the_soak_runs_the_next_test_of_a_folder_over_ours_and_stock(soak_live, tmp_path):
    ran = []
    runs = [soak_live.Run(name, lambda lane, log, name=name: ran.append((name, lane)) or table.Outcome(table.PASS)) for name in ("one", "two")]
    soak_live.soak({"rma": runs}, ["udp", "stock"], 0.001, tmp_path)
    assert ran[:6] == [(name, lane) for name in ("one", "two", "one") for lane in ("udp", "stock")]


@pytest.mark.parametrize("stock, failed", [(table.PASS, 1), (table.FAIL, 0)])
def test_a_test_of_mpichs_fails_the_soak_if_stock_passes_it(soak_live, tmp_path, stock, failed):
    def perform(lane, log):
        log.touch()
        return table.Outcome(stock if lane == "stock" else table.FAIL)

    rows = soak_live.soak({"rma": [soak_live.Run("one", perform, beside_stock=True)]}, ["udp"], 0, tmp_path)
    assert soak_live.status(rows) == failed

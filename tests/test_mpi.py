"""The MPI tests: every MPI over Isthmus or libfabric's own tcp, on one host (shared memory off), with the ranks
spread over two sites of a lab, by UDP where that lab loses packets, or as two jobs at sites that only routers
join, across three networks or five.

A test is called as its log: MPI.TRANSPORT.PLACE.CASE. It fails when a command of it does not end in its time; then
build/logs/*.stacks has the stacks of all its threads and the state of its endpoints. If it fails otherwise, it
gets a second attempt, as long as few do, and is unsteady if it then passes. Logs: build/logs; those of a first
attempt: build/logs/first.
"""

import functools
import shutil

import pytest
from conftest import PLACES
from harness import cases, couple_cases, demo, far_cases, five_cases, guide, launcher_cases, mover_cases, mpis, process, routed_cases, run_cases, slurm_cases, soak_cases, suite
from harness import lab as labs

CASES = [case for module in (cases, mover_cases, couple_cases, guide, far_cases, run_cases, launcher_cases, slurm_cases, routed_cases, five_cases, soak_cases, demo, suite)
         for case in module.CASES.values()]  # fmt: skip
# Where a test can use another transport than Isthmus.
ANY_TRANSPORT = ("host", *labs.SHARED)
# How many failures of a run get a second attempt: more are not chance.
AGAIN_MAX = 3


def pytest_generate_tests(metafunc):
    """A test for each case, MPI, transport and place that suit each other, in the order of running."""
    params = []
    for place in PLACES:
        for transport in metafunc.config.getoption("transport") or ["isthmus"]:
            for mpi in mpis.MPIS:
                for case in CASES:
                    if place in case.places and mpi in case.mpis and (transport == "isthmus" or place in ANY_TRANSPORT):
                        marks = [getattr(pytest.mark, name) for name in (mpi, place, *(["long"] if case.long else []))]
                        params.append(pytest.param(place, mpi, transport, case, id=f"{mpi}.{transport}.{place}.{case.name}", marks=marks))
    metafunc.parametrize("lab,mpi,transport,case", params, indirect=["lab"])


@pytest.fixture(scope="session")
def logs(pytestconfig):
    folder = pytestconfig.getoption("logs").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def lab(request, logs):
    """The place where ranks run. Its lab ends after the last test there."""
    if request.param not in labs.SHARED:
        yield request.param
        return
    with labs.running(labs.SHARED[request.param], logs / f"{request.param}.lab.log"):
        yield request.param


@pytest.fixture(scope="session")
def spare():
    """Second attempts that are left."""
    return [None] * AGAIN_MAX


@functools.cache
def compile_all(name, logs):
    """Compiles the programs for an MPI. Returns the compiler's words on failure."""
    mpi = mpis.MPIS[name]
    sources = sorted((mpis.ROOT / "tests" / "mpi").glob("*.c"))
    return mpis.compile_programs(mpi, sources, logs / f"{mpi.name}.compile.log") or mpis.compile_mover(mpi, logs / f"{mpi.name}.mover.log")


@pytest.fixture
def context(lab, mpi, transport, case, logs):
    chosen = mpis.MPIS[mpi]
    if missing := chosen.missing():
        pytest.skip(missing)
    if not mpis.PROVIDER.exists() or not mpis.ISTHMUS.exists():
        pytest.fail("build/ has no provider or no command: make build", pytrace=False)
    if words := compile_all(mpi, logs):
        pytest.fail(f"does not compile: {cases.last_words(words)}", pytrace=False)
    place = mpis.HOST if lab == "host" else mpis.Place(lab) if lab == "demo" else labs.place(lab)
    return cases.Context(chosen, transport, place, logs, case.name)


def keep_first(context):
    """Puts the logs of a failed attempt where the next one does not overwrite them."""
    (context.logs / "first").mkdir(exist_ok=True)
    for log in context.logs.glob(f"{context.label}.{context.case}.*"):
        if log.is_file():
            shutil.copy(log, context.logs / "first")


def test(context, case, spare, record_property):
    failed = None
    while True:
        hangs = len(process.hangs)
        try:
            detail = case.perform(context)
            if process.hangs[hangs:]:
                raise cases.Failure(f"it says {detail!r}, but a process did not end in its time")
            record_property("detail", detail)
            break
        except cases.Skip as why:
            pytest.skip(str(why))
        except Exception as why:
            if kept := process.hangs[hangs:]:
                raise pytest.fail.Exception(f"{why}; stacks: {', '.join(map(str, kept))}", pytrace=False) from None
            if failed or not spare:
                if isinstance(why, cases.Failure):
                    raise pytest.fail.Exception(f"{why} [{context.log().name}]", pytrace=False) from None
                raise
            spare.pop()
            keep_first(context)
            failed = why
    if failed:
        record_property("unsteady", str(failed))

"""pytest for the MPI tests: its options and markers, and what it tells of tests that are unsteady."""

from pathlib import Path

import pytest
import unsteady
from harness import mpis

# Where ranks run.
PLACES = {
    "host": "on this host",
    "sites": "at two sites of a lab",
    "lossy": "at two sites of a lab that loses packets, by UDP",
    "routed": "at two sites that only routers join",
    "five": "at two sites across five networks, with routers between them",
    "soak": "routed, under one fault after the other",
    "demo": "`make demo` as its users run it",
}
COUNTS = pytest.StashKey()


def pytest_addoption(parser):
    parser.addoption("--transport", action="append", choices=mpis.TRANSPORTS, help="default: isthmus; others are the control")
    parser.addoption("--logs", type=Path, default=mpis.BUILD / "logs", help="folder of the logs (build/logs)")


def pytest_configure(config):
    for mpi in mpis.MPIS.values():
        config.addinivalue_line("markers", f"{mpi.name}: {mpi.title}")
    for name, words in PLACES.items():
        config.addinivalue_line("markers", f"{name}: {words}")
    config.addinivalue_line("markers", "long: takes many minutes; left out unless -m names it")


def pytest_collection_modifyitems(config, items):
    if "long" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_report_teststatus(report):
    if report.when == "call" and report.passed:
        told = dict(report.user_properties)
        verdict = "unsteady" if "unsteady" in told else "passed"
        return verdict, verdict[0], f"{verdict.upper():8}{report.duration:7.1f} s  {told.get('detail', '')}"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    """A test that was unsteady before fails the run."""
    if session.config.option.collectonly or not session.testscollected:
        return
    stats = session.config.pluginmanager.get_plugin("terminalreporter").stats
    ran = {report.nodeid: verdict == "unsteady" for verdict in ("passed", "failed", "unsteady") for report in stats.get(verdict, [])}
    counts = unsteady.note("MPI tests", ran)
    session.config.stash[COUNTS] = counts
    if not session.exitstatus and any(count > unsteady.TOLERATED for count in counts.values()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    for report in terminalreporter.stats.get("unsteady", []):
        count = config.stash[COUNTS][report.nodeid]
        verdict = "FAILED" if count > unsteady.TOLERATED else "unsteady"
        first = dict(report.user_properties)["unsteady"]
        terminalreporter.write_line(f"{verdict}: {report.nodeid}: {unsteady.words(count)}; at the first attempt: {first}")

"""Runs a suite's cases over Isthmus and over the stock provider: one table.

What fails over Isthmus and passes when it is run again is unsteady, and noted with the unsteady tests of `make test`
(tools/unsteady.py). A case that does not end in its time over Isthmus has failed, whatever a second run or the stock
provider does."""

import concurrent.futures
import re
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Callable

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build" / "suites"
sys.path.insert(0, str(ROOT / "tools"))
import unsteady  # noqa: E402

OURS, THEIRS = "isthmus", "tcp;ofi_rxm"
COLUMN = {OURS: "ours", THEIRS: "theirs"}
# What tests/harness calls the same.
TRANSPORT = {OURS: "isthmus", THEIRS: "rxm"}
PASS, ABSENT, FAIL, TIMEOUT = "pass", "not run", "FAIL", "TIME OUT"
# The verdicts' column starts here at the latest.
WIDEST = 60
# How good a verdict is, against another provider's.
RANK = {PASS: 2, ABSENT: 1, FAIL: 1, TIMEOUT: 0}


class Unavailable(Exception):
    """A suite cannot be had or built here; the text says why."""


@dataclass(frozen=True)
class Outcome:
    """How a case ended over one provider.

    `failed` names what failed within it, where a case has parts of its own; `detail` is
    shown behind the verdicts; `unsteady` is in how many of its last runs it passed at the
    second attempt only, if it did so in this one."""

    verdict: str
    detail: str = ""
    failed: frozenset = frozenset()
    unsteady: int = 0


@dataclass
class Case:
    """A test. `alone`: nothing else may run beside it (memory, time)."""

    name: str
    body: object = None
    alone: bool = False


@dataclass
class Suite:
    """What to run, how (`perform(case, provider) -> Outcome`), and why the rest is not."""

    name: str
    cases: list
    perform: Callable
    skipped: dict = field(default_factory=dict)  # reason -> names


@dataclass
class Plan:
    """A suite's text file: what is left out, what is added, what `--quick` takes."""

    path: Path
    suite: str = ""  # lines that begin with `in SUITE` are for this one alone
    skips: list = field(default_factory=list)
    additions: list = field(default_factory=list)
    quick: list = field(default_factory=list)

    def __post_init__(self):
        for line in self.path.read_text().splitlines():
            if not line.strip() or line.startswith("#"):
                continue
            action, rest = line.split(None, 1)
            if action == "in":
                suite, action, rest = rest.split(None, 2)
                if suite != self.suite:
                    continue
            what, _, reason = (part.strip() for part in rest.partition("--- "))
            if action == "skip" and reason:
                self.skips.append((re.compile(what), reason))
            elif action == "also":
                self.additions.append(what)
            elif action == "quick":
                self.quick.append(re.compile(what))
            else:
                raise SystemExit(f"{self.path.name}: not 'also TEST', 'quick PATTERN' or 'skip PATTERN --- REASON': {line}")

    def chosen(self, cases, options):
        """Those of the cases that are run, and {reason: names} of those that are skipped."""
        kept, skipped = [], {}
        for case in cases:
            reason = next((reason for pattern, reason in self.skips if pattern.search(case.name)), None)
            if reason:
                skipped.setdefault(reason, []).append(case.name)
            elif not options.quick or any(pattern.search(case.name) for pattern in self.quick):
                kept.append(case)
        return [case for case in kept if wanted(case.name, options)], skipped


def wanted(name, options):
    return not options.only or any(word in name for word in options.only)


def judged(suite, options):
    """Runs the suite, prints its table and returns {case: {provider: outcome}}."""
    print(f"\n== {suite.name}", flush=True)
    providers = providers_of(options)
    width = min(WIDEST, max((len(case.name) for case in suite.cases), default=4))
    began = time.monotonic()
    row(width, "test", [COLUMN.get(provider, provider) for provider in providers])
    results = {}
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        shared = [case for case in suite.cases if not case.alone]
        jobs = [[pool.submit(suite.perform, case, p) for p in providers] for case in shared]
        for case, pair in zip(shared, jobs):
            results[case.name] = dict(zip(providers, (job.result() for job in pair)))
            show(width, case.name, results[case.name])
    for case in suite.cases:
        if case.alone:
            results[case.name] = {p: suite.perform(case, p) for p in providers}
            show(width, case.name, results[case.name])
    first = dict(results)
    confirm(suite, results, options, width)
    note(suite, first, results)
    for reason, names in suite.skipped.items():
        print(f"skipped: {len(names)} tests: {reason}")
    print(f"{len(suite.cases)} tests in {time.monotonic() - began:.0f} s")
    return results


def providers_of(options):
    """What every case runs over."""
    return [OURS] if options.lazy else options.provider or [OURS, THEIRS]


def confirm(suite, results, options, width):
    """What differs, or fails where the stock provider was not asked, runs over both once more.

    Nothing runs beside it, and the logs of the first run stay. What timed out over ours does not run again."""
    options.logs /= "again"
    options.logs.mkdir(exist_ok=True)
    for case in suite.cases:
        outcomes = results[case.name]
        if hung(outcomes):
            continue
        if differs(outcomes) or (options.lazy and outcomes[OURS].verdict != PASS):
            results[case.name] = {p: suite.perform(case, p) for p in (OURS, THEIRS)}
            show(width, case.name, results[case.name], "again: ")


def note(suite, first, results):
    """Remembers which cases were unsteady over ours, and puts into their outcomes in how many of their runs they were."""
    ran = {case: shaky(first[case], row) for case, row in results.items() if OURS in row}
    for case, count in unsteady.note(f"suites: {suite.name}", ran).items():
        results[case] = {**results[case], OURS: replace(results[case][OURS], unsteady=count)}
        if count <= unsteady.TOLERATED:
            print(f"unsteady: {case}: {unsteady.words(count)}; at the first attempt: {first[case][OURS].detail}", flush=True)


def shaky(first, second):
    """Whether something failed over ours and passed at the second attempt: the case, or a part of it that passes over stock."""
    before, after = first[OURS], second[OURS]
    return (before.verdict == FAIL and after.verdict == PASS) or (worse(first) and bool(before.failed - after.failed))


def hung(outcomes):
    """Whether it did not end in its time over ours."""
    return OURS in outcomes and outcomes[OURS].verdict == TIMEOUT


def show(width, name, outcomes, prefix=""):
    mark = "<" if worse(outcomes) else ">" if differs(outcomes) else " "
    detail = "; ".join(dict.fromkeys(outcome.detail for outcome in outcomes.values() if outcome.detail))
    row(width, name, [outcome.verdict for outcome in outcomes.values()], f"{mark} {prefix}{detail}")


def row(width, name, columns, more=""):
    print((f"{name:{width}}  " + "  ".join(f"{column:8}" for column in columns) + " " + more).rstrip(), flush=True)


def worse(outcomes):
    """Whether the stock provider did better."""
    if OURS not in outcomes or THEIRS not in outcomes:
        return False
    ours, theirs = outcomes[OURS], outcomes[THEIRS]
    return RANK[ours.verdict] < RANK[theirs.verdict] or (theirs.verdict != TIMEOUT and bool(ours.failed - theirs.failed))


def differs(outcomes):
    return len({(outcome.verdict, outcome.failed) for outcome in outcomes.values()}) > 1


def summary(tables):
    """One row per suite: how many pass of those run over each provider, and how many are better over
    the stock one. Then all that failed."""
    print("\n== summary")
    row(12, "suite", ["tests", "ours", "theirs", "stock better"])
    for name, results in tables.items():
        passed = [passed_of([row[p] for row in results.values() if p in row]) for p in (OURS, THEIRS)]
        behind = [case for case, row in results.items() if worse(row)]
        row(12, name, [str(len(results)), *passed, str(len(behind))])
        for case, outcomes in results.items():
            if why := failure(outcomes):
                print(f"FAILED: {case}: {why}", flush=True)


def passed_of(outcomes):
    """`passed/run`; what a provider does not offer was not run."""
    ran = [outcome for outcome in outcomes if outcome.verdict != ABSENT]
    return f"{sum(outcome.verdict == PASS for outcome in ran)}/{len(ran)}"


def status(tables):
    """1 if anything failed."""
    return int(any(failure(row) for results in tables.values() for row in results.values()))


def failure(outcomes):
    """Why a case has failed over ours; None if it has not."""
    if OURS not in outcomes:
        return None
    ended = outcomes[OURS]
    if hung(outcomes):
        return f"{ended.verdict}: {ended.detail}"
    if worse(outcomes):
        return f"the stock provider is better: {ended.verdict} {ended.detail}".rstrip()
    if ended.unsteady > unsteady.TOLERATED:
        return unsteady.words(ended.unsteady)
    return f"{ended.verdict} {ended.detail}".rstrip() if ended.verdict == FAIL and THEIRS not in outcomes else None

"""Programs in two parts of `isthmus run`, at the two sites of a lab: half of the ranks each, the first site one more."""

import re

from harness import lab, process, run_cases
from harness.cases import Context


def run(mpi, ranks, program, name, log, seconds, env=None, cwd=None):
    """One run of a program. How it ended: the first status that is not 0, and the output of both parts."""
    c = Context(mpi, "isthmus", lab.place("sites"), log.parent.resolve(), re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:60])
    sizes = [-(-ranks // 2), ranks // 2] if ranks > 1 else [1]
    at = run_cases.meeting(c)
    parts = [run_cases.Part(c, site, f"{number}/{len(sizes)}", program, "-n", size, "--wait", "30s", at=at, env=env, cwd=cwd)
             for number, (site, size) in enumerate(zip(run_cases.sites(c), sizes), 1)]
    with run_cases.Job(parts) as job:
        ended = [part.job.wait(seconds) for part in job.parts]
    status = None if any(one.timed_out for one in ended) else next((one.status for one in ended if one.status), 0)
    return process.Ended(status, "".join(one.output for one in ended), max(one.seconds for one in ended))

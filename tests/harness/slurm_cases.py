"""`isthmus run` started by Slurm: a cluster at each of two sites, which reach each other, or which only routers join."""

import contextlib
import re
import signal
import time

from . import cases, run_cases, slurm
from .cases import Case, Failure, last_words
from .run_cases import Job, Part, meeting, ok, program, sites

TOLD_TO_END = r"the job ends: part {} \(host \S+\) was told to end: its isthmus run received SIGTERM"


class Clusters:
    """A cluster at each of the two sites, and the parts of jobs that their `srun` start. As a context."""

    def __init__(self, c):
        self.c = c
        # Between sites that only routers join, parts meet at a router.
        self.names = ("a", "b") if c.net else sites(c)
        self.pmix = c.mpi.name == "openmpi"

    def __enter__(self):
        with contextlib.ExitStack() as clusters:
            self.clusters = [clusters.enter_context(slurm.Cluster(self.c, name)) for name in self.names]
            self._clusters = clusters.pop_all()
        return self

    def __exit__(self, *_):
        self._clusters.close()

    def job(self, words, *srun, ranks=(3, 2)):
        """A job of two parts, whose `srun` has these options."""
        c = self.c
        at = run_cases.at_router(c) if c.net else meeting(c)
        parts = []
        for part, (cluster, count) in enumerate(zip(self.clusters, ranks), 1):
            env = cluster.env()
            if self.pmix:
                more = run_cases.pmix_env(c, own=False)
                libraries = [path for path in (env["LD_LIBRARY_PATH"], more.get("LD_LIBRARY_PATH")) if path]
                env = {**env, **more, "LD_LIBRARY_PATH": ":".join(libraries)}
            parts.append(Part(c, cluster.site, f"{part}/2", words, *(["--pmix"] if self.pmix else []),
                              launcher=[cluster.tool("srun"), *srun, "-n", str(count)], env=env, at=at,
                              settings=c.net.place(cluster.site).settings if c.net else None))
        return Job(parts)

    @contextlib.contextmanager
    def churning(self, seconds=120):
        """A job whose ranks exchange messages for this long, under way."""
        progress = self.c.scratch("progress")
        with self.job(program(self.c, "churn", seconds, "64k", progress)) as job:
            cases.await_file(progress, job.parts[0].job, 60)
            yield job

    def number(self, part):
        """The number of the job that Slurm runs at this part's site."""
        return self.clusters[part - 1].ask("squeue", "-h", "-o", "%i").split()[0]

    def cancelled(self, part):
        """The scheduler of a part cancels its job under way. What the other says."""
        with self.churning() as job:
            number, began = self.number(part), time.monotonic()
            self.clusters[part - 1].ask("scancel", number)
            return job.fail(TOLD_TO_END.format(part), 143, began)


def by_slurm(c):
    """`srun` starts a process of `isthmus run` for each rank. One side's job is cancelled."""
    with Clusters(c) as both:
        with both.job(program(c, "collectives", "64k")) as job:
            said = ok(job.succeed(), 5)
        # Its own PMI-2 server does not get in the way.
        with both.job(program(c, "collectives", "4k"), "--mpi=pmi2") as job:
            ok(job.succeed(), 5)
        return f"{said}; {both.cancelled(2)}"


def time_limit(c):
    """The job of one side reaches its time limit: all parts end, and say so."""
    with Clusters(c) as both, both.churning(300) as job:
        # Slurm's least limit is a minute. It looks every 30 s.
        both.clusters[1].ask("scontrol", "update", f"JobId={both.number(2)}", "EndTime=now")
        cases.await_output(job.parts[1].job, "DUE TO TIME LIMIT", 100)
        return job.fail(TOLD_TO_END.format(2), 143, time.monotonic())


def routed(c):
    """Only routers join the two clusters. The job of either side is cancelled."""
    with Clusters(c) as both:
        with both.job(program(c, "collectives", "16k")) as job:
            said = ok(job.succeed(), 5)
        return f"{said}; {both.cancelled(2)}; {both.cancelled(1)}"


def router_killed(c):
    """The router at which the parts met is killed: the job goes on by the other one."""
    with Clusters(c) as both, both.churning(10) as job:
        began = time.monotonic()
        c.net.routers["a"][0].send(signal.SIGKILL)
        said = job.succeed(90)
        took = time.monotonic() - began
    if "OK churn" not in said:
        raise Failure(f"no OK line: {last_words(said)}")
    return f"over {took:.0f} s after"


CASES = {
    case.name: case
    for case in (
        Case("run-slurm", by_slurm, places=("sites",), mpis=("mpich",)),
        Case("run-slurm-limit", time_limit, places=("sites",), mpis=("mpich",)),
    )
}

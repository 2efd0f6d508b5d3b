"""Two jobs at sites that share no network couple through routers; then routers,
the WAN or the other job fail. Each case has a lab and routers of its own."""

import os
import re
import signal
import time
from dataclasses import dataclass

from . import cases, couple_cases, guide, lab, routed, routed_mover, run_cases, slurm_cases
from .cases import ADDRESS, Failure, must_pass

LINK = {"rate": '"1Gbit"', "rtt": '"10ms"'}
# Seconds from the lab's start to the cut of its WAN; by then transfers are under way.
CUT_AT = 6
TIMEOUT = {"FI_ISTHMUS_PEER_TIMEOUT": "5s"}


@dataclass
class Case(cases.Case):
    """A test with a lab and routers of its own."""

    places: tuple = ("routed",)
    mpis: tuple = ("mpich",)
    down: float = 0  # seconds for which the WAN is cut
    shape: str = "three"  # the networks between the two sites

    @property
    def link(self):
        """The lab's link."""
        down = {"down": f'[{{ at = "{CUT_AT}s", for = "{self.down}s" }}]'} if self.down else {}
        return {**LINK, **down}

    def perform(self, c):
        folder, shape = c.logs / "routed", routed.SHAPES[self.shape]
        config = routed.write_lab(folder, shape, self.link)
        with lab.running(["--quiet", "--config", str(config)], folder / "lab.log"), routed.Network(folder, shape) as c.net:
            return self.body(c)


class Pair:
    """Two coupled jobs that transfer for so many seconds, or talk; the accepting one at site a; both end when this is left."""

    def __init__(self, c, seconds=0, words=(), env=None):
        self.port, self.progress = c.scratch("port"), c.scratch("progress")
        words = [seconds, self.progress] if seconds else words
        start = lambda role, site: c.start(2, "coupled", role, self.port, *words, suffix=f".{role}",
                                           place=c.net.place(site), env=env)
        self.jobs = {"accept": start("accept", "a"), "connect": start("connect", "b")}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for job in self.jobs.values():
            job.end()

    def get_going(self):
        cases.await_file(self.progress, self.jobs["accept"])

    def must_pass(self, seconds):
        """Both succeed; the words of both."""
        return [must_pass(job.wait(seconds)) for job in self.jobs.values()]


def longest_round(words):
    return max(float(re.search(r"the longest ([\d.]+) s", said)[1]) for said in words)


def survived(pair, seconds, most, least=0.0):
    """Both jobs passed with right data; their stall is told, and within bounds."""
    words = pair.must_pass(seconds)
    stall = longest_round(words)
    if not least <= stall <= most:
        raise Failure(f"a round took {stall:.1f} s, expected {least} to {most}: {words[0]}")
    return f"stall {stall:.1f} s; {words[0]}"


def coupled(c):
    # Intel MPI hangs in windows over the merged communicator of two jobs, on one host over
    # libfabric's tcp as well.
    words = ["no-onesided"] if c.mpi.name == "intel" else []
    with Pair(c, words=words) as pair:
        return "; ".join(pair.must_pass(90))


# Longest stall, in seconds, behind a router that is lost: less than TCP would take to tell.
LOST_ROUTER = 18


def router_killed(c):
    with Pair(c, 6) as pair:
        pair.get_going()
        time.sleep(1)
        c.net.routers["a"][0].send(signal.SIGKILL)
        return survived(pair, 60, most=LOST_ROUTER)


def router_stopped(c):
    """A router of the far site hangs, as if its machine did, and does not come back."""
    with Pair(c, 10) as pair:
        pair.get_going()
        time.sleep(1)
        c.net.routers["b"][0].send(signal.SIGSTOP)
        return survived(pair, 60, most=LOST_ROUTER)


def wan_cut(seconds):
    def body(c):
        with Pair(c, CUT_AT + 2) as pair:
            # Less at the least than the cut: lab and transfers may start late.
            return survived(pair, seconds + 90, least=seconds / 2, most=seconds + 40)

    return body


def ended_badly(c, pair, role, words, bound):
    """A job that must end with the provider's text (a regular expression)."""
    job = pair.jobs[role]
    broken = time.monotonic()
    ended = job.wait(broken - job.began + bound)
    return f"{role} {time.monotonic() - broken:.1f} s after: " + cases.expect_text(role, ended, words)


def routers_gone(c):
    """All routers of a site are killed: both jobs are told the peer and what was tried."""
    with Pair(c, 60, env=TIMEOUT) as pair:
        pair.get_going()
        for router in c.net.routers["a"]:
            router.send(signal.SIGKILL)
        told = []
        for role, site in (("accept", "a"), ("connect", "b")):
            tried = re.escape(", ".join(c.net.sides[site].routers))
            words = rf"^isthmus: {ADDRESS} was out of reach for \d+ s \(last attempt: .*; routers tried: {tried}\).*"
            told.append(ended_badly(c, pair, role, words, 40))
    return "; ".join(told)


def no_route(c):
    """A process of an AS that is on no map of site a's."""
    port = c.scratch("port")
    accepting = c.start(1, "connect", "accept", port, suffix=".accept", place=c.net.place("b", FI_ISTHMUS_AS_ID="7"))
    try:
        cases.await_file(port, accepting)
        subnet = c.net.sides["b"].shape.subnets[0].id
        words = rf"^isthmus: no router leads to isthmus://7\.{subnet}/\S+ \(last answer: router [\d.:]+: " \
                rf"knows no way to AS 7 subnet {subnet}; complete its route map\)$"
        return cases.attempt(c, "wrong", port, words, c.net.place("a"))
    finally:
        accepting.end()


def far_process_killed(c):
    with Pair(c, 60) as pair:
        pair.get_going()
        for pid in pair.jobs["connect"].pids():
            os.kill(pid, signal.SIGKILL)
        return ended_badly(c, pair, "accept", cases.dead_peer(c), 60)


CASES = {
    case.name: case
    for case in (
        Case("connect", cases.connect, mpis=("mpich", "intel")),
        Case("coupled", coupled, mpis=("mpich", "intel")),
        Case("router-killed", router_killed, mpis=("mpich", "intel")),
        Case("router-stopped", router_stopped),
        Case("wan-cut-2s", wan_cut(2), down=2),
        Case("wan-cut-20s", wan_cut(20), down=20),
        Case("routers-gone", routers_gone),
        Case("no-route", no_route),
        Case("far-process-killed", far_process_killed),
        Case("mover-cp", routed_mover.copies),
        Case("mover-name", routed_mover.coupled_by_name),
        Case("couple-routed", couple_cases.routed, mpis=("mpich",)),
        Case("couple-router-killed", couple_cases.router_killed, mpis=("mpich",)),
        Case("run-routed", run_cases.routed),
        Case("run-routed-sites", run_cases.routed_sites),
        Case("run-router-killed", run_cases.router_killed),
        Case("run-routed-slurm", slurm_cases.routed, mpis=("mpich", "openmpi")),
        Case("run-slurm-router-killed", slurm_cases.router_killed, mpis=("mpich", "openmpi")),
        Case("two-sites-name", guide.by_name),
        Case("run-wan-cut-20s", run_cases.cut, down=20),
    )
}

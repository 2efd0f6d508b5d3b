"""Files between sites that only routers join. `isthmus cp`: the service is at site b, the copies are
started at site a; of the routers next to them one is killed in mid-transfer, each way. MPI programs:
they come together by a name at a router of site a."""

import filecmp
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

from . import process
from .cases import Failure, await_journal, await_output, expect_text, last_words
from .mpis import ISTHMUS

PORT = 4200
# Takes the lab's link more than a second, in which the router is killed.
LONG, SMALL = 150 << 20, 20


class Mover:
    """A folder with a tree to copy, a service at site b, and what a copy at site a needs."""

    def __init__(self, c):
        self.c, self.here, self.there = c, c.net.sides["a"], c.net.sides["b"]
        self.folder = c.logs.resolve() / f"{c.label}.{c.case}.files"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.source, self.export = self.folder / "source", self.folder / "export"
        (self.source / "deep").mkdir(parents=True), self.export.mkdir()
        some = os.urandom(1 << 20)
        with open(self.source / "long", "wb") as file:
            for number in range(LONG >> 20):
                file.write(number.to_bytes(4, "big") + some[4:])
        for number in range(SMALL):
            (self.source / "deep" / f"small-{number}").write_bytes(some[: 1000 * number])
        self.configure()
        command = [*c.net.place("b").enter(), str(ISTHMUS), "serve", "--config", str(self.folder / "serve.toml")]
        self.service = process.Running(command, self.env("b"), c.log(".serve"))
        await_output(self.service, "serving at", 30)

    def tls(self, own, other):
        """Certificates of a site's authority, which the routers have too."""
        keys = self.c.net.folder
        made = subprocess.run([str(ISTHMUS), "router", "keygen", "--as", str(own.as_id), "--out", str(keys / own.site), "--name", "mover"],
                              capture_output=True, text=True)
        if made.returncode != 0:
            raise Failure(f"no certificates: {made.stderr.strip()}")
        file = lambda side, name: f'"{(keys / side.site / name).resolve()}"'
        return (f"[tls]\ncertificate = {file(own, 'mover.pem')}\nkey = {file(own, 'mover.key')}\n"
                f"authorities = [{file(other, f'as{other.as_id}.pem')}]\n")

    def configure(self):
        here, there = self.here, self.there
        (self.folder / "serve.toml").write_text(
            f'listen = "{there.node}:{PORT}"\nadmits = [{here.as_id}]\n{self.tls(there, here)}'
            f'[export.data]\npath = "{self.export}"\nwritable = true\n'
            f'[device]\nas_id = {there.as_id}\nsubnet = {there.shape.subnets[0].id}\nrouters = "{", ".join(there.routers)}"\n')
        routers = ", ".join(f'"{router}"' for router in here.routers)
        (self.folder / "sites.toml").write_text(
            f'{self.tls(here, there)}[site.b]\naddress = "{there.node}:{PORT}"\nas = {there.as_id}\n'
            f'subnet = {there.shape.subnets[0].id}\nrouters = [{routers}]\n')

    def env(self, site):
        """What a process of that site is told of its place; the service's is in its configuration."""
        side = self.c.net.sides[site]
        place = {} if site == "b" else {"FI_ISTHMUS_AS_ID": str(side.as_id), "FI_ISTHMUS_SUBNET": str(side.shape.subnets[0].id),
                                        "FI_ISTHMUS_INTERFACE": side.node}
        return {"ISTHMUS_LOG": "info", "NO_COLOR": "1", **place}

    def copy(self, name, words, target, router):
        """A copy; `router` is killed once some of the long file is at the target."""
        command = [*self.c.net.place("a").enter(), str(ISTHMUS), "cp", "-r", "-v", "--sites", str(self.folder / "sites.toml"), *words]
        job = process.Running(command, self.env("a"), self.c.log(f".{name}"))
        try:
            await_journal([job], target)
            router.send(signal.SIGKILL)
            at = time.monotonic()
            ended = job.wait(at - job.began + 90)
        finally:
            job.end()
        if ended.timed_out or ended.status != 0:
            raise Failure(f"{name}: exit {ended.status}, {last_words(ended.output)}")
        if len(re.findall(r"^[0-9a-f]{64}  ", ended.output, re.M)) != SMALL + 1:
            raise Failure(f"{name}: not every file's digest was told: {last_words(ended.output)}")
        return f"{name} whole {time.monotonic() - at:.1f} s after the kill"

    def compare(self, one: Path, other: Path):
        for path in (p for p in one.rglob("*") if p.is_file()):
            if not filecmp.cmp(path, other / path.relative_to(one), shallow=False):
                raise Failure(f"{path.name} differs")
        if left := [*other.rglob(".isthmus-*")]:
            raise Failure(f"left: {left}")

    def end(self):
        self.service.end()


def copies(c):
    mover = Mover(c)
    try:
        near, far = c.net.routers["a"][0], c.net.routers["b"][0]
        told = [mover.copy("put", [str(mover.source), "b:data/"], mover.export, near)]
        mover.compare(mover.source, mover.export / "source")
        near.start()
        c.net.await_routers(60)
        back = mover.folder / "back"
        back.mkdir()
        told.append(mover.copy("get", ["b:data/source", f"{back}/"], back, far))
        mover.compare(mover.source, back / "source")
        return "; ".join(told)
    finally:
        mover.end()


def coupled_by_name(c):
    """Two jobs know nothing of each other but a name at a router; it is one program's as long as it waits."""
    side = c.net.sides["a"]
    place = f"router:isthmus://{side.as_id}.{side.shape.subnets[0].id}/{side.routers[0]}"
    folder = c.logs.resolve() / f"{c.label}.{c.case}.files"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    source, target = folder / "source", folder / "target"
    source.write_bytes(os.urandom(1 << 20) * 20)
    start = lambda site, name, *words: c.start(2, "copy", *words, suffix=f".{name}", place=c.net.place(site))
    jobs = [start("b", "elsewhere", "receive", f"{place}/run", folder / "none")]
    try:
        ended = jobs[0].wait(60)
        words = r"^copy: cannot publish \"run\" at the router .*: a router takes names of processes of its own AS only.*$"
        told = expect_text("the receiver of the other AS", ended, words)
        # Whoever comes first waits for the other.
        jobs = [start("b", "send", "send", f"{place}/run", source), start("a", "receive", "receive", f"{place}/run", target)]
        for job in jobs:
            ended = job.wait(60)
            if ended.timed_out or ended.status != 0:
                raise Failure(f"exit {ended.status}: {last_words(ended.output)}")
    finally:
        for job in jobs:
            job.end()
    if not filecmp.cmp(source, target, shallow=False):
        raise Failure("the copy differs")
    return f"{source.stat().st_size} bytes between programs that knew a name; {told}"

"""Two sites whose compute networks share nothing, joined by routers.

The ways from a to b that demo/labs has, each a chain of networks; numbers are subnets:

    three   a ---lan 10--- gate-a ===== wan 100 ===== gate-b ---lan 10--- b
    five    a ---fabric 10--- inner-a ---lan 20--- gate-a ===== wan 100 ===== gate-b ...

Two routers run on every host between two networks. Sites forward no IP packets: a and b can
reach each other through the routers only. Outside the lab, write_lab() says what the lab is;
inside, a Network runs its routers.
"""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from . import process
from .mpis import ISTHMUS, ROOT, Place
from .process import Failure

WAN = 100
# Links by TCP that each router on a gate dials to each of the other site's, as configured
# below; and all that it dials there, by transport.
LINKS = 4
TRANSPORTS = {"auto": LINKS + 1, "tcp": LINKS, "udp": 1}
AS_IDS = {"a": 1, "b": 2}


@dataclass(frozen=True)
class Subnet:
    """A network inside a site, as its map has it."""

    id: int
    name: str
    rate: str
    latency: str
    capabilities: str = ""


@dataclass(frozen=True)
class Stage:
    """The routers on one host of each site; different ones on a host differ by their ports."""

    host: str
    names: tuple
    port: int

    def ports(self):
        return {name: self.port + number for number, name in enumerate(self.names)}


@dataclass(frozen=True)
class Shape:
    """The networks of a site from its compute nodes to the WAN, and what joins each to the next."""

    name: str
    subnets: tuple
    stages: tuple

    @property
    def lab(self):
        return ROOT / "demo" / "labs" / f"{self.name}.toml"


GATE = Stage("gate", ("r1", "r2"), 4101)
SHAPES = {
    shape.name: shape
    for shape in (
        Shape("three", (Subnet(10, "lan", "10Gbit", "20us"),), (GATE,)),
        Shape(
            "five",
            (Subnet(10, "fabric", "100Gbit", "2us", '"zero-copy", "os-bypass", "rma"'), Subnet(20, "lan", "10Gbit", "20us")),
            (Stage("inner", ("i1", "i2"), 4111), GATE),
        ),
    )
}


@dataclass(frozen=True)
class Side:
    """A site, and its addresses as the lab's file has them."""

    shape: Shape
    site: str

    @property
    def as_id(self):
        return AS_IDS[self.site]

    @property
    def node(self):
        return f"10.{self.as_id}.0.1"

    def inward(self, stage):
        """The address of a stage's host on the network toward the compute nodes."""
        return f"10.{self.as_id}.{stage}.2"

    def outward(self, stage):
        """Its address on the network toward the WAN."""
        last = stage == len(self.shape.stages) - 1
        return f"192.0.2.{self.as_id}" if last else f"10.{self.as_id}.{stage + 1}.1"

    @property
    def routers(self):
        """Where ranks of this site find the routers."""
        return [f"{self.inward(0)}:{port}" for port in self.shape.stages[0].ports().values()]

    @property
    def gateways(self):
        """Where the other site's routers find these."""
        last = len(self.shape.stages) - 1
        return [f"{self.outward(last)}:{port}" for port in self.shape.stages[last].ports().values()]


class NotReady(Failure):
    """The routers do not come up; the text says what they said."""


# --- the files ---------------------------------------------------------------


def quoted(words):
    return ", ".join(f'"{word}"' for word in words)


def lab_text(shape, link, cc=None):
    """The lab; `link` has the keys of a lab's [[link]], as TOML values."""
    lines = shape.lab.read_text().splitlines()
    # The link's table is the last, and its first two keys say where it is.
    lines = lines[: lines.index("[[link]]") + 3] + [f"{key} = {value}" for key, value in link.items()]
    if cc:
        lines = [line + (f'\ncc = "{cc}"' if line == "[[site]]" else "") for line in lines]
    return "\n".join(lines) + "\n"


def write_lab(folder: Path, shape, link, cc=None):
    """Writes the lab's configuration, and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "lab.toml"
    path.write_text(lab_text(shape, link, cc))
    return path


def map_text(own, other):
    text = f'[as]\nid = {own.as_id}\nname = "site {own.site}"\n'
    for subnet in own.shape.subnets:
        text += f"""
[[subnet]]
id = {subnet.id}
name = "{subnet.name}"
rate = "{subnet.rate}"
latency = "{subnet.latency}"
capabilities = [{subnet.capabilities}]
"""
    text += f"""
[[wan]]
id = {WAN}
name = "wan"
rate = "1Gbit"
latency = "10ms"

[[remote]]
id = {other.as_id}
via = ["wan"]
gateways = {{ wan = [{quoted(other.gateways)}] }}
"""
    networks = [subnet.name for subnet in own.shape.subnets] + ["wan"]
    for number, stage in enumerate(own.shape.stages):
        near, far = networks[number : number + 2]
        for name, port in stage.ports().items():
            text += f"""
[[router]]
name = "{name}"
joins = ["{near}", "{far}"]
endpoints = {{ {near} = "{own.inward(number)}:{port}", {far} = "{own.outward(number)}:{port}" }}
"""
    return text


def router_text(name, stage, own, other, transport):
    joined = own.shape.subnets[stage : stage + 2]
    targets = f'["10.{own.as_id}.0.0/16"]'
    plain = "\n".join(f"[subnet.{subnet.name}]\nplain = true\ntargets = {targets}\n" for subnet in joined)
    if own.shape.stages[stage] is own.shape.stages[-1]:
        plain += f'\n[subnet.wan]\ntransport = "{transport}"\n'
    return f"""name = "{name}"
map = "map.toml"
admits = [{other.as_id}]

{plain}
[tls]
certificate = "{name}.pem"
key = "{name}.key"
authorities = ["../{other.site}/as{other.as_id}.pem"]

[limits]
links = {LINKS}
"""


def write_site(folder: Path, own, other, transport):
    """Map, configurations and keys of one site's routers."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "map.toml").write_text(map_text(own, other))
    for number, name in ((n, name) for n, stage in enumerate(own.shape.stages) for name in stage.names):
        (folder / f"{name}.toml").write_text(router_text(name, number, own, other, transport))
        keygen = [str(ISTHMUS), "router", "keygen", "--as", str(own.as_id), "--out", str(folder), "--name", name]
        made = subprocess.run(keygen, capture_output=True, text=True)
        if made.returncode != 0:
            raise NotReady(f"no certificates: {made.stderr.strip()}")


# --- the routers -------------------------------------------------------------


class Router:
    """One `isthmus router run` on a host between two networks."""

    def __init__(self, side, stage, name, folder, transport):
        self.title = f"router {name} of site {side.site}"
        # Those on the gates keep links to the other site's.
        self.wanted = TRANSPORTS[transport] * len(stage.names) if stage is side.shape.stages[-1] else 0
        self.command = [str(ISTHMUS), "lab", "exec", f"{stage.host}-{side.site}", "--",
                        str(ISTHMUS), "router", "run", "--config", str(folder / side.site / f"{name}.toml")]
        self.log = folder / f"{side.site}-{name}.log"
        self.start()

    def start(self):
        """Starts it, again where it was killed."""
        self.job = process.Running(self.command, {"ISTHMUS_LOG": "info", "NO_COLOR": "1"}, self.log)

    def links(self):
        """How many links stand that this router dialled."""
        lines = self.job.output().splitlines()
        return sum("link up" in line and "dialled=true" in line for line in lines)

    def missing(self):
        """What it does not have yet, in words; None when it is up."""
        if (links := self.links()) < self.wanted:
            return f"has {links} of {self.wanted} links"
        return None if "router ready" in self.job.output() else "is not ready"

    def send(self, number):
        """A signal: to kill, stop or continue it. `lab exec` has become the router itself."""
        self.job.process.send_signal(number)


class Network:
    """The routers of both sites. As a context: up when entered, gone when left.

    Links between the sites go by `transport`: tcp, udp, or auto for both.
    """

    def __init__(self, folder: Path, shape, transport="auto"):
        self.folder = folder
        self.transport = transport
        self.sides = {site: Side(shape, site) for site in AS_IDS}
        # By site: those next to the compute nodes first.
        self.routers = {site: [] for site in AS_IDS}

    def __enter__(self):
        try:
            a, b = self.sides.values()
            write_site(self.folder / a.site, a, b, self.transport)
            write_site(self.folder / b.site, b, a, self.transport)
            for side in self.sides.values():
                named = [(stage, name) for stage in side.shape.stages for name in stage.names]
                self.routers[side.site] = [Router(side, stage, name, self.folder, self.transport) for stage, name in named]
            self.await_routers(20)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def all_routers(self):
        return [router for routers in self.routers.values() for router in routers]

    def one_of_each(self, site):
        """The first router of every stage of a site."""
        return self.routers[site][:: len(GATE.names)]

    def await_routers(self, seconds):
        """Waits until every router is ready and has all the links that it keeps."""
        def waiting():
            return [f"{router.title} {why}" for router in self.all_routers() if (why := router.missing())]

        jobs = [router.job for router in self.all_routers()]
        try:
            process.await_until(jobs, lambda: not waiting(), seconds, "links of all routers", look=0.02)
        except Failure as why:
            raise NotReady(f"{', '.join(waiting())}: {why}; logs: {self.folder}") from None

    def place(self, site, **settings):
        """Where ranks of a site run, with the settings that they need there."""
        side = self.sides[site]
        return Place("routed", (site,), {
            "FI_ISTHMUS_AS_ID": str(side.as_id),
            "FI_ISTHMUS_SUBNET": str(side.shape.subnets[0].id),
            "FI_ISTHMUS_ROUTERS": ",".join(side.routers),
            "FI_ISTHMUS_INTERFACE": side.node,
            **settings,
        })

    def close(self):
        for router in self.all_routers():
            router.job.end()


__all__ = ["GATE", "SHAPES", "TRANSPORTS", "WAN", "Network", "NotReady", "write_lab"]

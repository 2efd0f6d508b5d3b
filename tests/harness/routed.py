"""Two sites whose compute networks share nothing, joined by routers.

    a ---cable--- gate-a ===== emulated WAN ===== gate-b ---cable--- b
        subnet 10    r1, r2     subnet 100      r1, r2    subnet 10
    ........... AS 1 ...........        ........... AS 2 ...........

Sites forward no IP packets: a and b can reach each other through the routers only.
Outside the lab, write_lab() says what the lab is; inside, a Network runs its routers.
"""

import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from . import process
from .mpis import ISTHMUS, Place

LAN, WAN = 10, 100
# The same for both ends: different routers of a site differ by their ports.
ROUTERS = {"r1": 4101, "r2": 4102}
# What each router dials to each of the other site's, as configured below.
LINKS = 4


@dataclass(frozen=True)
class Side:
    """A site: its compute node, its gateway, and its addresses."""

    site: str
    as_id: int
    node: str
    inside: str
    outside: str

    @property
    def gate(self):
        return f"gate-{self.site}"

    @property
    def routers(self):
        """Where ranks of this site find the routers."""
        return [f"{self.inside}:{port}" for port in ROUTERS.values()]

    @property
    def gateways(self):
        """Where the other site's routers find these."""
        return [f"{self.outside}:{port}" for port in ROUTERS.values()]


SIDES = {
    "a": Side("a", 1, "10.1.0.1", "10.1.0.2", "192.0.2.1"),
    "b": Side("b", 2, "10.2.0.1", "10.2.0.2", "192.0.2.2"),
}


class NotReady(Exception):
    """The routers do not come up; the text says what they said."""


# --- the files ---------------------------------------------------------------


def quoted(words):
    return ", ".join(f'"{word}"' for word in words)


def lab_text(link, cc=None):
    """The lab; `link` has the keys of a lab's [[link]], as TOML values."""
    sites = [name for side in SIDES.values() for name in (side.site, side.gate)]
    lines = [f'[[site]]\nname = "{name}"' + (f'\ncc = "{cc}"' if cc else "") for name in sites]
    for side in SIDES.values():
        lines.append(f'[[lan]]\nbetween = ["{side.site}", "{side.gate}"]\naddresses = ["{side.node}", "{side.inside}"]')
    ends = SIDES.values()
    lines.append(f"[[link]]\nbetween = [{quoted(side.gate for side in ends)}]\naddresses = [{quoted(side.outside for side in ends)}]")
    lines += [f"{key} = {value}" for key, value in link.items()]
    return "\n".join(lines) + "\n"


def write_lab(folder: Path, link, cc=None):
    """Writes the lab's configuration, and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "lab.toml"
    path.write_text(lab_text(link, cc))
    return path


def map_text(own, other):
    text = f"""[as]
id = {own.as_id}
name = "site {own.site}"

[[subnet]]
id = {LAN}
name = "lan"
rate = "10Gbit"
latency = "20us"

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
    for name, port in ROUTERS.items():
        text += f"""
[[router]]
name = "{name}"
joins = ["lan", "wan"]
endpoints = {{ lan = "{own.inside}:{port}", wan = "{own.outside}:{port}" }}
"""
    return text


def router_text(name, own, other):
    return f"""name = "{name}"
map = "map.toml"
admits = [{other.as_id}]

[subnet.lan]
plain = true

[tls]
certificate = "{name}.pem"
key = "{name}.key"
authorities = ["../{other.site}/as{other.as_id}.pem"]

[limits]
links = {LINKS}
"""


def write_site(folder: Path, own, other):
    """Map, configurations and keys of one site's routers."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "map.toml").write_text(map_text(own, other))
    for name in ROUTERS:
        (folder / f"{name}.toml").write_text(router_text(name, own, other))
        keygen = [str(ISTHMUS), "router", "keygen", "--as", str(own.as_id), "--out", str(folder), "--name", name]
        made = subprocess.run(keygen, capture_output=True, text=True)
        if made.returncode != 0:
            raise NotReady(f"no certificates: {made.stderr.strip()}")


# --- the routers -------------------------------------------------------------


class Router:
    """One `isthmus router run` on its site's gateway."""

    def __init__(self, side, name, folder):
        self.title = f"router {name} of site {side.site}"
        command = [str(ISTHMUS), "lab", "exec", side.gate, "--",
                   str(ISTHMUS), "router", "run", "--config", str(folder / side.site / f"{name}.toml")]
        self.job = process.Running(command, {"ISTHMUS_LOG": "info", "NO_COLOR": "1"}, folder / f"{side.site}-{name}.log")

    def links(self):
        """How many links stand that this router dialled."""
        lines = self.job.output().splitlines()
        return sum("link up" in line and "dialled=true" in line for line in lines)

    def send(self, number):
        """A signal: to kill, stop or continue it. `lab exec` has become the router itself."""
        self.job.process.send_signal(number)


class Network:
    """The routers of both sites. As a context: up when entered, gone when left."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.routers = {site: [] for site in SIDES}

    def __enter__(self):
        try:
            a, b = SIDES.values()
            write_site(self.folder / a.site, a, b)
            write_site(self.folder / b.site, b, a)
            for side in SIDES.values():
                self.routers[side.site] = [Router(side, name, self.folder) for name in ROUTERS]
            self.await_links(20)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def all_routers(self):
        return [router for routers in self.routers.values() for router in routers]

    def await_links(self, seconds):
        """Waits until every router has all the links that it keeps."""
        until = time.monotonic() + seconds
        wanted = LINKS * len(ROUTERS)
        while missing := [router for router in self.all_routers() if router.links() < wanted]:
            first = missing[0]
            if first.job.process.poll() is not None:
                raise NotReady(f"{first.title} ended with status {first.job.process.returncode}: {first.job.output().strip()}")
            if time.monotonic() > until:
                raise NotReady(f"{first.title} has {first.links()} of {wanted} links after {seconds} s: {first.job.log}")
            time.sleep(0.02)

    def place(self, site, **settings):
        """Where ranks of a site run, with the settings that they need there."""
        side = SIDES[site]
        return Place("routed", (site,), {
            "FI_ISTHMUS_AS_ID": str(side.as_id),
            "FI_ISTHMUS_SUBNET": str(LAN),
            "FI_ISTHMUS_ROUTERS": ",".join(side.routers),
            "FI_ISTHMUS_INTERFACE": side.node,
            **settings,
        })

    def close(self):
        for router in self.all_routers():
            router.job.end()


__all__ = ["LAN", "ROUTERS", "SIDES", "Network", "NotReady", "write_lab"]

"""docs/two-sites.md, done as it says: its files are written, and its commands run at the two sites of the lab."""

import contextlib
import getpass
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from . import mpis, process, run_cases, slurm
from .cases import Case, Failure, Skip, await_output, last_words
from .mpis import ISTHMUS, ROOT

GUIDE = ROOT / "docs" / "two-sites.md"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)


def block(word):
    """The block of commands that has this word."""
    found = [text for text in blocks("sh") if word in text]
    if len(found) != 1:
        raise Failure(f"docs/two-sites.md has {len(found)} blocks with {word!r}")
    return found[0]


SSHD = """HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
SetEnv PATH={path}
"""
SSH = """IdentityFile {folder}/key
IdentitiesOnly yes
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
BatchMode yes
"""


@contextlib.contextmanager
def ssh_to(c, *sites):
    """sshd at these sites, to which ssh of all sites gets in."""
    daemon = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if not daemon or os.geteuid() != 0:
        raise Skip("it takes root, and sshd (tools/bootstrap.sh base)")
    folder = sites[0].home.parent
    Path("/run/sshd").mkdir(exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)
    (folder / "ssh_config").write_text(SSH.format(folder=folder))
    with contextlib.ExitStack() as running:
        for site in sites:
            config = folder / f"sshd_config.{site.name}"
            config.write_text(SSHD.format(folder=folder, path=site.path))
            command = [str(ISTHMUS), "lab", "exec", site.name, "--", daemon, "-D", "-e", "-f", str(config)]
            job = process.Running(command, {}, c.log(f".sshd.{site.name}"))
            running.callback(job.end)
            await_output(job, "listening on", 20)
        yield


class Site:
    """A shell at a site, in a home of its own, whose scp leads to the other one."""

    def __init__(self, c, name, homes):
        self.c, self.name, self.home = c, name, homes[name]
        self.home.mkdir(parents=True, exist_ok=True)
        tools = self.home / "bin"
        tools.mkdir(exist_ok=True)
        for command, text in {
            "isthmus": f'exec {ISTHMUS} "$@"',
            "ssh": f'exec {shutil.which("ssh")} -F {self.home.parent / "ssh_config"} "$@"',
            "scp": f'exec cp "{homes["b" if name == "a" else "a"]}/${{2#*:}}" "$3"',
        }.items():
            (tools / command).write_text(f"#!/bin/sh\n{text}\n")
            (tools / command).chmod(0o755)
        for text in blocks("python"):
            (self.home / re.match(r"# (\S+)", text).group(1)).write_text(text)
        self.path = f"{tools}:{c.mpi.folder / 'bin'}:{os.environ['PATH']}"
        # The lab's hosts are namespaces of one machine: MPICH is told what separate hosts show it.
        self.env = {"PATH": self.path, "HYDRA_IFACE": "mgmt0", "MPIR_CVAR_NOLOCAL": "1"}

    def start(self, commands, suffix):
        script = self.home / f"run{suffix}.sh"
        script.write_text(f"set -eu\ncd {self.home}\n{commands}")
        return process.Running([str(ISTHMUS), "lab", "exec", self.name, "--", "bash", str(script)], self.env, self.c.log(suffix))

    def run(self, commands, suffix, seconds=60):
        return passed(self.start(commands, suffix), seconds)


# What section 7 says of jobs without routers and of ssh; the lab's own network is not of the two sites.
FIREWALL = """table inet two_sites { chain in { type filter hook input priority 0; policy drop;
  iifname { "lo", "mgmt0" } accept; ct state established accept; tcp dport 22 accept; meta l4proto { tcp, udp } th dport 5000-5100 accept; }; }
"""


@contextlib.contextmanager
def firewalls(*sites):
    """Both sites let in what section 7 names, and nothing else."""
    nft = shutil.which("nft", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if not nft:
        raise Skip("it takes nft (Debian: nftables)")
    with contextlib.ExitStack() as closed:
        for site in sites:
            closed.callback(site.run, f"{nft} delete table inet two_sites", ".opens")
            site.run(f"{nft} -f - <<'END'\n{FIREWALL}END", ".closes")
        yield


def passed(job, seconds=60):
    ended = job.wait(seconds)
    if ended.timed_out or ended.status:
        raise Failure(f"{'no end' if ended.timed_out else f'exit {ended.status}'}: {last_words(ended.output)}")
    return ended.output


def address_of(serving, seconds=20):
    """HOST:PORT, as the service prints it."""
    return await_output(serving, r"listening at isthmus://\d+\.\d+/([\d.]+:\d+)", seconds).group(1)


def in_homes(follow):
    """A case with a home for each of the two sites."""

    def body(c):
        if c.transport != "isthmus":
            raise Skip("a guide to Isthmus")
        with tempfile.TemporaryDirectory(prefix="two-sites-") as folder:
            homes = {name: Path(folder) / name for name in ("a", "b")}
            return follow(c, *(Site(c, name, homes) for name in homes))

    return body


@in_homes
def interactive(c, a, b):
    """Sections 2 and 3, at a prompt, and 3 once more with the ports of section 7."""
    a.run(block("isthmus doctor\n"), ".doctor")
    with ssh_to(c, a, b):
        told = a.run(block("--peer user@b").replace("user@", f"{getpass.getuser()}@"), ".ssh")
        # Hosts of the lab have one home.
        jobs = [a.run(block("-hosts a,b"), ".hello")]
        with firewalls(a, b):
            closed = a.run(block("--peer user@b").replace("user@", f"{getpass.getuser()}@"), ".closed")
            # By UDP two ranks that send to each other at once get through other ports too: each firewall takes the
            # packets of the other rank for answers.
            env = "export FI_ISTHMUS_TRANSPORT=tcp FI_ISTHMUS_PORT_RANGE=5000-5100\n"
            jobs.append(a.run(env + block("-hosts a,b"), ".ports"))
    for one in jobs:
        if "one job on" not in one:
            raise Failure(f"hello.py: {last_words(one)}")
    for line in ("TCP does not pass from here", "TCP does not pass from there", "would not connect"):
        if line not in closed:
            raise Failure(f"doctor does not say {line!r} of other ports: {closed}")
    for line in ("ok     tcp there", "ok     udp there", "ok     tcp back", "ok     udp back", "ok     isthmus cp", "ok     MPI jobs"):
        if line not in told:
            raise Failure(f"doctor does not say {line!r}: {told}")

    check = block("b:PORT")
    service = re.search(r"# in a job at b:  (.*)", check).group(1)
    serving = b.start(f"exec {service}\n", ".serve")
    try:
        told = a.run(check.replace("b:PORT", address_of(serving)), ".peer")
    finally:
        serving.end()
    if "UDP" not in told:
        raise Failure(f"doctor does not tell whether UDP passes: {last_words(told)}")
    return "doctor by ssh and by address, one job by ssh, also with the ports of the guide only"


def batch(a, b, of_a, of_b, env=None, change=str):
    """What two batch jobs print, one at each site's cluster: the blocks of the guide that have these words."""
    # MPICH's launcher looks at what Slurm tells it, and starts its proxies by srun.
    jobs = [cluster.submit(change(block(words)), site.home, {**site.env, **(env or {}).get(site.name, {}), "PATH": f"{cluster.tools}:{site.path}"})
            for (site, cluster), words in zip((a, b), (of_a, of_b))]
    return [job.wait(90) for job in jobs]


def require(text, lines):
    for line in lines:
        if line not in text:
            raise Failure(f"no line {line!r}: {last_words(text)}")


@in_homes
def by_slurm(c, a, b):
    """Sections 4 and 5: batch scripts."""
    with slurm.Cluster(c, "a") as first, slurm.Cluster(c, "b") as second:
        world, _ = batch((a, first), (b, second), "--part 1/2", "--part 2/2")
        told = re.search(r"one job on (.*)", world)
        if not told or len(told.group(1).split()) != 5:
            raise Failure(f"the parts are no world of five ranks: {last_words(world)}")

        connected, accepted = batch((a, first), (b, second), "couple.py connect", "couple.py accept")
    for text, here, there in ((accepted, "accept", "connect"), (connected, "connect", "accept")):
        require(text, [f"rank {rank} of {here} got a message of rank {rank} of {there}" for rank in range(2)])
    return "batch jobs: one job of two parts, two jobs that couple"


@in_homes
def by_name(c, a, b):
    """Section 6: batch jobs at sites that only routers join. Two couple by a name; two are the parts of section 4."""
    if words := mpis.compile_mover(c.mpi, c.log(".compile"), sources=()):
        raise Failure(f"the coupling library does not compile: {last_words(words)}")

    def change(text):
        # The lab's numbers in place of the example's.
        text = text.replace("~/isthmus/build/lib/mpi/mpich", str(mpis.mover_folder(c.mpi)))
        for name, side in c.net.sides.items():
            subnet = side.shape.subnets[0].id
            text = text.replace(f"10.{side.as_id}.0.1:4100", side.routers[0]).replace(f"//{side.as_id}.1/", f"//{side.as_id}.{subnet}/")
            text = text.replace("FI_ISTHMUS_SUBNET=1 ", f"FI_ISTHMUS_SUBNET={subnet} ")
        return text

    def at_a_name(text):
        return re.sub(r"^until .*\n", "", text, flags=re.M).replace("file:climate.at", f"{run_cases.at_router(c)}/climate")

    env = {name: {"HYDRA_IFACE": "lo", "FI_ISTHMUS_INTERFACE": side.node} for name, side in c.net.sides.items()}
    with slurm.Cluster(c, "a") as first, slurm.Cluster(c, "b") as second:
        one, two = batch((a, first), (b, second), "by_name.py 1", "by_name.py 2", env, change)
        world, _ = batch((a, first), (b, second), "--part 1/2", "--part 2/2",
                         {name: {**env[name], **c.net.place(name).settings} for name in env}, at_a_name)
    for text, part, other in ((one, 1, 2), (two, 2, 1)):
        require(text, [f"rank {rank} of part {part} got {100 * other + rank}" for rank in range(2)])
    require(world, ["one job on a a a b b"])
    return "by a name at a router: two batch jobs that couple, and one job of two parts"


CASES = {
    case.name: case
    for case in (
        Case("two-sites", interactive, places=("sites",), mpis=("mpich",)),
        Case("two-sites-slurm", by_slurm, places=("sites",), mpis=("mpich",)),
    )
}

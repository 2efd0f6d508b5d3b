#!/usr/bin/env python3
"""The release that tools/release.env names beside the present build, in both directions: one table.

    suites/releases.py           all of it
    suites/releases.py cp mpi    some: mpi, mover, cp, routers, substrate

The release is built once, from its commit, into build/releases/VERSION. Everything runs on this host's loopback. In each
run one end is of the release and the other of the present build, then the other way round. "memory" runs use shared memory,
"tcp" and "udp" runs do not. The exit status is 1 if anything fails.
Logs: build/logs/suites/releases/
"""

import filecmp
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from harness import mpis, process  # noqa: E402

ROOT = mpis.ROOT
BUILD = ROOT / "build"
LOGS = BUILD / "logs" / "suites" / "releases"
SECONDS = 60
# How a build is compiled that is only tried: not the fastest code, but in half the time.
QUICK = {"CARGO_PROFILE_RELEASE_LTO": "off", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16", "CARGO_PROFILE_RELEASE_DEBUG": "0"}
LANES = {
    "memory": {},
    "tcp": {"FI_ISTHMUS_FABRIC": "off", "FI_ISTHMUS_TRANSPORT": "tcp", "FI_ISTHMUS_ENCRYPT": "always"},
    "udp": {"FI_ISTHMUS_FABRIC": "off", "FI_ISTHMUS_TRANSPORT": "udp"},
}


class Failed(Exception):
    pass


@dataclass(frozen=True)
class Release:
    """What was built of one commit, and where."""

    name: str
    folder: Path

    @property
    def isthmus(self):
        return self.folder / "bin" / "isthmus"

    @property
    def lib(self):
        return self.folder / "lib"


def pinned():
    text = (ROOT / "tools" / "release.env").read_text()
    return dict(re.findall(r"^RELEASE_(\w+)=(.*)$", text, re.M))


def released():
    """The release, built where it is not."""
    version, commit = pinned()["VERSION"], pinned()["COMMIT"]
    release = Release(f"release {version}", BUILD / "releases" / version)
    stamp, source = release.folder / "COMMIT", release.folder / "source"
    if stamp.exists() and stamp.read_text().strip() == commit:
        return release
    print(f"building {version} from {commit[:7]}, once", flush=True)
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    subprocess.run(["tar", "x"], cwd=source, input=archive.stdout, check=True)
    env = {**os.environ, **QUICK, "CARGO_TARGET_DIR": str(BUILD / "releases" / "target"), "BUILD": str(release.folder)}
    env.pop("TARGET", None)
    subprocess.run(["tools/build.sh"], cwd=source, env=env, check=True)
    stamp.write_text(commit + "\n")
    return release


def loopback(**more):
    """The environment of an endpoint on 127.0.0.1, without settings of this host."""
    env = {"FI_ISTHMUS_INTERFACE": "127.0.0.1", "ISTHMUS_CONFIG": "/dev/null", **more}
    return env


def ran(command, env, log, seconds=SECONDS):
    ended = process.run([str(word) for word in command], env, LOGS / f"{log}.log", seconds)
    if ended.status != 0:
        why = "no end in time" if ended.timed_out else f"exit {ended.status}"
        raise Failed(f"{why}; see {LOGS / log}.log")
    return ended.output


class Running:
    """A process that ends with its block."""

    def __init__(self, command, env, log, ready, cwd=None):
        self.running = process.Running([str(word) for word in command], env, LOGS / f"{log}.log", cwd)
        try:
            self.said = process.await_until([self.running], lambda: re.search(ready, self.running.output(), re.M), SECONDS, f"output {ready!r}")
        except process.Failure as why:
            self.running.process.kill()
            raise Failed(f"not ready: {why}; see {LOGS / log}.log") from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.running.process.kill()
        self.running.process.wait()


def free(*hosts):
    """An address of each host at which nobody listens."""
    addresses = []
    for host in hosts:
        with socket.create_server((host, 0)) as free:
            addresses.append(f"{host}:{free.getsockname()[1]}")
    return addresses


def place(name):
    """An empty folder."""
    folder = LOGS / f"{name}.files"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


# --- MPI ---------------------------------------------------------------------


def by_rank(name, *environments):
    """A command that gives each rank an environment of its own."""
    script = LOGS / f"{name}.sh"
    cases = "\n".join(
        f"{rank}) {' '.join(f'export {key}={value};' for key, value in env.items())} ;;" for rank, env in enumerate(environments)
    )
    script.write_text(f'#!/bin/sh\ncase ${{PMI_RANK:-$PMIX_RANK}} in\n{cases}\nesac\nexec "$@"\n')
    script.chmod(0o755)
    return script


def mpich():
    mpi = mpis.MPIS["mpich"]
    if mpi.missing():
        raise Failed(mpi.missing())
    return mpi


def mpi(first, second, name):
    """Two ranks, each with a provider of its own."""
    mpi = mpich()
    sources = [ROOT / "tests" / "mpi" / f"{program}.c" for program in ("pingpong", "onesided", "collectives")]
    if words := mpis.compile_programs(mpi, sources, LOGS / "mpi.compile.log"):
        raise Failed(f"does not compile: {words[-200:]}")
    script = by_rank(name, *({"FI_PROVIDER_PATH": end.lib} for end in (first, second)))
    for lanes, settings in LANES.items():
        for source in sources:
            size = "8M" if source.stem == "pingpong" else "256k"
            words = [str(script), str(mpi.programs / source.stem), size]
            command, env = mpi.command(2, words, "isthmus", env={**mpi.verbose, **loopback(**settings)})
            said = ran(command, env, f"{name}.{lanes}.{source.stem}")
            if not re.search(r"^OK \w+: ", said, re.M) or "libfabric provider: isthmus" not in said:
                raise Failed(f"{source.stem} by {lanes}: not verified, or not over Isthmus")


def mover(first, second, name):
    """Senders with one library of the mover and receivers with the other."""
    mpi = mpich()
    libraries = []
    for end in (first, second):
        source = end.folder / "source" if (end.folder / "source").exists() else ROOT
        if source != ROOT:
            (source / "build").mkdir(exist_ok=True)
            lib = source / "build" / "lib"
            if not lib.exists():
                lib.symlink_to(end.lib)
        ran(["bash", "-c", f"cd {source} && tools/build-mpi.sh {mpi.name} {' '.join(mpi.mpicc())}"], {}, f"{name}.build")
        libraries.append(source / "build" / "lib" / "mpi" / mpi.name / "libisthmus-mpi.so.1")
    if words := mpis.compile_mover(mpi, LOGS / "mover.compile.log"):
        raise Failed(f"does not compile: {words[-200:]}")
    ends = [{"LD_PRELOAD": library, "FI_PROVIDER_PATH": end.lib} for library, end in zip(libraries, (first, second))]
    script, folder = by_rank(name, *ends), place(name)
    command, env = mpi.command(2, [str(script), str(mpi.programs / "mover"), "split", str(folder), "1"], "isthmus", env=loopback())
    if not re.search(r"^OK ", ran(command, env, name), re.M):
        raise Failed("not verified")


# --- files and routers ---------------------------------------------------------


def files_of(folder):
    """What is copied: a long file and short ones."""
    source = folder / "source"
    source.mkdir()
    (source / "long").write_bytes(os.urandom(1 << 20) * 24)
    for number in range(20):
        (source / f"short-{number}").write_bytes(os.urandom(1000 + number))
    return source


def keys(folder, isthmus):
    """Certificates of two AS's: of a mover and a router each."""
    for as_id in (1, 2):
        for role in ("mover", "router"):
            words = ["router", "keygen", "--as", as_id, "--role", role, "--name", f"{role}{as_id}", "--out", folder / "keys"]
            ran([isthmus, *words], loopback(), "keygen")


def tls(folder, role, own):
    at = folder / "keys"
    return f'[tls]\ncertificate = "{at}/{role}{own}.pem"\nkey = "{at}/{role}{own}.key"\nauthorities = ["{at}/as{3 - own}.pem"]\n'


def copied(client, server, name, environments=({}, {}), more=""):
    """Files to a service and back."""
    folder = place(name)
    source, (address,) = files_of(folder), free("127.0.0.1")
    keys(folder, client.isthmus)
    (folder / "export").mkdir()
    export = f'[export.data]\npath = "{folder}/export"\nwritable = true\n'
    device = "".join(f'{key} = {value}\n' for key, value in environments[1].items())
    device = f'[device]\ninterface = "127.0.0.1"\n{device}'
    (folder / "serve.toml").write_text(f'listen = "{address}"\nadmits = [1]\n{tls(folder, "mover", 2)}{export}{device}')
    (folder / "sites.toml").write_text(f'{tls(folder, "mover", 1)}[site.b]\naddress = "{address}"\n{more}')
    env = loopback(ISTHMUS_SITES=folder / "sites.toml", **{f"FI_ISTHMUS_{key.upper()}": str(value).strip('"') for key, value in environments[0].items()})
    env = {key: str(value) for key, value in env.items()}
    with Running([server.isthmus, "serve", "--config", folder / "serve.toml"], loopback(), f"{name}.serve", "serving|listening"):
        ran([client.isthmus, "cp", "-r", source, "b:data/there"], env, f"{name}.put")
        ran([client.isthmus, "cp", "-r", "b:data/there/source", folder / "back"], env, f"{name}.get")
    for file in source.iterdir():
        if not filecmp.cmp(file, folder / "back" / "source" / file.name, shallow=False):
            raise Failed(f"{file.name} differs")


def cp(client, server, name):
    """Files by `isthmus cp` to `isthmus serve` and back."""
    copied(client, server, name)


def with_routers(first, second, name, links, work):
    """Does `work` while a router of each build joins AS 1 and AS 2."""
    folder = place(f"{name}.routers")
    keys(folder, first.isthmus)
    (near, near_wan), (far, far_wan) = free("127.0.1.1", "127.0.1.2"), free("127.0.2.1", "127.0.2.2")
    for own, (inside, wan), gateway in ((1, (near, near_wan), far_wan), (2, (far, far_wan), near_wan)):
        subnet = 'rate = "10Gbit"\nlatency = "10us"\n'
        (folder / f"map{own}.toml").write_text(
            f'[as]\nid = {own}\n[[subnet]]\nid = 1\nname = "lan"\n{subnet}[[wan]]\nid = 100\nname = "wan"\n{subnet}'
            f'[[router]]\nname = "r"\njoins = ["lan", "wan"]\nendpoints = {{ lan = "{inside}", wan = "{wan}" }}\n'
            f'[[remote]]\nid = {3 - own}\nvia = ["wan"]\ngateways = {{ wan = ["{gateway}"] }}\n'
        )
        (folder / f"r{own}.toml").write_text(
            f'name = "r"\nmap = "map{own}.toml"\nadmits = [{3 - own}]\n[subnet.lan]\nplain = true\ntargets = ["127.0.0.0/8"]\n'
            f'[subnet.wan]\ntransport = "{links}"\n{tls(folder, "router", own)}'
        )
    routers = [(first, 1), (second, 2)]
    commands = [[end.isthmus, "router", "run", "--config", folder / f"r{own}.toml"] for end, own in routers]
    with Running(commands[0], loopback(), f"{name}.r1", "listening"), Running(commands[1], loopback(), f"{name}.r2", "link up"):
        work([{"as_id": 1, "subnet": 1, "routers": f'"{near}"'}, {"as_id": 2, "subnet": 1, "routers": f'"{far}"'}])


def routers(first, second, name):
    """Routers of two sites: files go through both, from the one build's client to the other's service."""
    for links in ("tcp", "udp"):
        with_routers(
            first, second, f"{name}.{links}", links,
            lambda ends: copied(second, first, f"{name}.{links}", ends, "as = 2\nsubnet = 1\n"),
        )


# --- the substrate --------------------------------------------------------------


def substrate(first, second, name):
    """C programs, each with a library of its own: directly, and through routers of both builds."""
    programs = LOGS / "programs"
    programs.mkdir(exist_ok=True)
    for program in ("pingpong", "stream", "keyvalue", "rma_pipeline"):
        source = ROOT / "examples" / "c" / f"{program}.c"
        ran(
            ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O1", f"-I{ROOT}/include", source, "-o", programs / program, f"-L{first.lib}", "-listhmus", "-lm"],
            {}, "substrate.compile",
        )

    def played(settings, how):
        def env(end, own):
            words = {f"FI_ISTHMUS_{key.upper()}": str(value).strip('"') for key, value in own.items()}
            return {key: str(value) for key, value in loopback(LD_LIBRARY_PATH=end.lib, **words).items()}

        for level in ("uu", "ru", "ro"):
            log = f"{name}.{how}.{level}"
            with Running([programs / "pingpong", level], env(first, settings[0]), f"{log}.serve", r"^isthmus://\S+") as served:
                uri = served.said.group(0)
                ran([programs / "pingpong", level, uri, "200"], env(second, settings[1]), log)
        log = f"{name}.{how}.rma"
        with Running([programs / "rma_pipeline"], env(first, settings[0]), f"{log}.serve", r"^isthmus://\S+") as served:
            ran([programs / "rma_pipeline", served.said.group(0)], env(second, settings[1]), log)

    for lanes, settings in LANES.items():
        own = {key.removeprefix("FI_ISTHMUS_").lower(): value for key, value in settings.items()}
        played((own, own), lanes)
    with_routers(first, second, f"{name}.routed", "auto", lambda ends: played(ends, "routed"))


WORK = {"mpi": mpi, "mover": mover, "cp": cp, "routers": routers, "substrate": substrate}


def main():
    chosen = sys.argv[1:] or list(WORK)
    if unknown := [word for word in chosen if word not in WORK]:
        sys.exit(f"{sys.argv[0]}: no {unknown[0]}; there are {', '.join(WORK)}")
    LOGS.mkdir(parents=True, exist_ok=True)
    release, present = released(), Release("this build", BUILD)
    failed = 0
    for work in chosen:
        for first, second in ((release, present), (present, release)):
            name = f"{work}.{first.name}-{second.name}".replace(" ", "-")
            began = time.monotonic()
            try:
                WORK[work](first, second, name)
                outcome = f"works ({time.monotonic() - began:.1f} s)"
            except Failed as why:
                failed, outcome = failed + 1, f"FAILED: {why}"
            print(f"{work:10} {first.name:14} and {second.name:14} {outcome}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())

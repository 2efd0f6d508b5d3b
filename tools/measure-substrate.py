#!/usr/bin/env python3
"""Measures the substrate over every transport and level, beside plain sockets and other programs.

What goes within a host is measured between two processes of this one (tcp, udp, shm); frames
between two network namespaces that a veth pair joins, which takes root or user namespaces. Each
round measures everything in turn; medians, extremes and ratios come at the end (isthmus bench --help).

    tools/measure-substrate.py                          all of it, 5 rounds
    tools/measure-substrate.py --rounds 9 pingpong      round trips only
    tools/measure-substrate.py --only ethernet --isthmus target/release/isthmus
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = ["pingpong", "stream", "rma"]
WITHIN = ["tcp", "udp", "shm"]
# Set within the namespace in which this program runs again.
INSIDE = "MEASURE_SUBSTRATE_INSIDE"


def config(folder, name, interface):
    path = folder / name
    path.write_text(f'[device]\ninterface = "{interface}"\n')
    return {**os.environ, "ISTHMUS_CONFIG": str(path)}


def bench(args, test, more, env):
    print(f"\n== {test}: {' '.join(more)}", flush=True)
    words = [args.isthmus, "bench", test, "--rounds", str(args.rounds), *more]
    return subprocess.run(words, env=env).returncode == 0


def by_frames(args, folder):
    """In a namespace of its own: the far one is a child's."""
    server = 'ip link set lo up; read go; ip addr add 10.98.1.2/24 dev far; ip link set far up; exec "$@"'
    words = ["unshare", "--net", "sh", "-c", server, "sh", args.isthmus, "bench", "serve", "--until-eof"]
    env = config(folder, "far.toml", "far")
    far = subprocess.Popen(
        [*words, "--transport", "ethernet"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    # The child has its namespace once it waits for what it reads; its link is made until that works.
    run = lambda words: subprocess.run(words.split(), check=True)
    run("ip link set lo up")
    own = os.readlink("/proc/self/ns/net")
    while os.readlink(f"/proc/{far.pid}/ns/net") == own:
        if far.poll() is not None:
            return False
    run(f"ip link add near type veth peer name far netns {far.pid}")
    run("ip addr add 10.98.1.1/24 dev near")
    run("ip link set near up")
    print("go", file=far.stdin, flush=True)
    to = far.stdout.readline().strip()
    env = config(folder, "near.toml", "near")
    good = [bench(args, test, ["--transport", "ethernet", "--to", to], env) for test in args.tests]
    far.stdin.close()
    far.wait()
    return all(good)


def again_inside():
    """This program in a network namespace."""
    ways = [["unshare", "--net"], ["unshare", "--user", "--map-root-user", "--net"]]
    for way in ways:
        if subprocess.run([*way, "ip", "link"], capture_output=True).returncode == 0:
            words = [*way, sys.executable, *sys.argv, "--only", "ethernet"]
            return subprocess.run(words, env={**os.environ, INSIDE: "yes"}).returncode == 0
    print("without ethernet: no network namespaces, or no ip(8), for this user")
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", metavar="TEST", help=f"of {', '.join(TESTS)}; all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=[*WITHIN, "ethernet"])
    parser.add_argument("--isthmus", default=str(ROOT / "build/bin/isthmus"))
    args = parser.parse_args()
    args.tests = args.tests or TESTS
    if unknown := [test for test in args.tests if test not in TESTS]:
        parser.error(f"no such test: {', '.join(unknown)}")
    if not os.access(args.isthmus, os.X_OK):
        parser.error(f"{args.isthmus} is missing: run make build")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        if os.environ.get(INSIDE):
            return 0 if by_frames(args, folder) else 1
        good = True
        if args.only != "ethernet":
            by = ["--transport", args.only or ",".join(WITHIN)]
            env = config(folder, "here.toml", "127.0.0.1")
            good = all([bench(args, test, by, env) for test in args.tests])
        if args.only in (None, "ethernet"):
            good &= again_inside()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

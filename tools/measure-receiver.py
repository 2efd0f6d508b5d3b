#!/usr/bin/env python3
"""UDP beside TCP where the receiver's processor does not keep up: one way, between two hosts that are joined by a cable.

The hosts are network namespaces on one pair of Ethernet interfaces (veth), without an emulator, and each has one
processor, of which the receiver runs for so much of each period (a cgroup of version 1 or 2); as root, though both
ends run as nobody, so that their sockets hold what the system lets users have. Messages of 1 MiB, 16 under way.
"""
import argparse
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "measure"))
from cable import at, hosts, ip, stream  # noqa: E402

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def share_of_processor(run_us, period_us, stack):
    """The file by which a process comes to run for so long of each period."""
    first = os.path.exists("/sys/fs/cgroup/cpu")
    folder = f"/sys/fs/cgroup/{'cpu/' if first else ''}measure-{os.getpid()}"
    os.mkdir(folder)
    stack.callback(os.rmdir, folder)
    limits = {"cpu.cfs_period_us": period_us, "cpu.cfs_quota_us": run_us} if first else {"cpu.max": f"{run_us} {period_us}"}
    for name, value in limits.items():
        with open(f"{folder}/{name}", "w") as file:
            file.write(str(value))
    return f"{folder}/cgroup.procs"


def counts(near, far):
    """Bytes that left, messages of packets that were taken in, and those that their socket had no room for."""
    link = ip("-n", near, "-s", "-j", "link", "show", "dev", "cable", stdout=subprocess.PIPE)
    snmp = ip("netns", "exec", far, "cat", "/proc/net/snmp", stdout=subprocess.PIPE, text=True).stdout
    names, values = (line.split()[1:] for line in snmp.splitlines() if line.startswith("Udp:"))
    udp = dict(zip(names, map(int, values)))
    return json.loads(link.stdout)[0]["stats64"]["tx"]["bytes"], udp["InDatagrams"], udp["RcvbufErrors"]


def measure(args, names, transport, procs):
    near, far = names

    def limit():
        if procs:
            with open(procs, "w") as file:
                file.write(str(os.getpid()))

    ends = [at(host, processor, {"TRANSPORT": transport, "TLS": "off"}, NOBODY)
            for host, processor in zip(names, args.processors)]
    before = counts(near, far)
    carried, seconds = stream(args.isthmus, *ends, args.count, preexec_fn=limit)
    sent, taken, dropped = (after - was for after, was in zip(counts(near, far), before))
    print(f"{transport}: {carried * 8 / seconds / 1e9:.2f} Gb/s; {sent / carried:.2f} bytes "
          f"on the wire for each; {100 * dropped / max(1, taken + dropped):.1f} % of messages dropped", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isthmus", default="build/bin/isthmus", help="where nobody may run it")
    parser.add_argument("--transports", nargs="+", default=["udp", "tcp"])
    parser.add_argument("--mtu", default="9000")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--count", type=int, default=2000, help="messages of 1 MiB")
    parser.add_argument("--run-us", type=int, default=1000, help="for how long of each period the receiver runs; 0: always")
    parser.add_argument("--period-us", type=int, default=10000)
    parser.add_argument("--processors", type=int, nargs=2, default=(0, 1), help="of the near and of the far host")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        names = hosts(args.mtu, stack)
        procs = share_of_processor(args.run_us, args.period_us, stack) if args.run_us else None
        for _ in range(args.rounds):
            for transport in args.transports:
                measure(args, names, transport, procs)


main()

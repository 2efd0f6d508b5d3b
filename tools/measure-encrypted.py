#!/usr/bin/env python3
"""What encryption costs lanes: one way, between two hosts that are joined by a cable.

Plain: endpoints that are open, or, by TCP, that never encrypt. Sealed: with keys from the lane's own handshake, as
between far hosts by default. TLS: with certificates.

The hosts are network namespaces on one pair of Ethernet interfaces (veth), without an emulator, and each
has one processor; as root. Messages of 1 MiB, 16 under way (isthmus bench stream), runs of each kind in turn for
each size of packets.
"""
import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "measure"))
from cable import at, hosts, stream  # noqa: E402

AS = "1"
KINDS = {
    "plain": {"ADMISSION": "open", "ENCRYPT": "never"},
    "sealed": {"ENCRYPT": "always"},
    "tls": {"TLS": "required", "ADMISSION": "open"},
}


def goodput_gbps(args, names, keys, kind):
    settings = KINDS[kind] | {
        "TRANSPORT": args.transport, "TLS_CERTIFICATE": f"{keys}/router.pem",
        "TLS_KEY": f"{keys}/router.key", "TLS_AUTHORITIES": f"{keys}/as{AS}.pem",
    }
    ends = [at(host, processor, settings) for host, processor in zip(names, args.processors)]
    carried, seconds = stream(args.isthmus, *ends, args.count)
    return carried * 8 / seconds / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isthmus", default="build/bin/isthmus")
    parser.add_argument("--transport", default="udp", choices=("udp", "tcp"))
    parser.add_argument("--mtu", nargs="+", default=["9000", "1500"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=4000, help="messages of 1 MiB")
    parser.add_argument("--processors", type=int, nargs=2, default=(0, 1), help="of the near and of the far host")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as keys:
        keygen = [args.isthmus, "router", "keygen", "--as", AS, "--out", keys]
        subprocess.run(keygen, check=True, stdout=subprocess.DEVNULL)
        for mtu in args.mtu:
            with contextlib.ExitStack() as stack:
                names = hosts(mtu, stack)
                rounds = [{kind: goodput_gbps(args, names, keys, kind) for kind in KINDS}
                          for _ in range(args.rounds)]
            for kind in KINDS:
                rates = [one[kind] for one in rounds]
                ratio = statistics.median(one[kind] / one["plain"] for one in rounds)
                print(f"MTU {mtu}, {args.transport}, {kind}: {statistics.median(rates):.1f} Gb/s "
                      f"({min(rates):.1f} to {max(rates):.1f}), {ratio:.2f} of plain (median of {args.rounds})")


main()

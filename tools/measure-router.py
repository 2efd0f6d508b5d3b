#!/usr/bin/env python3
"""What a router adds: round trips of 8 bytes, and the goodput of one stream.

On loopback, or with --rate between three hosts (network namespaces) whose links have that
rate: client, router and server, and a link from client to server for comparison; as root.
Direct connections and lanes through the router alternate, since the machine's load changes.
The client sends a real Hello; the server is a process of its own.
"""
import argparse
import contextlib
import ctypes
import os
import socket
import statistics
import struct
import subprocess
import tempfile
import time

HELLO_LEN = 80
# Where the router listens, on its two subnets.
PORTS = (4901, 4902)


def address(as_id, subnet, host, port):
    ip = bytes(10) + b"\xff\xff" + socket.inet_aton(host)
    return struct.pack(">BBHIII", 0xA5, 1, port, as_id, subnet, 1) + ip


def hello(source, target):
    head = b"\x01ISTH" + struct.pack("<H", 1)
    return head + address(1, 1, source, 9) + address(1, 2, *target) + struct.pack("<QB", 1 << 20, 0)


def exactly(lane, count):
    got = b""
    while len(got) < count:
        got += lane.recv(count - len(got)) or exit("the lane ended early")
    return got


def serve(listener):
    """Echoes 8 bytes at a time, or takes a stream and says when it has ended."""
    buffer = bytearray(1 << 20)
    while True:
        lane, _ = listener.accept()
        lane.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        exactly(lane, HELLO_LEN)
        if lane.recv(1) == b"e":
            while (got := lane.recv(8)):
                lane.sendall(got)
        else:
            while lane.recv_into(buffer):
                pass
            lane.sendall(b"!")
        lane.close()


def dial(to, target, mode):
    lane = socket.create_connection(to)
    lane.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    lane.sendall(hello(lane.getsockname()[0], target))
    lane.sendall(mode)
    return lane


def round_trip_us(to, target, count):
    lane, times = dial(to, target, b"e"), []
    for _ in range(count):
        began = time.perf_counter_ns()
        lane.sendall(b"12345678")
        exactly(lane, 8)
        times.append(time.perf_counter_ns() - began)
    lane.close()
    return statistics.median(times) / 1e3


def goodput_gbps(to, target, size):
    lane, block = dial(to, target, b"s"), bytes(1 << 20)
    began = time.perf_counter()
    for _ in range(size >> 20):
        lane.sendall(block)
    lane.shutdown(socket.SHUT_WR)
    exactly(lane, 1)
    lane.close()
    return (size >> 20 << 20) * 8 / (time.perf_counter() - began) / 1e9


class Loopback:
    """Client, router and server on one host."""

    router = ("127.0.0.2", "127.0.0.2")
    direct = routed = "127.0.0.1"

    def at(self, _host):
        return []

    def enter(self, _host):
        pass


class Hosts:
    """Three namespaces: `client` - `router` - `server`, and `client` - `server`."""

    router = ("10.99.1.2", "10.99.2.1")
    routed, direct = "10.99.2.2", "10.99.3.2"

    def __init__(self, rate, stack):
        self.names = {host: f"measure-{os.getpid()}-{host}" for host in ("client", "router", "server")}
        for host, name in self.names.items():
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            ip("-n", name, "link", "set", "lo", "up")
        for number, ends in enumerate((("client", "router"), ("router", "server"), ("client", "server")), 1):
            devices = [f"m{number}{end[0]}" for end in ends]
            near, far = (self.names[end] for end in ends)
            ip("link", "add", devices[0], "netns", near, "mtu", "9000", "type", "veth", "peer", "name", devices[1], "netns", far, "mtu", "9000")
            for last, (name, device) in enumerate(zip((near, far), devices), 1):
                ip("-n", name, "address", "add", f"10.99.{number}.{last}/24", "dev", device)
                ip("-n", name, "link", "set", device, "up")
                shape = ["qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "1mb", "latency", "5ms"]
                subprocess.run(["tc", "-n", name, *shape], check=True)

    def at(self, host):
        return ["ip", "netns", "exec", self.names[host]]

    def enter(self, host):
        with open(f"/run/netns/{self.names[host]}", "rb") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"cannot enter {host}")


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def start_router(isthmus, folder, threads, place):
    near, far = place.router
    subnets = "".join(
        f'[[subnet]]\nid = {i}\nname = "{n}"\nrate = "10Gbit"\nlatency = "1us"\n' for i, n in ((1, "a"), (2, "b"))
    )
    ends = f'endpoints = {{ a = "{near}:{PORTS[0]}", b = "{far}:{PORTS[1]}" }}\n'
    with open(f"{folder}/map.toml", "w") as out:
        out.write(f'[as]\nid = 1\n{subnets}[[router]]\nname = "r"\njoins = ["a", "b"]\n{ends}')
    with open(f"{folder}/router.toml", "w") as out:
        targets = 'targets = ["127.0.0.0/8", "10.99.0.0/16"]\n'
        out.write(f'name = "r"\nmap = "map.toml"\n[subnet.a]\nplain = true\n{targets}[subnet.b]\nplain = true\n{targets}')
    command = [*place.at("router"), isthmus, "router", "run", "--config", f"{folder}/router.toml"]
    notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notices.bind(f"{folder}/notify")
    notices.settimeout(30)
    environment = dict(os.environ, NOTIFY_SOCKET=f"{folder}/notify")
    process = subprocess.Popen(command + (["--threads", threads] if threads else []), env=environment)
    notices.recv(64)
    process.notices = notices  # it tells its end there, too
    return process, (near, PORTS[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isthmus", default="build/bin/isthmus")
    parser.add_argument("--threads", help="threads of the router")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", type=int, default=2 << 30, help="bytes of the stream")
    parser.add_argument("--rate", help="between three hosts, whose links have this rate, such as 10gbit")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        place = Hosts(args.rate, stack) if args.rate else Loopback()
        measure(args, place, stack)


def measure(args, place, stack):
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    router, through = start_router(args.isthmus, folder, args.threads, place)
    stack.callback(router.wait)
    stack.callback(router.terminate)
    ready, tell = os.pipe()
    server = os.fork()
    if server == 0:
        place.enter("server")
        listener = socket.create_server(("", 0))
        os.write(tell, struct.pack("<H", listener.getsockname()[1]))
        serve(listener)
    stack.callback(os.kill, server, 15)
    port = struct.unpack("<H", os.read(ready, 2))[0]
    place.enter("client")
    direct, target = (place.direct, port), (place.routed, port)
    both = [(direct, (place.direct, port)), (through, target)]
    times = [[round_trip_us(to, end, 5000) for to, end in both] for _ in range(args.rounds)]
    rates = [[goodput_gbps(to, end, args.size) for to, end in both] for _ in range(args.rounds)]
    middle = statistics.median
    print(f"8-byte round trip, median: {middle(d for d, _ in times):.1f} us direct, "
          f"{middle(t for _, t in times):.1f} us through, {middle(t - d for d, t in times):.1f} us added")
    print(f"stream: {middle(d for d, _ in rates):.2f} Gb/s direct, {middle(t for _, t in rates):.2f} Gb/s through, "
          f"ratio {middle(t / d for d, t in rates):.2f} (median of {args.rounds} pairs)")


main()

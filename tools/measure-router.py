#!/usr/bin/env python3
"""What a router adds on loopback: round trips of 8 bytes, and the goodput of one stream.

Direct connections and lanes through the router alternate, since the machine's load changes.
The client sends a real Hello; the server is a process of its own.
"""
import argparse
import os
import socket
import statistics
import struct
import subprocess
import tempfile
import time

HELLO_LEN = 80


def address(as_id, subnet, port):
    ip = bytes(10) + b"\xff\xff" + socket.inet_aton("127.0.0.1")
    return struct.pack(">BBHIII", 0xA5, 1, port, as_id, subnet, 1) + ip


def hello(port):
    head = b"\x01ISTH" + struct.pack("<H", 1)
    return head + address(1, 1, 9) + address(1, 2, port) + struct.pack("<QB", 1 << 20, 0)


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


def dial(to, port, mode):
    lane = socket.create_connection(to)
    lane.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    lane.sendall(hello(port))
    lane.sendall(mode)
    return lane


def round_trip_us(to, port, count):
    lane, times = dial(to, port, b"e"), []
    for _ in range(count):
        began = time.perf_counter_ns()
        lane.sendall(b"12345678")
        exactly(lane, 8)
        times.append(time.perf_counter_ns() - began)
    lane.close()
    return statistics.median(times) / 1e3


def goodput_gbps(to, port, size):
    lane, block = dial(to, port, b"s"), bytes(1 << 20)
    began = time.perf_counter()
    for _ in range(size >> 20):
        lane.sendall(block)
    lane.shutdown(socket.SHUT_WR)
    exactly(lane, 1)
    lane.close()
    return (size >> 20 << 20) * 8 / (time.perf_counter() - began) / 1e9


def free_port(host):
    with socket.create_server((host, 0)) as found:
        return found.getsockname()[1]


def start_router(isthmus, folder, threads):
    ports = [free_port("127.0.0.2"), free_port("127.0.0.2")]
    subnets = "".join(
        f'[[subnet]]\nid = {i}\nname = "{n}"\nrate = "10Gbit"\nlatency = "1us"\n' for i, n in ((1, "a"), (2, "b"))
    )
    ends = f'endpoints = {{ a = "127.0.0.2:{ports[0]}", b = "127.0.0.2:{ports[1]}" }}\n'
    with open(f"{folder}/map.toml", "w") as out:
        out.write(f'[as]\nid = 1\n{subnets}[[router]]\nname = "r"\njoins = ["a", "b"]\n{ends}')
    with open(f"{folder}/router.toml", "w") as out:
        out.write('name = "r"\nmap = "map.toml"\n[subnet.a]\nplain = true\n[subnet.b]\nplain = true\n')
    command = [isthmus, "router", "run", "--config", f"{folder}/router.toml"]
    notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notices.bind(f"{folder}/notify")
    notices.settimeout(30)
    environment = dict(os.environ, NOTIFY_SOCKET=f"{folder}/notify")
    process = subprocess.Popen(command + (["--threads", threads] if threads else []), env=environment)
    notices.recv(64)
    return process, ("127.0.0.2", ports[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isthmus", default="build/bin/isthmus")
    parser.add_argument("--threads", help="threads of the router")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", type=int, default=2 << 30, help="bytes of the stream")
    args = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = os.fork()
    if server == 0:
        serve(listener)
    with tempfile.TemporaryDirectory() as folder:
        router, through = start_router(args.isthmus, folder, args.threads)
        try:
            direct = ("127.0.0.1", port)
            times = [(round_trip_us(direct, port, 5000), round_trip_us(through, port, 5000)) for _ in range(args.rounds)]
            rates = [(goodput_gbps(direct, port, args.size), goodput_gbps(through, port, args.size)) for _ in range(args.rounds)]
        finally:
            router.terminate()
            os.kill(server, 15)
    middle = statistics.median
    print(f"8-byte round trip, median: {middle(d for d, _ in times):.1f} us direct, "
          f"{middle(t for _, t in times):.1f} us through, {middle(t - d for d, t in times):.1f} us added")
    print(f"stream: {middle(d for d, _ in rates):.1f} Gb/s direct, {middle(t for _, t in rates):.1f} Gb/s through, "
          f"ratio {middle(t / d for d, t in rates):.2f} (median of {args.rounds} pairs)")


main()

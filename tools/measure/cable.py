"""Two hosts on this machine that a cable joins: network namespaces on one pair of Ethernet interfaces (veth)."""
import json
import os
import subprocess

NEAR, FAR = "10.99.4.1", "10.99.4.2"


def ip(*words, **more):
    return subprocess.run(["ip", *words], check=True, **more)


def hosts(mtu, stack):
    """Two namespaces, `near` and `far`, that share a cable."""
    names = [f"measure-{os.getpid()}-{end}" for end in ("near", "far")]
    for name in names:
        ip("netns", "add", name)
        stack.callback(ip, "netns", "del", name)
    near, far = names
    ip("link", "add", "cable", "netns", near, "mtu", mtu, "type", "veth", "peer", "name", "cable", "netns", far, "mtu", mtu)
    for name, address in zip(names, (NEAR, FAR)):
        ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
        for device in ("lo", "cable"):
            ip("-n", name, "link", "set", device, "up")
    return names


def at(host, processor, settings, first=()):
    """What a command on a host begins with: settings of Isthmus by their names, after words that come first."""
    common = {"INTERFACE": "cable", "AS_ID": "1", "SUBNET": "1"}
    words = [f"FI_ISTHMUS_{name}={value}" for name, value in {**common, **settings}.items()]
    return ["ip", "netns", "exec", host, "taskset", "-c", str(processor), *first, "env", *words]


def stream(isthmus, near, far, count, **options):
    """Sends so many messages of 1 MiB from one host to the other; bytes and seconds (isthmus bench stream).

    `near` and `far` are what commands begin with there; `options` go to the process that receives.
    """
    serve = [*far, isthmus, "bench", "serve", "--until-eof"]
    with subprocess.Popen(serve, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options) as server:
        to = server.stdout.readline().strip()
        send = ["bench", "stream", "--alone", "--level", "ro", "--size", "1MiB", "--count", str(count), "--to", to, "--json"]
        ran = subprocess.run([*near, isthmus, *send], stdout=subprocess.PIPE, text=True, timeout=300, check=True)
        server.stdin.close()
    figures = json.loads(ran.stdout.splitlines()[-1])["figures"]
    return figures["bytes"], figures["seconds"]

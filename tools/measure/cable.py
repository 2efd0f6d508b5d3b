"""Two hosts on this machine that a cable joins: network namespaces on one pair of Ethernet interfaces (veth)."""
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

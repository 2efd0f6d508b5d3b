#!/usr/bin/env python3
"""Cuts the TCP connections among running processes, from outside.

    cut_connections.py [--how fin|reset|mixed] [--all] [--share PERCENT] PID...

By default only connections whose two ends both belong to the given processes
are cut, so that a launcher's own connections to its ranks stay. With --all,
every connected TCP socket of the processes. The processes do not cooperate:
their sockets are borrowed by pidfd_getfd (Linux 5.6; root or the same user with
ptrace rights) and shut down. Works across network namespaces, where `ss -K`
needs a kernel option that many distributions leave out.

Prints the number of connections cut; exits 1 when there was none.
"""

import argparse
import ctypes
import os
import random
import socket
import sys

SYS_PIDFD_GETFD = 438
ESTABLISHED = "01"
AF_UNSPEC_ADDRESS = bytes(16)

libc = ctypes.CDLL(None, use_errno=True)


def connected_inodes(pid):
    """inode -> (local, remote) of the established connections in the pid's network."""
    found = {}
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{table}") as file:
                rows = file.readlines()[1:]
        except OSError:
            continue
        for row in rows:
            words = row.split()
            if words[3] == ESTABLISHED:
                found[int(words[9])] = (plain(words[1]), plain(words[2]))
    return found


def plain(address):
    """An IPv4 address mapped into IPv6 is the same as its IPv4 form."""
    host, port = address.split(":")
    prefix = "0000000000000000FFFF0000"
    return (host[len(prefix):] if host.startswith(prefix) and len(host) == 32 else host, port)


def sockets_of(pid):
    """(descriptor, local, remote) of each connected TCP socket of the process."""
    connected = connected_inodes(pid)
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inode = int(target[8:-1])
            if inode in connected:
                yield int(name), *connected[inode]


def borrow(pid_fd, descriptor):
    own = libc.syscall(SYS_PIDFD_GETFD, pid_fd, descriptor, 0)
    if own < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return socket.socket(fileno=own)


def cut(pid, descriptor, how):
    pid_fd = os.pidfd_open(pid)
    try:
        with borrow(pid_fd, descriptor) as borrowed:
            if how == "reset":
                # Connecting to nowhere dissolves the connection; the other end
                # is sent a reset, and data that is on its way is lost.
                if libc.connect(borrowed.fileno(), AF_UNSPEC_ADDRESS, 16) < 0:
                    return False
            else:
                borrowed.shutdown(socket.SHUT_RDWR)
            return True
    except OSError:
        return False  # closed by its owner meanwhile
    finally:
        os.close(pid_fd)


def cut_all(pids, how="fin", every=False, share=100):
    """Cuts, and returns the number of connections that were cut."""
    found = []
    for pid in pids:
        try:
            found += [(pid, *socket_) for socket_ in sockets_of(pid)]
        except OSError:
            continue
    ends = {(local, remote) for _, _, local, remote in found}
    done, count = set(), 0
    for pid, descriptor, local, remote in found:
        if not every and (remote, local) not in ends:
            continue
        if (local, remote) in done or (remote, local) in done:
            continue
        done.add((local, remote))
        if random.randrange(100) >= share:
            continue
        chosen = random.choice(("fin", "reset")) if how == "mixed" else how
        count += cut(pid, descriptor, chosen)
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pids", nargs="+", type=int, metavar="PID")
    parser.add_argument("--how", choices=("fin", "reset", "mixed"), default="fin")
    parser.add_argument("--all", action="store_true", help="also connections to others than the given processes")
    parser.add_argument("--share", type=int, default=100, help="percent of the connections to cut, by chance")
    options = parser.parse_args()
    count = cut_all(options.pids, options.how, options.all, options.share)
    print(f"cut {count} connections")
    return 0 if count else 1


if __name__ == "__main__":
    sys.exit(main())

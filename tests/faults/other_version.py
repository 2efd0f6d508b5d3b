"""A peer that speaks another version of the protocol: it answers whoever greets it."""

import socket
import struct
import threading

MAGIC = b"ISTH"
HELLO, WELCOME, REFUSE = 1, 2, 3
ADDRESS = 32
# Tag, magic, version, source, target, credit.
HELLO_LAYOUT = struct.Struct(f"<B4sH{ADDRESS}s{ADDRESS}sQ")
REASON_VERSION = 1


class Peer:
    """Listens at `port`, and answers each greeting with `how`: it refuses it, as a later
    release does, or welcomes it, as one does that takes both sides to be of its version."""

    def __init__(self, port, version, how):
        self.version, self.how = version, how
        self.greeted_by = []  # the versions of those who greeted
        self.listener = socket.create_server(("", port), reuse_port=False)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                lane, _ = self.listener.accept()
            except OSError:
                return
            with lane:
                lane.settimeout(10)
                try:
                    self.answer(lane)
                except OSError:
                    pass

    def answer(self, lane):
        hello = b""
        while len(hello) < HELLO_LAYOUT.size:
            piece = lane.recv(HELLO_LAYOUT.size - len(hello))
            if not piece:
                return
            hello += piece
        tag, magic, version, _, target, _ = HELLO_LAYOUT.unpack(hello)
        if (tag, magic) != (HELLO, MAGIC):
            return
        self.greeted_by.append(version)
        if self.how == "refuses":
            lane.sendall(struct.pack("<B4sHB", REFUSE, MAGIC, self.version, REASON_VERSION))
        else:
            lane.sendall(struct.pack(f"<B4sH{ADDRESS}sQ", WELCOME, MAGIC, self.version, target, 1 << 20))
        lane.recv(1)  # until the other side ends it

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

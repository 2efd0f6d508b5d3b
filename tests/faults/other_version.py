"""A peer that speaks another version of the protocol: it answers whoever greets it."""

import socket
import struct
import threading

MAGIC = b"ISTH"
HELLO, WELCOME, REFUSE, OFFER, ANSWER = 1, 2, 3, 4, 5
ADDRESS = 32
# Tag, magic, version, source, target, credit, routers passed, oldest version, length of the proof that follows.
HELLO_LAYOUT = struct.Struct(f"<B4sH{ADDRESS}s{ADDRESS}sQBHI")
# Tag, magic, version, host, payload.
OFFER_LAYOUT = struct.Struct("<B4sHQI")
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

    @staticmethod
    def hear(lane, size):
        """As many bytes, fewer at the end."""
        return lane.recv(size, socket.MSG_WAITALL)

    def answer(self, lane):
        if lane.recv(1, socket.MSG_PEEK) == bytes([OFFER]):
            *_, payload = OFFER_LAYOUT.unpack(self.hear(lane, OFFER_LAYOUT.size))
            self.hear(lane, payload)
            lane.sendall(struct.pack("<B4sBQI", ANSWER, MAGIC, 255, 0, 0))  # none of them
        hello = self.hear(lane, HELLO_LAYOUT.size)
        if len(hello) < HELLO_LAYOUT.size:
            return
        tag, magic, version, _, target, _, _, _, proof = HELLO_LAYOUT.unpack(hello)
        if (tag, magic) != (HELLO, MAGIC):
            return
        # What is unread when a connection closes makes the kernel reset it, and the answer is lost.
        self.hear(lane, proof)
        self.greeted_by.append(version)
        if self.how == "refuses":
            lane.sendall(struct.pack("<B4sHBH", REFUSE, MAGIC, self.version, REASON_VERSION, self.version))
        else:
            lane.sendall(struct.pack(f"<B4sH{ADDRESS}sQI", WELCOME, MAGIC, self.version, target, 1 << 20, 0))
        lane.recv(1)  # until the other side ends it

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

"""The binding over the real library, between endpoints of one process on loopback."""

import asyncio
import gc
import logging
import pathlib
import re
import select
import socket
import tempfile
import time
import unittest
from typing import Any, Dict, List, Tuple, Type, TypeVar

import isthmus
from isthmus import _library as lib
from isthmus import Level, Status

#: A bound for what hangs. Seconds.
LIMIT = 60.0

E = TypeVar("E")


def expect(endpoint: isthmus.Endpoint, kind: Type[E]) -> E:
    event = endpoint.wait(LIMIT)
    assert isinstance(event, kind), event
    return event


class Pair(unittest.TestCase):
    def setUp(self) -> None:
        self.a, self.b = isthmus.Endpoint(), isthmus.Endpoint()
        self.addCleanup(self.b.close)
        self.addCleanup(self.a.close)

    def connect(self, level: Level = Level.RO) -> Tuple[isthmus.Connection, isthmus.Connection]:
        at_a = self.a.connect(self.b.uri, b"hello", level=level, context="a")
        request = expect(self.b, isthmus.Request)
        self.assertEqual((request.payload, request.level, request.peer), (b"hello", level, self.a.uri))
        at_b = request.accept(context="b")
        self.assertTrue(expect(self.b, isthmus.Accepted).ok)
        connected = expect(self.a, isthmus.Connected)
        self.assertTrue(connected.ok)
        self.assertIs(connected.connection, at_a)
        return at_a, at_b


class Package(unittest.TestCase):
    def test_it_tells_its_version(self) -> None:
        self.assertRegex(isthmus.__version__, r"^\d+\.\d+\.\d+")


class Connections(Pair):
    def test_a_request_is_granted_and_the_connection_described(self) -> None:
        for level in Level:
            at_a, at_b = self.connect(level)
            self.assertEqual((at_a.level, at_a.peer, at_b.peer), (level, self.b.uri, self.a.uri))
            self.assertEqual((at_a.context, at_b.context), ("a", "b"))
            self.assertGreater(at_a.message_max, 60_000)
            at_a.udp_protocols = "cubic+once"
            self.assertEqual(at_a.udp_protocols, "cubic+adaptive+once+search")
            self.assertIn("127.0.0.1=cubic+adaptive+once+search", self.a.udp_protocols)
            with self.assertRaises(isthmus.Error) as refused:
                self.a.udp_protocols = "vegas"
            self.assertEqual(refused.exception.status, Status.INVALID)
            at_a.transfer = "mixed"
            self.assertEqual((at_a.transfer, self.a.transfer), ("mixed", "127.0.0.1=mixed, adaptive"))
            self.a.transfer = "RU=rendezvous, eager"
            self.assertEqual((at_a.transfer, self.a.transfer), ("eager", "RU=rendezvous, eager"))
            at_a.protocols = "RO: mixed, tcp: reno"
            self.assertIn("RO@127.0.0.1: acknowledged+ordered+mixed", self.a.protocols)
            self.assertIn("tcp: reno", at_a.protocols)
            self.a.protocols = ""
            self.assertEqual(self.a.transfer, "adaptive")
            at_a.send_timeout, at_a.keepalive = 1.5, 20
            self.assertEqual((at_a.send_timeout, at_a.keepalive), (1.5, 20))
            at_a.disconnect()
            over = expect(self.b, isthmus.Disconnected)
            self.assertEqual((over.connection, over.status), (at_b, Status.DISCONNECTED))
            with self.assertRaises(isthmus.Error) as stale:
                at_a.send(b"late")
            self.assertEqual(stale.exception.status, Status.STALE)

    def test_a_request_is_turned_down_with_reason_and_payload(self) -> None:
        connection = self.a.connect(self.b.uri)
        expect(self.b, isthmus.Request).reject(7, b"not today")
        gc.collect()
        refused = expect(self.a, isthmus.Connected)
        self.assertEqual(
            (refused.ok, refused.status, refused.reason, refused.payload, refused.connection),
            (False, Status.REJECTED, 7, b"not today", connection),
        )
        # One that nobody decides on is turned down as well.
        self.a.connect(self.b.uri)
        expect(self.b, isthmus.Request)
        gc.collect()
        self.assertEqual(expect(self.a, isthmus.Connected).reason, 0)

    def test_a_refused_call_says_why(self) -> None:
        with self.assertRaises(isthmus.Error) as wrong:
            self.a.connect("tcp://nowhere")
        self.assertEqual(wrong.exception.status, Status.INVALID)
        self.assertIn("isthmus://", str(wrong.exception))
        with self.assertRaises(isthmus.Error) as unknown:
            isthmus.Endpoint("nonesuch")
        self.assertEqual(unknown.exception.status, Status.DEVICE)

    def test_a_wrong_argument_says_what_is_expected(self) -> None:
        wrong: List[Any] = [5, b"isthmus://0.0/127.0.0.1:9", None]
        for uri in wrong:
            with self.assertRaisesRegex(TypeError, "uri is a str, not "):
                self.a.connect(uri)
            with self.assertRaisesRegex(TypeError, "at is a str, not "):
                isthmus.find(uri)
        with self.assertRaisesRegex(TypeError, "device is a str, not int"):
            isthmus.Endpoint(wrong[0])
        # C would end the text there.
        with self.assertRaisesRegex(ValueError, "NUL"):
            self.a.connect(self.b.uri + "\0x")
        with self.assertRaisesRegex(ValueError, "NUL"):
            self.a.transfer = "eager\0x"
        with self.assertRaisesRegex(TypeError, "function or None, not int"):
            isthmus.set_log(wrong[0])
        self.assertEqual(len(self.a._connections), 0)

    def test_an_error_quotes_the_ends_of_a_long_text(self) -> None:
        with self.assertRaises(isthmus.Error) as told:
            self.a.connect("tcp://" + "9" * 5000 + ":end")
        said = str(told.exception)
        self.assertLess(len(said), 500)
        self.assertRegex(said, "tcp://9+[.]{3}9+:end")

    def test_a_time_that_is_no_number_is_refused(self) -> None:
        for call in (self.a.wait, lambda timeout: next(self.a.events(timeout))):
            with self.assertRaisesRegex(ValueError, "nan"):
                call(float("nan"))

    def test_devices_are_listed(self) -> None:
        device = isthmus.devices()[0]
        self.assertTrue(device.is_up and device.address and device.name, device)

    def test_one_endpoint_is_on_all_devices_that_are_up(self) -> None:
        with isthmus.Endpoint("*") as all_of_them:
            self.assertEqual(len(all_of_them.uri.split(",")), len(isthmus.devices()))
            connection = self.a.connect(all_of_them.uri)
            expect(all_of_them, isthmus.Request).accept()
            self.assertTrue(expect(self.a, isthmus.Connected).ok)
            self.assertIn(connection.device, [device.name for device in isthmus.devices()])


class Messages(Pair):
    def test_whatever_has_the_buffer_protocol_is_sent(self) -> None:
        at_a, at_b = self.connect()
        for message in (b"bytes", bytearray(b"bytearray"), memoryview(b"a view")[2:], b""):
            at_a.send(message, operation=("word", len(message)))
            received = expect(self.b, isthmus.Received)
            self.assertEqual((received.data, received.connection), (message, at_b))
            sent = expect(self.a, isthmus.Sent)
            self.assertEqual((sent.ok, sent.operation), (True, ("word", len(message))))
        at_a.send(b"blocking", blocking=True)
        self.assertEqual(expect(self.b, isthmus.Received).data, b"blocking")
        with self.assertRaises(TypeError):
            at_a.send("a text")
        with self.assertRaises(BufferError):
            at_a.send(memoryview(b"in pieces")[::2])
        with self.assertRaises(ValueError):
            at_a.send(b"", silent=True, copy=False)
        self.assertIsNone(self.b.poll())

    def test_a_message_may_ask_for_another_way(self) -> None:
        at_a, _ = self.connect()
        ways: List[Dict[str, Any]] = [{"transfer": "eager"}, {"transfer": "rendezvous"}, {"unordered": True}]
        ways.append({"transfer": "mixed"})
        for way in ways:
            at_a.send(b"x" * 20_000, **way)
            self.assertEqual(len(expect(self.b, isthmus.Received).data), 20_000)
            self.assertTrue(expect(self.a, isthmus.Sent).ok)
        with self.assertRaises(ValueError):
            at_a.send(b"", transfer="whole")

    def test_pieces_become_one_message(self) -> None:
        at_a, _ = self.connect()
        middle = bytearray(b"three ")
        at_a.send_pieces([b"in ", middle, memoryview(b"pieces")], operation=3, copy=False)
        with self.assertRaises(BufferError):
            middle.append(0)
        self.assertEqual(expect(self.b, isthmus.Received).data, b"in three pieces")
        self.assertEqual(expect(self.a, isthmus.Sent).operation, 3)
        at_a.send_pieces([], blocking=True)
        self.assertEqual(expect(self.b, isthmus.Received).data, b"")

    def test_what_is_not_copied_stays_until_its_event(self) -> None:
        at_a, _ = self.connect()
        message = bytearray(b"x" * 50_000)
        at_a.send(message, operation=1, copy=False)
        with self.assertRaises(BufferError):
            message.append(0)
        self.assertEqual(len(expect(self.b, isthmus.Received).data), 50_000)
        expect(self.a, isthmus.Sent)
        message.append(0)

    def test_a_buffer_goes_back_when_its_last_view_is_gone(self) -> None:
        self.b.recv_buffers = 2
        self.assertEqual(self.b.recv_buffers, 2)
        at_a, _ = self.connect()
        for number in range(200):
            at_a.send(number.to_bytes(4, "big"), silent=True)
        views: List[memoryview] = []
        for number in range(200):
            received = expect(self.b, isthmus.Received)
            self.assertEqual(received.data, number.to_bytes(4, "big"))
            views = [received.data[1:]]
            del received
        self.assertEqual(len(self.b._lent), 1, "the last view keeps its buffer")
        views.clear()
        self.assertEqual(len(self.b._lent), 0)

    def test_views_outlive_close(self) -> None:
        at_a, _ = self.connect()
        at_a.send(b"kept", silent=True)
        view = expect(self.b, isthmus.Received).data
        with self.assertRaises(TypeError):
            view[0] = 0
        self.b.close()
        # The peer learns of the end though the buffer is still here.
        expect(self.a, isthmus.Disconnected)
        self.assertEqual(bytes(view), b"kept")
        del view
        self.assertEqual(self.b._state, "closed")
        with self.assertRaises(isthmus.Error):
            self.b.poll()

    def test_a_sleeper_on_the_descriptor_is_woken(self) -> None:
        at_a, _ = self.connect()
        at_a.send(b"wake up", silent=True)
        start = time.monotonic()
        while (event := self.b.poll()) is None:
            if self.b.arm():
                select.select([self.b], [], [], LIMIT)
            self.assertLess(time.monotonic() - start, LIMIT)
        self.assertIsInstance(event, isthmus.Received)


    def test_tasks_run_while_one_awaits_events(self) -> None:
        at_a, _ = self.connect()

        async def received() -> bytes:
            async for event in self.b:
                if isinstance(event, isthmus.Received):
                    return bytes(event.data)
            raise AssertionError("it has no end")

        async def both() -> bytes:
            waits = asyncio.create_task(received())
            await asyncio.sleep(0.05)
            with self.assertRaisesRegex(RuntimeError, "another task"):
                await self.b.next_event()
            waits.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waits
            again = asyncio.create_task(received())
            await asyncio.sleep(0.05)
            at_a.send(b"wake up", silent=True)
            return await asyncio.wait_for(again, LIMIT)

        self.assertEqual(asyncio.run(both()), b"wake up")

    def test_close_ends_the_wait_of_a_task(self) -> None:
        async def closed(by_thread: bool) -> None:
            endpoint = isthmus.Endpoint()
            waits = asyncio.create_task(endpoint.next_event())
            await asyncio.sleep(0.05)
            if by_thread:
                await asyncio.get_running_loop().run_in_executor(None, endpoint.close)
            else:
                endpoint.close()
            with self.assertRaisesRegex(isthmus.Error, "closed while a task waited") as told:
                await asyncio.wait_for(waits, LIMIT)
            self.assertEqual(told.exception.status, Status.STALE)
            self.assertFalse(asyncio.get_running_loop().remove_reader(endpoint.fileno()))

        for by_thread in (False, True):
            asyncio.run(closed(by_thread))


class Memory(Pair):
    def test_memory_is_written_and_read_in_place(self) -> None:
        at_a, _ = self.connect(Level.RU)
        theirs, ours = bytearray(1 << 20), bytearray(b"abcd" * (1 << 16))
        there = self.b.register(theirs, remote_read=True, remote_write=True)
        here = self.a.register(ours)
        self.assertEqual(len(there.memory), 32)
        at_a.write(here, there.memory, remote_offset=100, message=b"done", operation="w")
        self.assertEqual(expect(self.b, isthmus.Received).data, b"done")
        self.assertEqual(theirs[100 : 100 + len(ours)], ours)
        self.assertEqual(expect(self.a, isthmus.Sent).operation, "w")
        theirs[:4] = b"back"
        at_a.read(here, there.memory, 4, offset=8, blocking=True, fence=True)
        self.assertEqual(ours[:16], b"abcdabcdbackabcd")
        with self.assertRaises(BufferError):
            theirs.clear()
        self.b.deregister(there)
        theirs.clear()
        at_a.write(here, there.memory, 4, operation="refused")
        refused = expect(self.a, isthmus.Sent)
        self.assertEqual((refused.status, refused.operation), (Status.REMOTE_ACCESS, "refused"))

    def test_memory_that_cannot_be_written_is_refused(self) -> None:
        with self.assertRaises(BufferError):
            self.a.register(b"read only")
        at_a, _ = self.connect(Level.UU)
        region = self.a.register(bytearray(8))
        with self.assertRaises(isthmus.Error) as refused:
            at_a.write(region, region.memory)
        self.assertEqual(refused.exception.status, Status.LEVEL)


class Digests(unittest.TestCase):
    def test_blocks_make_the_digest_of_the_whole(self) -> None:
        data = bytes(range(256)) * 20
        whole = isthmus.digest_block(data, 0, len(data), 8192)
        blocks = [
            isthmus.digest_block(data[at : at + 1024], at, len(data), 1024)
            for at in range(0, len(data), 1024)
        ]
        self.assertEqual(isthmus.digest_whole(blocks, len(data), 1024), whole)
        # The digest of nothing, as b3sum has it.
        nothing = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        self.assertEqual(isthmus.digest_block(b"", 0, 0, 1024).hex(), nothing)
        with self.assertRaises(isthmus.Error):
            isthmus.digest_block(data, 0, len(data), 1000)
        with self.assertRaises(ValueError):
            isthmus.digest_whole([b"short"], 1024, 1024)


class Names(unittest.TestCase):
    def test_a_router_that_is_not_there_is_told(self) -> None:
        nowhere = "isthmus://0.0/127.0.0.1:9"
        with self.assertRaises(isthmus.Error) as told:
            isthmus.publish(nowhere, "run", "a port")
        self.assertEqual(told.exception.status, Status.UNREACHABLE)
        with self.assertRaises(isthmus.Error) as told:
            isthmus.look_up(nowhere, "run")
        self.assertEqual(told.exception.status, Status.UNREACHABLE)
        for place, name in (("somewhere", "run"), (nowhere, "a/b")):
            with self.assertRaises(isthmus.Error) as told:
                isthmus.look_up(place, name)
            self.assertEqual(told.exception.status, Status.INVALID)


class Places(unittest.TestCase):
    def test_an_address_is_found_while_it_is_announced(self) -> None:
        uri = "isthmus://0.0/127.0.0.1:9#0badcafe.00"
        with tempfile.TemporaryDirectory() as folder:
            at = f"file:{folder}/at"
            with isthmus.announce(at, uri):
                self.assertEqual(isthmus.find(at, 1.0), uri)
            with self.assertRaises(isthmus.Error) as told:
                isthmus.find(at)
            self.assertEqual(told.exception.status, Status.TIMED_OUT)

    def test_a_port_needs_the_same_secret(self) -> None:
        uri = "isthmus://0.0/127.0.0.1:9#0badcafe.00"
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            at = f"127.0.0.1:{one.getsockname()[1]}"
        with tempfile.TemporaryDirectory() as folder:
            right, wrong = (pathlib.Path(folder, name) for name in ("right", "wrong"))
            for path in (right, wrong):
                path.touch(0o600)
                path.write_text(f"a secret that is {path.name} here")
            with isthmus.announce(at, uri, str(right)):
                self.assertEqual(isthmus.find(at, 5.0, str(right)), uri)
                with self.assertRaises(isthmus.Error) as told:
                    isthmus.find(at, 5.0, str(wrong))
                self.assertEqual(told.exception.status, Status.REJECTED)
            with self.assertRaises(isthmus.Error) as told:
                isthmus.announce(at, uri)
            self.assertEqual(told.exception.status, Status.INVALID)

    def test_wrong_places_are_refused(self) -> None:
        for at in ("somewhere", "file:", "router:isthmus://0.0/127.0.0.1:9"):
            with self.assertRaises(isthmus.Error) as told:
                isthmus.find(at)
            self.assertEqual(told.exception.status, Status.INVALID)


class Told(Pair):
    def test_peers_are_counted_in_bytes(self) -> None:
        at_a, at_b = self.connect()
        at_a.send(bytes(5000), silent=True)
        self.assertEqual(len(expect(self.b, isthmus.Received).data), 5000)
        sent, received = at_a.counters, at_b.counters
        self.assertGreaterEqual(sent["sent_bytes"], 5000)
        self.assertGreaterEqual(received["received_bytes"], 5000)
        self.assertGreater(sent["rtt_us"], 0)
        self.assertGreaterEqual(sent["lanes"], 1)
        self.assertEqual(self.a.counters["sent_bytes"], sent["sent_bytes"])

    def test_the_log_comes_to_a_function_until_another_is_set(self) -> None:
        lines: List[Tuple[isthmus.Severity, str]] = []
        isthmus.set_log(lambda severity, text: lines.append((severity, text)))
        self.addCleanup(isthmus.set_log, None)
        self.connect()
        self.assertTrue(any("goes by" in text for _, text in lines), lines)
        self.assertEqual({severity for severity, _ in lines}, {isthmus.Severity.INFO})
        self.assertEqual(isthmus.Severity.WARN.level, logging.WARNING)
        isthmus.set_log(None)
        before = len(lines)
        with isthmus.Endpoint() as other:
            other.connect(self.b.uri)
            expect(self.b, isthmus.Request)
        self.assertEqual(len(lines), before)


class Header(unittest.TestCase):
    """Whatever the header declares, Python programs can use."""

    def test_the_numbers_of_the_header_have_names(self) -> None:
        for names, kind in ((Status, "status"), (Level, "level"), (isthmus.Severity, "severity")):
            declared = lib.ffi.typeof(f"enum isthmus_{kind}").relements
            self.assertEqual({f"ISTHMUS_{one.name}": one.value for one in names}, declared)

    def test_all_calls_and_options_are_used(self) -> None:
        folder = pathlib.Path(isthmus.__file__).parent
        text = "".join(path.read_text() for path in folder.glob("*.py"))
        used = set(re.findall(r"native\.(isthmus_\w+|ISTHMUS_OPT_\w+)", text))
        options = set(lib.ffi.typeof("enum isthmus_option").relements)
        # Python closes endpoints one by one, at the latest when it ends. The address is a call of
        # its own, and memory may lie anywhere.
        without = {"isthmus_finalize", "ISTHMUS_OPT_URI", "ISTHMUS_OPT_ALIGNMENT"}
        # Schedules of reads and writes are for the mover of MPI programs.
        schedules = ("isthmus_layout_", "isthmus_schedule_")
        calls = {
            name
            for name in dir(lib.native)
            if name.startswith("isthmus_") and not name.startswith(schedules)
        }
        self.assertEqual((calls | options) - used, without)


if __name__ == "__main__":
    unittest.main()

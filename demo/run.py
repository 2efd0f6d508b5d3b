#!/usr/bin/env python3
"""Copies a file between two MPI applications (examples/mpi/copy.c) at two sites of a lab, over
Isthmus and then over the same MPI's stock tcp, on the same emulated link.

    demo/run.py [--file FILE | --size 500M] [--rate 1Gbit] [--rtt 24ms] ...
    demo/run.py --routed [three|five] [--no-kill] ...

With --routed the sites share no network: routers join them, over encrypted links.
Three networks (LAN, WAN, LAN) lie between the ranks, or five (fabric, LAN, WAN,
LAN, fabric), and two routers join each to the next. At site A one of each two is
killed in the middle of the copy.

Exit status: 0 both digests agree; 1 they do not; 2 bad usage; 3 something
failed, which is said.
"""

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from harness import mpis, process, routed  # noqa: E402

INSIDE = "ISTHMUS_DEMO_IN_LAB"
SCALES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "ki": 2**10, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
# Ethernet's frame header; and its preamble, check sum and gap.
FRAME_BYTES, GAP_BYTES = 14, 24
# IPv4, TCP, and TCP's timestamps.
TCP_IP_BYTES = 20 + 20 + 12


class Trouble(Exception):
    """Something failed; the text says what and what to do."""


# --- quantities --------------------------------------------------------------


def size_of(text):
    match = re.fullmatch(r"([\d.]+)\s*([kKMG]i?|)B?", text)
    if not match:
        raise argparse.ArgumentTypeError(f'"{text}" is no size; expected one such as 500M or 4MiB')
    return int(float(match.group(1)) * SCALES[match.group(2)])


def rate_of(text):
    match = re.fullmatch(r"([\d.]+)\s*([kMG]?)(?:bit|bit/s|b/s|bps)", text)
    if not match:
        raise argparse.ArgumentTypeError(f'"{text}" is no rate; expected one such as 1Gbit')
    return float(match.group(1)) * SCALES[match.group(2)]


def span_of(text):
    match = re.fullmatch(r"([\d.]+)\s*(us|ms|s)", text)
    if not match:
        raise argparse.ArgumentTypeError(f'"{text}" is no time; expected one such as 24ms')
    return float(match.group(1)) * {"us": 1e-6, "ms": 1e-3, "s": 1}[match.group(2)]


def share_of(text):
    match = re.fullmatch(r"([\d.]+)(%?)", text)
    value = float(match.group(1)) / (100 if match.group(2) else 1) if match else 1
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f'"{text}" is no loss; expected one such as 0.1%')
    return value


def checked(reader):
    """Keeps the text, for the lab to read, once it is known to be good."""

    def check(text):
        reader(text)
        return text

    return check


def count_of(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'"{text}" is no count; expected one such as 4')
    return int(text)


def floor_s(bytes_, options):
    """The least time: half a round trip to deliver, the bytes, half to acknowledge."""
    mtu = int(size_of(options.mtu))
    efficiency = (mtu - TCP_IP_BYTES) / (mtu + FRAME_BYTES + GAP_BYTES)
    return span_of(options.rtt) + bytes_ * 8 / (rate_of(options.rate) * efficiency * (1 - share_of(options.loss)))


def usual_cc():
    """That of most hosts; nothing, for this host's own, where only root may choose it."""
    allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text().split()
    return "cubic" if os.geteuid() == 0 or "cubic" in allowed else ""


def options_of(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--file", type=Path, help="the file to copy; default: one is generated that cannot be compressed")
    add("--size", type=checked(size_of), default="500M", help="of the generated file (500M)")
    add("--rate", type=checked(rate_of), default="1Gbit", help="of the link, each way (1Gbit)")
    add("--rtt", type=checked(span_of), default="100ms", help="round-trip time (100ms)")
    add("--loss", type=checked(share_of), default="0.1%", help="per wire packet, each way (0.1%%)")
    add("--mtu", type=checked(size_of), default="9000", help="of the link, bytes (9000)")
    add("--ranks", type=count_of, default=4, help="of each application (4)")
    add("--block", type=checked(size_of), default="4MiB", help="that is read and sent at once (4MiB)")
    add("--window", type=checked(size_of), default="256MiB", help="most memory for blocks of a rank (256MiB)")
    add("--cached", action="store_true", help="write the copy through the page cache; default: past it (O_DIRECT)")
    add("--cc", default=usual_cc(), help="TCP congestion control of both sites (cubic, as most hosts have, if this user may choose it)")
    add("--mpi", choices=[m.name for m in mpis.MPIS.values() if m.couples], default="mpich")
    add("--out", type=Path, default=mpis.BUILD / "demo", help="folder that the copy is written to (build/demo)")
    add("--no-stock", action="store_true", help="leave out the run over stock tcp")
    add("--routed", nargs="?", const="three", choices=list(routed.SHAPES), help="the sites share no network; routers join them across three networks or five (three)")
    add("--links", choices=list(routed.TRANSPORTS), default="auto", help="with --routed: what goes between the sites (auto)")
    add("--no-kill", action="store_true", help="with --routed: kill no router")
    add("--limit", type=float, help="end a run after so many seconds; default: 30 + 5 times the least possible")
    options = parser.parse_args(words)
    if options.no_kill and not options.routed:
        parser.error("--no-kill is about the routers of --routed")
    if options.file and not options.file.is_file():
        parser.error(f"no such file: {options.file}" if not options.file.exists() else f"not a file: {options.file}")
    return options


# --- inside the lab: two jobs ------------------------------------------------


def run_jobs(spec):
    """One run in the lab, with routers or without. Returns the result."""
    if not spec["routed"]:
        return run_pair(spec, None)
    try:
        with routed.Network(Path(spec["folder"]), routed.SHAPES[spec["routed"]], spec["links"]) as net:
            return run_pair(spec, net)
    except routed.NotReady as error:
        return {"error": str(error)}


def run_pair(spec, net):
    """Starts the receiver at site b and the sender at site a. Returns the result."""
    mpi, logs = mpis.MPIS[spec["mpi"]], Path(spec["logs"])
    port = logs / f"{spec['transport']}.port"
    port.unlink(missing_ok=True)
    program, memory = str(Path(spec["program"])), f"memory={spec['window']}"

    def job(site, *words):
        place = net.place(site) if net else mpis.Place("sites", (site,))
        command, env = mpi.command(spec["ranks"], [program, words[0], f"file:{port}", *words[1:], memory], spec["transport"], place)
        return process.Running(command, env, logs / f"{spec['transport']}.{words[0]}.log")

    jobs = {"receiver": job("b", "receive", spec["output"], *spec["receive"]), "sender": job("a", "send", spec["input"], f"block={spec['block']}")}
    kill = Kill(net.one_of_each("a"), Path(spec["output"]), spec["bytes"] / 3) if spec["kill"] else None
    try:
        result = watch(jobs, spec["limit"], Path(spec["output"]), kill)
        for name in result.get("hung", []) if spec["transport"] == "isthmus" else []:
            jobs[name].keep_stacks()
        return result
    finally:
        for one in jobs.values():
            one.end()


def parts_in(folder):
    """Copies that are not whole have names of their own."""
    return list(folder.glob(".isthmus-*.part"))


def written_of(part):
    try:
        return part.stat().st_blocks * 512
    except FileNotFoundError:  # it became whole
        return 0


class Kill:
    """Routers that are killed once so many bytes of the copy are on the disk."""

    def __init__(self, routers, output, at):
        self.routers, self.output, self.at, self.done = routers, output, at, None

    def look(self):
        if self.done is None and (written := max(map(written_of, parts_in(self.output.parent)), default=0)) >= self.at:
            for router in self.routers:
                router.send(signal.SIGKILL)
            self.done = f"{' and '.join(router.title for router in self.routers)} killed after {written / 1e6:.0f} MB"
            progress(self.done)


def watch(jobs, limit, output, kill=None, grace=20.0):
    """Waits for both. When one fails, the other has `grace` seconds to notice."""
    began = time.monotonic()
    deadline, failed = began + limit, None
    while True:
        states = {name: job.process.poll() for name, job in jobs.items()}
        if failed is None:
            failed = next((name for name, status in states.items() if status), None)
            if failed:
                deadline = min(deadline, time.monotonic() + grace)
        if None not in states.values():
            break
        if time.monotonic() > deadline:
            break
        if kill:
            kill.look()
        time.sleep(0.01)
    took = time.monotonic() - began
    hung = [name for name, status in states.items() if status is None]
    if failed:
        said = [line.split("copy: ", 1)[-1] for job in jobs.values() for line in job.output().splitlines() if "copy: " in line]
        why = said[0] if said else reason_of(jobs[failed].output())
        ended = f"; the {hung[0]} did not notice within {grace:.0f} s and was ended" if hung else ""
        return {"error": f"the {failed} ended with status {states[failed]}: {why}{ended}", "hung": hung}
    if hung:
        written = max(map(written_of, parts_in(output.parent)), default=0)
        return {"error": f"{written / 1e6:.0f} MB after {took:.0f} s; both applications were ended", "hung": hung, "bytes": written, "seconds": took}
    result = re.search(r"RESULT (\{.*\})", jobs["sender"].output())
    if not result:
        return {"error": "the sender ended without a result"}
    return {**json.loads(result.group(1)), "killed": kill.done if kill else None}


def reason_of(output):
    """What a launcher says of a job that ended badly, in one line."""
    for pattern in (r"EXIT STRING: (.*)", r"^(Abort\(.*)", r"(.*[Ee]rror.*)", r"^([^=\s].*)"):
        if found := re.search(pattern, output, re.M):
            return found.group(1).strip()
    return "it said nothing"


# --- outside: prepare, measure, tell -----------------------------------------


@dataclass
class Measured:
    result: dict
    digest: str
    report: dict

    @property
    def rate_MBps(self):
        """Nothing where it failed before anything was copied."""
        return self.result.get("bytes", 0) / self.result.get("seconds", 1) / 1e6


def digest_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()


def generated(size):
    """A file of random bytes, kept for the next time."""
    path = mpis.BUILD / "demo" / f"input-{size}.bin"
    if path.exists() and path.stat().st_size == size:
        return path
    progress(f"generating {size / 1e6:.0f} MB that cannot be compressed")
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".new"), "wb") as file:
        for at in range(0, size, 1 << 22):
            file.write(os.urandom(min(1 << 22, size - at)))
    path.with_suffix(".new").rename(path)
    return path


def prepare(options):
    """Checks what the demo needs, and compiles the example that it runs."""
    if not mpis.ISTHMUS.exists() or not mpis.PROVIDER.exists():
        raise Trouble("Isthmus is not built here: make build")
    mpi = mpis.MPIS[options.mpi]
    if mpi.missing():
        raise Trouble(mpi.missing())
    check = subprocess.run([str(mpis.ISTHMUS), "lab", "check"], capture_output=True, text=True)
    if check.returncode != 0:
        raise Trouble(f"this machine cannot make a lab of two sites:\n{(check.stdout + check.stderr).strip()}")
    words = mpis.compile_mover(mpi, mpis.BUILD / "logs" / "demo.compile.log", ("examples/mpi/copy.c",))
    if words:
        raise Trouble(f"the demo's program does not compile:\n{words}")
    return mpi.programs / "copy"


def warm_pages(path, size):
    """Writes the output once beforehand and empties it: on a virtual machine the first touch of a page of
    memory costs several times its copying, and the page cache would pay that within the measurement."""
    piece = bytes(1 << 22)
    try:
        with open(path, "wb", buffering=0) as file:
            for _ in range(0, size, len(piece)):
                file.write(piece)
            file.truncate(0)
    except OSError:
        path.unlink(missing_ok=True)  # a full disk is the program's to tell


def lab_options(options, folder):
    """What tells the lab its sites and their link."""
    link = {name: getattr(options, name) for name in ("rate", "rtt", "loss", "mtu")}
    if options.routed:
        quoted = {name: f'"{value}"' for name, value in link.items()}
        return ["--config", str(routed.write_lab(folder, routed.SHAPES[options.routed], quoted, options.cc))]
    words = [word for name, value in link.items() for word in (f"--{name}", value)]
    return words + (["--cc", options.cc] if options.cc else [])


def measure(transport, source, program, options, limit):
    """One run in a lab of its own, so that the emulator's report is about it."""
    logs = mpis.BUILD / "logs" / "demo"
    logs.mkdir(parents=True, exist_ok=True)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Trouble(f"cannot make the folder {options.out}: {error.strerror}") from error
    output = options.out.resolve() / f"received-{transport}.bin"
    result, report = logs / f"{transport}.result.json", logs / f"{transport}.report.json"
    for old in (output, result, report, *parts_in(options.out)):
        old.unlink(missing_ok=True)
    warm_pages(output, source.stat().st_size)
    spec = {"mpi": options.mpi, "transport": transport, "ranks": options.ranks, "program": str(program),
            "input": str(source.resolve()), "output": str(output), "window": size_of(options.window),
            "block": size_of(options.block), "receive": [] if options.cached else ["direct=1"], "limit": limit, "logs": str(logs), "result": str(result),
            "bytes": source.stat().st_size, "routed": options.routed, "links": options.links, "folder": str(logs / "routed"),
            "kill": options.routed and not options.no_kill}
    lab = [str(mpis.ISTHMUS), "lab", "run", "--quiet", *lab_options(options, logs / "routed"), "--report", str(report),
           "--", sys.executable, __file__]
    ended = subprocess.run(lab, env={**os.environ, INSIDE: json.dumps(spec)})
    if not result.exists():
        raise Trouble(f"the lab ended with status {ended.returncode}; what it says stands above")
    answer = json.loads(result.read_text())
    # Read before it is removed: the copy is big, and the digest tells all.
    digest = "" if "error" in answer else digest_of(output)
    if transport != "isthmus" or "error" in answer:
        output.unlink(missing_ok=True)
    return Measured(answer, digest, json.loads(report.read_text()) if report.exists() else {})


def lateness(report):
    """The emulator's verdict on itself, in words."""
    directions = [d for link in report.get("links", []) for d in link["directions"]]
    if not directions:
        return "no report"
    p99 = max(d["lateness"]["p99_us"] for d in directions)
    worst = max(d["lateness"]["max_us"] for d in directions)
    lost = sum(d["drops"]["queue"] for d in directions)
    verdict = "SPOILED this run: repeat it on a quieter machine" if report.get("spoiled") else "truthful"
    return f"{verdict} (late p99 {p99 / 1000:.2f} ms, max {worst / 1000:.2f} ms; {lost} packets fell from the queue)"


def progress(text):
    print(f"demo: {text}", file=sys.stderr, flush=True)


def bars(rows, width=48):
    """A row per name and rate: a bar, the longest rate `width` characters."""
    most = max(rate for _, rate in rows)
    for name, rate in rows:
        eighths = round(rate / most * width * 8)
        bar = "\u2588" * (eighths // 8) + ("", *"\u258f\u258e\u258d\u258c\u258b\u258a\u2589")[eighths % 8]
        yield f"  {name:14} {bar} {rate:.1f} MB/s"


def tell(options, source, digest, floor, ours, stock):
    size = source.stat().st_size
    print(f"""
{source}: {size / 1e6:.1f} MB in blocks of {options.block}, {options.ranks} + {options.ranks} ranks, {mpis.MPIS[options.mpi].title}
link: {options.rate}, {options.rtt} round trip, loss {options.loss}, MTU {options.mtu}{f", {options.routed} networks joined by two routers each, encrypted between the sites" if options.routed else ""}
  the limit      {size / floor / 1e6:8.1f} MB/s  {floor:8.3f} s""")
    for name, run in (("Isthmus", ours), ("stock tcp", stock)):
        if run is None:
            continue
        if "error" in run.result:
            print(f"  {name:14} {run.result['error']}")
            continue
        print(f"  {name:14} {run.rate_MBps:8.1f} MB/s  {run.result['seconds']:8.3f} s  {floor / run.result['seconds']:.3f} of the limit")
        print(f"  {'':14} emulator: {lateness(run.report)}")
        if run.result.get("killed"):
            print(f"  {'':14} {run.result['killed']}")
    if options.routed:
        print("  stock tcp      cannot: the sites share no network, only routers join them")
    if stock and stock.rate_MBps:
        print(f"  Isthmus / stock tcp: {ours.rate_MBps / stock.rate_MBps:.2f}")
    print(f"sha256 of the file at A  {digest}")
    for name, run in (("Isthmus", ours), ("stock tcp", stock)):
        if run and run.digest:
            print(f"sha256 at B, {name:10}  {run.digest}  {'equal' if run.digest == digest else 'DIFFERENT'}")
    print()
    measured = [(name, run.rate_MBps) for name, run in (("Isthmus", ours), ("stock tcp", stock)) if run and run.rate_MBps]
    for line in bars([("the link", max(size, 1) / floor / 1e6), *measured]):
        print(line)


def main():
    if INSIDE in os.environ:
        spec = json.loads(os.environ.pop(INSIDE))
        Path(spec["result"]).write_text(json.dumps(run_jobs(spec)))
        for file in process.hangs:
            print(f"HUNG: {file.stem}; stacks: {file}", file=sys.stderr, flush=True)
        return 0
    options = options_of(sys.argv[1:])
    try:
        program = prepare(options)
        source = options.file or generated(size_of(options.size))
        floor = floor_s(source.stat().st_size, options)
        limit = options.limit or 30 + 5 * floor
        progress(f"over Isthmus; the limit is {floor:.2f} s")
        ours = measure("isthmus", source, program, options, limit)
        if "error" in ours.result:
            raise Trouble(ours.result["error"])
        stock = None
        if not options.no_stock and not options.routed:
            # The stock run of a bad link can take hours; a bound says enough.
            progress("over stock tcp")
            stock = measure("tcp", source, program, options, limit)
        digest = digest_of(source)
        tell(options, source, digest, floor, ours, stock)
        return 0 if ours.digest == digest and (not stock or stock.digest in ("", digest)) else 1
    except Trouble as error:
        print(f"demo: error: {error}", file=sys.stderr)
        return 3
    except OSError as error:
        print(f"demo: error: {error.filename or ''}: {error.strerror}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())

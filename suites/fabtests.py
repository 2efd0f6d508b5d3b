#!/usr/bin/env python3
"""libfabric's own tests over Isthmus and over the stock tcp provider: one table.

The tests are those that Debian's mpich source package carries; apt fetches it. What is
run: the quick set of their own runfabtests.sh, less what suites/fabtests.txt skips, plus
what it adds. Every test runs in a network namespace of its own, so their fixed ports
meet nobody. The exit status is 1 if a test passes over the stock provider only.
"""

import argparse
import concurrent.futures
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from harness import process  # noqa: E402

BUILD = ROOT / "build" / "fabtests"
PLAN = Path(__file__).with_suffix(".txt")
OURS, THEIRS = "isthmus", "tcp;ofi_rxm"
# How runfabtests.sh's lists are called, and which of them are its quick set.
UNIT, PAIRS = "unit_tests", ("functional_tests", "short_tests")
# What the tests return when a provider has not got what they try: FI_ENODATA, FI_ENOSYS.
NOT_OFFERED = (61, 38)
PASS, ABSENT, FAIL, TIMEOUT = "pass", "not run", "FAIL", "TIME OUT"

# Server and client of one test in a network of their own. The client starts when the
# server listens, the latest after two seconds; a server whose client failed gets two more.
PAIR = r"""
ip link set lo up
"$0" "$@" -s 127.0.0.1 >"$OUT.server" 2>&1 & server=$!
n=0
while ! grep -q ' 0A ' /proc/net/tcp && [ $n -lt 20 ]; do sleep 0.1; n=$((n + 1)); done
sleep 0.1
"$0" "$@" -s 127.0.0.1 127.0.0.1 >"$OUT.client" 2>&1; client=$?
if [ $client -ne 0 ]; then
    n=0
    while kill -0 $server 2>/dev/null && [ $n -lt 20 ]; do sleep 0.1; n=$((n + 1)); done
    kill -9 $server 2>/dev/null
fi
wait $server
echo "status $? $client"
"""
ALONE = r"""
ip link set lo up
"$0" "$@" >"$OUT.server" 2>&1; status=$?
echo "status $status $status"
"""


def main():
    options = arguments()
    source = options.source or fetched()
    programs = compiled(source, options.build or BUILD / "bin", options.libfabric)
    plan = Plan(PLAN.read_text(), (source / "scripts" / "runfabtests.sh").read_text())
    cases = [case for case in plan.cases if not options.only or any(word in case.name for word in options.only)]
    providers = options.provider or [OURS, THEIRS]
    began = time.monotonic()
    results = performed(cases, providers, programs, options)
    totals(results, providers)
    for reason, names in plan.skipped.items():
        print(f"skipped: {len(names)} tests: {reason}")
    print(f"{len(cases)} tests in {time.monotonic() - began:.0f} s; output in {shown(options.logs)}")
    return verdict(results, providers)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="TEXT", help="only tests that contain this")
    parser.add_argument("--provider", action="append", help=f"instead of both: {OURS} or '{THEIRS}'")
    parser.add_argument("--provider-path", type=Path, default=ROOT / "build" / "lib", help="folder with libisthmus-fi.so")
    parser.add_argument("--source", type=Path, help="another generation of the tests, unpacked")
    parser.add_argument("--build", type=Path, help="where its programs go")
    parser.add_argument("--libfabric", type=Path, help="folder with the libfabric.so.1 to use instead of the system's")
    parser.add_argument("--logs", type=Path, default=ROOT / "build" / "logs" / "fabtests")
    parser.add_argument("--seconds", type=float, default=60, help="the time that one test may take")
    parser.add_argument("--at-once", type=int, default=2, help="how many tests run at once")
    return parser.parse_args()


# --- the tests ---------------------------------------------------------------


@dataclass
class Case:
    """A test: its program and arguments, and whether it is a client and a server."""

    command: str
    pair: bool

    @property
    def name(self):
        return self.command


@dataclass
class Plan:
    """What to run: their quick set, changed by our file of skips and additions."""

    ours: str
    theirs: str
    cases: list = field(default_factory=list)
    skipped: dict = field(default_factory=dict)

    def __post_init__(self):
        skips, additions = [], []
        for line in self.ours.splitlines():
            if not line.strip() or line.startswith("#"):
                continue
            action, rest = line.split(None, 1)
            what, reason = (part.strip() for part in rest.split("--- ", 1)) if "--- " in rest else (rest.strip(), "")
            if action == "skip" and reason:
                skips.append((re.compile(what), reason))
            elif action == "also":
                additions.append(what)
            else:
                raise SystemExit(f"{PLAN.name}: neither 'also TEST' nor 'skip PATTERN --- REASON': {line}")
        listed = [Case(command, False) for command in array(self.theirs, UNIT)]
        listed += [Case(command, True) for name in PAIRS for command in array(self.theirs, name)]
        listed += [Case(command, True) for command in additions]
        for case in listed:
            reason = next((reason for pattern, reason in skips if pattern.search(case.command)), None)
            if reason is None:
                self.cases.append(case)
            else:
                self.skipped.setdefault(reason, []).append(case.command)


def array(script, name):
    """The elements of an array of a shell script."""
    body = re.search(rf"^{name}=\(\s*\\?\n(.*?)^\)", script, re.M | re.S)
    return re.findall(r'"([^"]+)"', body.group(1)) if body else []


def performed(cases, providers, programs, options):
    """Runs all, `at_once` at a time; prints the table's rows and returns {case: {provider: verdict}}."""
    options.logs.mkdir(parents=True, exist_ok=True)
    width = max((len(case.name) for case in cases), default=4)
    row(width, "test", [{OURS: "ours", THEIRS: "theirs"}.get(provider, provider) for provider in providers])
    results = {}
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        jobs = [[pool.submit(perform, case, p, programs, options) for p in providers] for case in cases]
        for case, pair in zip(cases, jobs):
            verdicts = [job.result() for job in pair]
            results[case.name] = dict(zip(providers, verdicts))
            row(width, case.name, verdicts, "  <" if worse(results[case.name]) else "")
    return results


def row(width, name, columns, mark=""):
    print(f"{name:{width}}  " + "  ".join(f"{column:8}" for column in columns) + mark, flush=True)


def perform(case, provider, programs, options):
    words = shlex.split(case.command.replace("SERVER_ADDR", "127.0.0.1").replace("GOOD_ADDR", "127.0.0.1"))
    program = programs / words[0]
    if not program.exists():
        return ABSENT
    label = re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{case.name}.{provider}")
    out = options.logs / label
    env = {"OUT": str(out)}
    if provider == OURS:
        env |= {"FI_PROVIDER_PATH": str(options.provider_path.resolve()), "FI_PROVIDER": OURS}
    if options.libfabric:
        env["LD_LIBRARY_PATH"] = str(options.libfabric.resolve())
    isolate = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    script = PAIR if case.pair else ALONE
    command = [*isolate, "sh", "-c", script, str(program), *words[1:], "-p", provider]
    ended = process.run(command, env, out.with_name(label + ".log"), options.seconds)
    match = re.search(r"^status (\d+) (\d+)$", ended.output, re.M)
    if ended.timed_out or not match:
        return TIMEOUT if ended.timed_out else FAIL
    server, client = int(match.group(1)), int(match.group(2))
    if server == client == 0:
        return PASS
    return ABSENT if server == client and server in NOT_OFFERED else FAIL


def totals(results, providers):
    for provider in providers:
        verdicts = [row[provider] for row in results.values()]
        bad = sum(v in (FAIL, TIMEOUT) for v in verdicts)
        print(f"{provider}: {verdicts.count(PASS)} pass, {bad} fail, {verdicts.count(ABSENT)} not offered")


def worse(row):
    return row.get(THEIRS) == PASS and row.get(OURS, PASS) != PASS


def verdict(results, providers):
    if any(worse(row) for row in results.values()):
        return 1
    alone = providers == [OURS]
    return int(alone and any(row[OURS] in (FAIL, TIMEOUT) for row in results.values()))


# --- where the programs come from ----------------------------------------------


def fetched():
    """The tests' source from Debian's mpich source package, below build/."""
    source = BUILD / "source"
    if (source / "Makefile.am").exists():
        return source
    work = BUILD / "fetch"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    print("fabtests: fetching Debian's source package mpich")
    apt = apt_with_sources(work)
    got = subprocess.run([*apt, "source", "--download-only", "mpich"], cwd=work, stdout=subprocess.DEVNULL)
    archives = list(work.glob("mpich_*.orig.tar.*"))
    if got.returncode or not archives:
        raise SystemExit("fabtests: apt-get could not fetch the source package mpich: is Debian's archive within reach?")
    members = subprocess.run(["tar", "-tf", archives[0]], check=True, stdout=subprocess.PIPE, text=True).stdout
    folder = re.search(r"^(\S*/fabtests)/Makefile\.am$", members, re.M)
    if not folder:
        raise SystemExit(f"fabtests: {archives[0].name} carries no fabtests")
    subprocess.run(["tar", "-C", work, "-xf", archives[0], folder.group(1)], check=True)
    shutil.rmtree(source, ignore_errors=True)
    (work / folder.group(1)).rename(source)
    shutil.rmtree(work)
    return source


def apt_with_sources(work):
    """apt-get with lists of its own: the system's need not name source packages."""
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    suite = release.get("VERSION_CODENAME", "bookworm").strip('"')
    sources = work / "sources.list"
    sources.write_text(f"deb-src http://deb.debian.org/debian {suite} main\n")
    for folder in ("lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True)
    settings = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": work / "lists",
        "Dir::Cache": work / "cache",
        "APT::Sandbox::User": "",
    }
    apt = ["apt-get", "-q"] + [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    subprocess.run([*apt, "update"], check=True, stdout=subprocess.DEVNULL)
    return apt


def compiled(source, programs, libfabric):
    """Builds what their Makefile.am lists, with the system's compiler and headers."""
    programs.mkdir(parents=True, exist_ok=True)
    flags = ["-g", "-O1", "-w", "-pthread", "-D_GNU_SOURCE", "-DHAVE_CONFIG_H", '-DCONFIG_PATH=""', "-DHAVE_EPOLL=1"]
    flags += ["-DHAVE_CLOCK_GETTIME=1", f"-I{programs}", f"-I{source}", f"-I{source}/include", f"-I{source}/multinode/include"]
    (programs / "config.h").touch()
    system = subprocess.run(["pkg-config", "--cflags", "--libs", "libfabric"], stdout=subprocess.PIPE, text=True)
    link = shlex.split(system.stdout) if system.returncode == 0 else ["-lfabric"]
    makefile = variables((source / "Makefile.am").read_text())
    common = objects(makefile["libfabtests_la_SOURCES"], source, programs, flags)
    failed = []
    for target in makefile["bin_PROGRAMS"]:
        program = programs / Path(target).name
        if program.exists():
            continue
        parts = makefile.get(re.sub(r"\W", "_", target) + "_SOURCES", [])
        try:
            own = objects(parts, source, programs, flags)
            command = ["gcc", "-pthread", "-o", program, *own, *common, *link, "-lm", "-lrt", "-ldl"]
            subprocess.run(command, check=True, stderr=subprocess.PIPE)
        except subprocess.CalledProcessError as error:
            failed.append((program.name, error.stderr.decode(errors="replace").strip().splitlines()[-1:]))
    for name, why in failed:
        print(f"fabtests: {name} does not build: {' '.join(why)}")
    return programs


def objects(parts, source, programs, flags):
    made = []
    for part in (part for part in parts if part.endswith(".c")):
        made.append(programs / (part.replace("/", "-")[:-2] + ".o"))
        if not made[-1].exists():
            subprocess.run(["gcc", *flags, "-c", source / part, "-o", made[-1]], check=True, stderr=subprocess.PIPE)
    return made


def variables(makefile):
    """The makefile's variables, their $(references) replaced; conditions are taken as false."""
    plain = re.sub(r"^if .*?^endif.*?$", "", makefile.replace("\\\n", " "), flags=re.M | re.S)
    found = {}
    for name, extends, value in re.findall(r"^(\w+)\s*(\+?)=(.*)$", plain, re.M):
        value = re.sub(r"\$\((\w+)\)", lambda match: " ".join(found.get(match.group(1), [])), value)
        found[name] = (found.get(name, []) if extends else []) + value.split()
    return found


def shown(path):
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


if __name__ == "__main__":
    sys.exit(main())

"""libfabric's own tests, the generations of libfabric 1 and 2.

What is run: the quick set of their own runfabtests.sh, less what fabtests.txt skips, plus
what it adds. Every test runs in a network namespace of its own, so their fixed ports meet
nobody.
"""

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from harness import mpis, process

from . import debian
from .table import ABSENT, BUILD, FAIL, OURS, PASS, ROOT, TIMEOUT, Case, Outcome, Plan, Suite, Unavailable

PLAN = Path(__file__).resolve().parent.parent / "fabtests.txt"
# How runfabtests.sh's lists are called, and which of them are its quick set.
UNIT, PAIRS = "unit_tests", ("functional_tests", "short_tests")
# What the tests return when a provider has not got what they try: FI_ENODATA, FI_ENOSYS.
NOT_OFFERED = (61, 38)

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
# A test whose client alone has the plan of what is tried; the provider is named in it.
PLANNED = r"""
ip link set lo up
"$0" -x >"$OUT.server" 2>&1 & server=$!
n=0
while ! grep -q ' 0A ' /proc/net/tcp && [ $n -lt 20 ]; do sleep 0.1; n=$((n + 1)); done
"$0" "$@" 127.0.0.1 >"$OUT.client" 2>&1; client=$?
[ $client -eq 0 ] || { sleep 2; kill -9 $server 2>/dev/null; }
wait $server
echo "status $? $client"
"""
# A test of several equal processes (-n), the first of which the others look for.
RANKS = r"""
ip link set lo up
"$0" "$@" -s 127.0.0.1 >"$OUT.server" 2>&1 & server=$!
sleep 1
others=
while [ $(echo $others | wc -w) -lt $((COUNT - 1)) ]; do
    "$0" "$@" -s 127.0.0.1 >>"$OUT.client" 2>&1 & others="$others $!"
done
client=0
for other in $others; do wait $other || client=$?; done
wait $server
echo "status $? $client"
"""
# What datagram endpoints are compared with: the other one has none.
DATAGRAMS, UDP = re.compile(r"\bfi_dgram|-e dgram|CONFIGS/udp"), "udp"
ALONE = r"""
ip link set lo up
"$0" "$@" >"$OUT.server" 2>&1; status=$?
echo "status $status $status"
"""


@dataclass(frozen=True)
class Generation:
    """One generation of the tests: the source package that carries them, and what they run over.

    `release`: of Debian, this system's by default. `library`: the folder, below build/, of
    the libfabric.so.1 to use with the headers of the same package, instead of the system's."""

    name: str
    package: str
    folder: str
    release: str | None = None
    library: str | None = None


FIRST = Generation("fabtests", "mpich", "modules/libfabric/fabtests")
SECOND = Generation("fabtests-2", "libfabric", "fabtests", "trixie", "mpi/mpich/lib/mpich")


def prepare(options, generation):
    source = debian.source(generation.package, generation.folder, generation.release)
    programs = compiled(source, generation)
    plan = Plan(PLAN, generation.name)
    script = (source / "scripts" / "runfabtests.sh").read_text()
    cases = [Case(command, False) for command in array(script, UNIT)]
    cases += [Case(command, True) for name in PAIRS for command in array(script, name)]
    cases += [Case(command, True) for command in plan.additions]
    cases, skipped = plan.chosen(cases, options)
    title = f"libfabric's tests, {'the system' if generation.library is None else 'libfabric 2'}"
    return Suite(title, cases, lambda case, provider: perform(case, provider, programs, generation, options), skipped)


def array(script, name):
    """The elements of an array of a shell script."""
    body = re.search(rf"^{name}=\(\s*\\?\n(.*?)^\)", script, re.M | re.S)
    return re.findall(r'"([^"]+)"', body.group(1)) if body else []


def perform(case, provider, programs, generation, options):
    words = shlex.split(case.name.replace("SERVER_ADDR", "127.0.0.1").replace("GOOD_ADDR", "127.0.0.1"))
    if provider != OURS and DATAGRAMS.search(case.name):
        provider = UDP
    words = [planned(word, provider, generation, options) if word.startswith("CONFIGS/") else word for word in words]
    program = programs / words[0]
    if not program.exists():
        return Outcome(ABSENT, "does not build")
    label = re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{case.name}.{provider}")
    out = options.logs / label
    env = {"OUT": str(out)}
    if provider == OURS:
        env |= {"FI_PROVIDER_PATH": str(mpis.PROVIDER.parent), "FI_PROVIDER": OURS}
        # The client of a test knows the server by host and port only.
        env["FI_ISTHMUS_ADMISSION"] = "open"
    if generation.library:
        env["LD_LIBRARY_PATH"] = str(programs)
    isolate = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    script, arguments = PAIR if case.body else ALONE, [*words[1:], "-p", provider]
    if words[0] == "fi_ubertest":
        script, arguments = PLANNED, words[1:]
    elif words[0] in ("fi_multinode", "fi_multinode_coll"):
        script, env["COUNT"] = RANKS, words[words.index("-n") + 1]
    command = [*isolate, "sh", "-c", script, str(program), *arguments]
    ended = process.run(command, env, out.with_name(label + ".log"), options.seconds)
    match = re.search(r"^status (\d+) (\d+)$", ended.output, re.M)
    if ended.timed_out:
        return Outcome(TIMEOUT)
    if not match:
        return Outcome(FAIL)
    server, client = int(match.group(1)), int(match.group(2))
    if server == client == 0:
        return Outcome(PASS)
    # The client of the newer generation only sees that its server is gone.
    return Outcome(ABSENT if server in NOT_OFFERED and client else FAIL, f"status {server} and {client}")


def planned(path, provider, generation, options):
    """A copy of one of their test_configs in which the provider is this one."""
    source = debian.source(generation.package, generation.folder, generation.release)
    text = (source / "test_configs" / path.removeprefix("CONFIGS/")).read_text()
    copy = options.logs / f"{path.replace('/', '_')}.{provider}"
    copy.write_text(re.sub(r"(prov_name: *)[^,]+", rf"\g<1>{provider}", text))
    return str(copy)


# --- building ------------------------------------------------------------------


def compiled(source, generation):
    """Builds what their Makefile.am lists. Returns the folder with the programs."""
    programs = BUILD / generation.name
    programs.mkdir(parents=True, exist_ok=True)
    (programs / "config.h").touch()
    includes = [programs, source, source / "include", source / "multinode" / "include", *headers(generation)]
    flags = ["-g", "-O1", "-w", "-pthread", "-D_GNU_SOURCE", "-DHAVE_CONFIG_H", '-DCONFIG_PATH=""', "-DHAVE_EPOLL=1"]
    flags += ["-DHAVE_CLOCK_GETTIME=1", *(f"-I{folder}" for folder in includes)]
    link = [*linked(generation, programs), "-lm", "-lrt", "-ldl"]
    makefile = variables((source / "Makefile.am").read_text())
    common = objects(makefile["libfabtests_la_SOURCES"], source, programs, flags)
    for target in makefile["bin_PROGRAMS"]:
        program = programs / Path(target).name
        if program.exists():
            continue
        parts = makefile.get(re.sub(r"\W", "_", target) + "_SOURCES", [])
        try:
            own = objects(parts, source, programs, flags)
            subprocess.run(["gcc", "-pthread", "-o", program, *own, *common, *link], check=True, stderr=subprocess.PIPE)
        except subprocess.CalledProcessError as error:
            why = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
            print(f"{generation.name}: {program.name} does not build: {' '.join(why)}")
    return programs


def headers(generation):
    """The folder of libfabric's headers, where they are not the system's."""
    return [debian.source(generation.package, "include", generation.release)] if generation.library else []


def linked(generation, programs):
    """What links a program with the generation's libfabric."""
    if not generation.library:
        system = subprocess.run(["pkg-config", "--cflags", "--libs", "libfabric"], stdout=subprocess.PIPE, text=True)
        return shlex.split(system.stdout) if system.returncode == 0 else ["-lfabric"]
    library = ROOT / "build" / generation.library / "libfabric.so.1"
    if not library.exists():
        raise Unavailable(f"{library} is not there: tools/bootstrap.sh mpich")
    for name in ("libfabric.so", "libfabric.so.1"):
        (programs / name).unlink(missing_ok=True)
        (programs / name).symlink_to(library)
    return [f"-L{programs}", "-lfabric", "-Wl,--allow-shlib-undefined"]


def objects(parts, source, programs, flags):
    made = []
    for part in (part for part in parts if part.endswith(".c")):
        made.append(programs / (part.replace("/", "-")[:-2] + ".o"))
        if not made[-1].exists():
            subprocess.run(["gcc", *flags, "-c", source / part, "-o", made[-1]], check=True, stderr=subprocess.PIPE)
    return made


def variables(makefile):
    """The makefile's variables, their $(references) replaced; conditions are taken as false."""
    plain, conditions = makefile.replace("\\\n", " "), 1
    while conditions:  # the innermost first
        plain, conditions = re.subn(r"^if (?:(?!^if ).)*?^endif[^\n]*$", "", plain, flags=re.M | re.S)
    found = {}
    for name, extends, value in re.findall(r"^(\w+)\s*(\+?)=(.*)$", plain, re.M):
        value = re.sub(r"\$\((\w+)\)", lambda match: " ".join(found.get(match.group(1), [])), value)
        found[name] = (found.get(name, []) if extends else []) + value.split()
    return found

"""`isthmus run` under launchers that are not here: their variables are imitated. And its output, where it goes nowhere."""

import re
import struct
import time

from .cases import Case, Failure, last_words
from .run_cases import Job, Part, meeting

# Processes of the part.
COUNT = 3
SAY = ["sh", "-c", 'echo "rank $ISTHMUS_RUN_RANK of $ISTHMUS_RUN_SIZE"']
# docs/run.md: pbsdsh numbers hosts, and the user passes that number on.
BY_PBS = ["bash", "-c", f'exec "$1" "$2" --rank $PBS_NODENUM --size {COUNT} "${{@:3}}"', "-"]


def apinfo(path, pes):
    """The file of PALS that names all processes, as Slurm's and Flux's apinfo.c write it: a header, then tables."""
    tables = [(80, 0), (12, 1), (12, pes), (68, 1), (112, 0)]
    fields, end = [], 136
    for size, count in tables:
        fields += [size, end, count]
        end += size * count
    path.write_bytes(struct.pack("@iN" + "NNi" * len(tables), 1, end, *fields).ljust(end, b"\0"))


def variables(c):
    """For each launcher, what it sets for the process with this number."""
    path = c.scratch("apinfo")
    apinfo(path, COUNT)
    return {
        "PALS": lambda n: {"PALS_RANKID": n, "PALS_LOCAL_RANKID": 0, "PALS_NODEID": n, "PALS_APID": "a1", "PALS_APINFO": path},
        "PALS with PMIx": lambda n: {"PALS_RANKID": n, "PALS_APINFO": path, "PMIX_RANK": n, "PMIX_NAMESPACE": "a1"},
        "Flux": lambda n: {"FLUX_TASK_RANK": n, "FLUX_JOB_SIZE": COUNT, "FLUX_TASK_LOCAL_ID": 0, "FLUX_JOB_NNODES": COUNT},
        "jsrun": lambda n: {"JSM_NAMESPACE_RANK": n, "JSM_NAMESPACE_SIZE": COUNT, "JSM_NAMESPACE_LOCAL_RANK": 0},
        "jsrun with PMIx": lambda n: {"JSM_NAMESPACE_RANK": n, "JSM_NAMESPACE_SIZE": COUNT, "PMIX_RANK": n},
        "pbsdsh": lambda n: {"PBS_TASKNUM": f"{n << 28 | 2:08X}", "PBS_NODENUM": n, "PBS_ENVIRONMENT": "PBS_BATCH"},
        "ssh": lambda n: {},
    }


def launchers(c):
    """Three processes of a part take their numbers from each launcher, or from options, and make one world."""
    for name, of in variables(c).items():
        at, parts = meeting(c), []
        for number in range(COUNT):
            env = {key: str(value) for key, value in of(number).items()}
            # PMIx's numbers may be another launcher's than those beside them, so that the count has to be told.
            told = {"ssh": ["--rank", number, "--size", COUNT]}
            options = told.get(name, ["--size", COUNT] if "PMIX_RANK" in env else [])
            parts.append(Part(c, None, "1/1", SAY, *options, launcher=BY_PBS if name == "pbsdsh" else (), env=env, at=at, suffix=f".{number}"))
        with Job(parts) as job:
            said = job.succeed()
        if sorted(re.findall(r"^rank \d of \d$", said, re.M)) != [f"rank {rank} of {COUNT}" for rank in range(COUNT)]:
            raise Failure(f"{name}: {last_words(said)}")
    with Job([Part(c, None, "1/1", SAY, env={"PBS_TASKNUM": "00000002", "PBS_NODENUM": "0"}, at=meeting(c))]) as job:
        job.fail("pbsdsh or pbs_tmrsh has started this process .* give --rank and --size", 2, time.monotonic(), bound=20)
    return f"one world by each of {', '.join(variables(c))}; without a number none by pbsdsh"


def output(c):
    """Output that is odd, or goes nowhere, ends no job of itself, and loses nothing that can be printed."""
    def ended(text, *options, shell='"$@"', ranks=1):
        part = Part(c, None, "1/1", ["sh", "-c", text], "-n", ranks, *options, launcher=["bash", "-c", shell, "-"])
        with Job([part]) as job:
            return job.parts[0].job.wait(60)

    def must(what, one, status, words):
        if one.status != status or not re.search(words, one.output, re.M | re.S):
            raise Failure(f"{what}: exit {one.status}, {last_words(one.output)}")

    must("no newline", ended("printf abc", "--gather"), 0, r"^abc\n\Z")
    must("a long line", ended("head -c 200000 /dev/zero | tr '\\0' x; echo", "--gather", "--label"), 0,
         r"\A(\[rank 0, part 1\] x{65536}\n){3}\[rank 0, part 1\] x{3392}\n\Z")
    must("standard input", ended("sed s/^/got-/", "--label", shell='printf "a\\nb\\n" | "$@"', ranks=2), 0,
         r"\A\[rank 0, part 1\] got-a\n\[rank 0, part 1\] got-b\n\Z")
    must("two outputs", ended("echo out; echo err >&2", "--gather", shell='"$@" 2>/dev/null'), 0, r"\Aout\n\Z")
    for where in (">&-", ">/dev/full"):
        must(where, ended("echo lost; echo status $? >&2", "--gather", shell=f'"$@" {where}'), 3,
             r"^status 0\n.*cannot write to standard output")
    must("a reader that leaves", ended("yes | head -n 100000; echo whole >&2", "--gather", shell='"$@" | head -n 1'), 0, "^whole$")
    must("a signal", ended("echo last; kill -SEGV $$", "--gather", "--label"), 139, r"^\[rank 0, part 1\] last\n.*was ended by SIGSEGV")
    must("a process left behind", ended("sleep 20 & echo said", "--gather"), 0, "^said$")
    return "nine kinds"


CASES = {
    case.name: case
    for case in (
        Case("run-launchers", launchers, places=("host",), mpis=("mpich",)),
        Case("run-output", output, places=("host",), mpis=("mpich",)),
    )
}

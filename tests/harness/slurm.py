"""A Slurm cluster of one node at a site of the lab, of Debian's packages below build/slurm."""

import os
import re
import socket
import tempfile
from pathlib import Path

from . import process
from .cases import Failure, Skip, await_file, last_words
from .mpis import BUILD, ISTHMUS

ROOT = BUILD / "slurm"
# More ranks than the machine has processors.
CPUS = 8
CONFIG = """ClusterName={site}
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES State=UP MaxTime=INFINITE
"""


class Cluster:
    """Munge, a controller and a node at a site. As a context: idle when entered, gone when left."""

    def __init__(self, c, site):
        self.c, self.site = c, site
        found = sorted(ROOT.glob("usr/lib/*/slurm-wlm"))
        if not found:
            raise Skip("Slurm is not here: tools/bootstrap.sh slurm")
        if os.geteuid() != 0:
            raise Skip("a Slurm cluster takes root")
        self.plugins = found[0]
        self.folder = tempfile.TemporaryDirectory(prefix=f"slurm-{site}-")
        self.jobs = []

    def enter(self):
        return [str(ISTHMUS), "lab", "exec", self.site, "--"]

    def env(self):
        return {"SLURM_CONF": f"{self.folder.name}/slurm.conf", "LD_LIBRARY_PATH": f"{self.plugins}:{self.plugins.parent}"}

    def tool(self, name):
        return str(ROOT / "usr" / ("sbin" if name.endswith("d") or name.endswith("-wlm") else "bin") / name)

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for job in reversed(self.jobs):
            job.end()
        self.folder.cleanup()

    def start(self):
        folder = Path(self.folder.name)
        for name in ("state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        told = process.run([*self.enter(), "hostname"], {}, self.c.log(f".{self.site}.hostname"), 20)
        host = told.output.strip() or socket.gethostname()
        (folder / "slurm.conf").write_text(CONFIG.format(site=self.site, host=host, folder=folder, plugins=self.plugins, cpus=CPUS))
        daemons = {
            "munged": ["--foreground", "--force", "--key-file", key, "--socket", folder / "munge.sock", "--pid-file", folder / "munge.pid",
                       "--log-file", folder / "munge.log", "--seed-file", folder / "munge.seed"],
            "slurmctld-wlm": ["-D", "-c"],
            "slurmd-wlm": ["-D", "-N", host, "-d", self.tool("slurmstepd-wlm")],
        }
        for name, words in daemons.items():
            command = [*self.enter(), self.tool(name), *map(str, words)]
            self.jobs.append(process.Running(command, self.env(), self.c.log(f".{self.site}.{name}")))
            if name == "munged":
                await_file(folder / "munge.sock", self.jobs[-1], 10)
        idle = lambda: re.search(r"^idle", self.ask("sinfo", "-h", "-o", "%T"), re.M)
        process.await_until(self.jobs, idle, 30, f"idle node of Slurm at {self.site}", look=0.2)

    @property
    def tools(self):
        """Where srun, sbatch and the like are."""
        return ROOT / "usr" / "bin"

    def submit(self, script, folder, env):
        """A batch job of this script, which begins in the folder."""
        path = Path(folder) / f"batch-{self.site}.sh"
        path.write_text(script)
        command = [*self.enter(), self.tool("sbatch"), "--parsable", f"--chdir={folder}", f"--output={folder}/%x.%j.out", str(path)]
        # The batch job gets this environment, and must outlive the command.
        done = process.ask(command, {**env, **self.env()}, self.c.log(f".{self.site}.sbatch"), 30)
        if done.returncode:
            raise Failure(f"sbatch at {self.site}: {last_words(done.stderr)}")
        return Batch(self, done.stdout.strip(), Path(folder))

    def ask(self, tool, *words):
        """What a command of Slurm prints."""
        command = [*self.enter(), self.tool(tool), *words]
        return process.ask(command, self.env(), self.c.log(f".{self.site}.{tool}"), 30).stdout


class Batch:
    """A batch job of a cluster."""

    def __init__(self, cluster, number, folder):
        self.cluster, self.number, self.folder = cluster, number, folder

    def output(self):
        return "".join(path.read_text(errors="replace") for path in self.folder.glob(f"*.{self.number}.out"))

    def wait(self, seconds):
        """What it has printed, when it has ended well."""
        def ended():
            # Slurm keeps it on its list for some minutes after its end.
            told = self.cluster.ask("scontrol", "show", "job", self.number)
            return re.search(r"JobState=(?!PENDING|CONFIGURING|RUNNING|COMPLETING)(\w+)", told)

        def what():
            return f"end of batch job {self.number} at {self.cluster.site}, which said {last_words(self.output())!r},"

        # Its processes are children of those of the cluster's.
        state = process.await_until(self.cluster.jobs, ended, seconds, what, look=0.2)
        if state.group(1) != "COMPLETED":
            raise Failure(f"batch job {self.number} at {self.cluster.site}: {state.group(1)}: {last_words(self.output())}")
        return self.output()

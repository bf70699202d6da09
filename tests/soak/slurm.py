"""The Slurm script of `cluster/slurm` on a real Slurm of two nodes, of which one is killed.

Hosts are those of `hosts`: `head` has the controller, two nodes a daemon each, `desk` submits. It
needs what `hosts` needs, Slurm and MUNGE (in Debian the packages slurm-wlm and munge), which run
from a folder of their own with no configuration of the machine. The script is submitted as it is,
but for options of `sbatch` that say what these nodes have. In the second job all processes of the
node with the driver are killed, its daemon among them, and it comes back: Slurm requeues the job.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from soak import hosts as several
from soak.harness import ROOT, Found, Result, Studies, differing, n_launches, tables_of
from soak.hosts import Hosts

SCRIPT = ROOT / "cluster" / "slurm" / "study.sbatch"
NODES = ("node-1", "node-2")
#: Longest that a job may take, seconds.
PATIENCE = 900.0
CONFIGURATION = """\
ClusterName=nas
SlurmctldHost=head({head})
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={home}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool-%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd-%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd-%n.log
SlurmdTimeout=15
ReturnToService=2
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def why_not() -> str:
    """Return why Slurm cannot run here, "" if it can."""
    if reason := several.why_not():
        return reason
    needed = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
    lacking = [word for word in needed if shutil.which(word) is None]
    return f"Slurm needs {', '.join(lacking)}" if lacking else ""


class Slurm:
    """A controller on `head` and a daemon on each node, of some hosts."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts, self.home = hosts, hosts.home
        self.configuration = hosts.home / "slurm.conf"

    @contextlib.contextmanager
    def running(self) -> Iterator["Slurm"]:
        """Start all, and end it; the daemons end with their hosts."""
        home, address = self.home, self.hosts.address
        for folder in ("state", *(f"spool-{node}" for node in NODES)):
            (home / folder).mkdir()
        lines = [f"{address(name)} {name}" for name in several.NAMES]
        (home / "hosts").write_text("127.0.0.1 localhost\n" + "\n".join(lines) + "\n")
        (home / "resolv.conf").write_text("")  # none of the names is asked of a server
        nodes = [f"NodeName={n} NodeAddr={address(n)} CPUs=2 RealMemory=4000" for n in NODES]
        text = CONFIGURATION.format(home=home, head=address("head"), nodes="\n".join(nodes))
        self.configuration.write_text(text)
        (home / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # of which nothing is used
        (home / "munge.key").write_bytes(os.urandom(128))
        (home / "munge.key").chmod(0o600)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log",
                 "seed-file": "seed"}  # fmt: skip
        options = [f"--{name}={home}/munge.{end}" for name, end in files.items()]
        with subprocess.Popen(["munged", "--foreground", "--force", *options]) as munge:
            try:
                self.begin("head", "slurmctld")
                for node in NODES:
                    self.begin(node, "slurmd")
                yield self
            finally:
                munge.terminate()

    def begin(self, name: str, daemon: str) -> None:
        """Start a daemon of Slurm on a host."""
        for file in ("hosts", "resolv.conf"):
            self.call(name, "mount", "--bind", self.home / file, f"/etc/{file}")
        self.call(name, daemon, "-f", self.configuration)

    def call(self, name: str, *command: object) -> str:
        """Run a command on a host; return what it prints.

        Raises:
            RuntimeError: it failed; says how.
        """
        path = f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}"
        known = ("env", f"SLURM_CONF={self.configuration}", path)
        process = self.hosts.start(name, *known, *command)
        said, _ = process.communicate(timeout=PATIENCE)
        if process.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))} on {name}: {said[-600:]}")
        return said

    def submit(self, study: Path, store: Path) -> int:
        """Submit the script; return the number of the job."""
        options = ("--parsable", "--gpus-per-node=0", "--cpus-per-task=1", "--time=20",
                   f"--chdir={self.home}")  # fmt: skip
        variables = (f"STUDY={study}", f"STORE={store}")
        said = self.call("desk", "env", *variables, "sbatch", *options, SCRIPT)
        return int(said.split()[-1])

    def state(self, job: int) -> dict[str, str]:
        """Return what Slurm says of a job."""
        shown = self.call("desk", "scontrol", "show", "job", str(job), "--oneliner")
        return dict(re.findall(r"(\w+)=(\S*)", shown))

    def watched(self, job: int) -> list[tuple[float, str, int]]:
        """Return the states of a job up to its end, with the seconds and its restarts."""
        began, seen = time.monotonic(), list[tuple[float, str, int]]()
        while time.monotonic() < began + PATIENCE:
            shown = self.state(job)
            state, restarts = shown["JobState"], int(shown["Restarts"])
            if not seen or seen[-1][1:] != (state, restarts):
                seen.append((round(time.monotonic() - began, 1), state, restarts))
                print(seen[-1], flush=True)
            if state in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"):
                break
            time.sleep(1)
        return seen


@contextlib.contextmanager
def studies(home: Path, seed: int) -> Iterator[Studies]:
    with several.cluster(home) as (hosts, study), Slurm(hosts).running() as slurm:
        yield ["requeued"], lambda _: undisturbed_and_killed(slurm, study)


def undisturbed_and_killed(slurm: Slurm, study: Path) -> Found:
    """Run the study twice; return the states of the jobs, and what their logs say."""
    home = slurm.home
    version = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True).stdout
    facts: dict[str, object] = {"slurm": version.split()[-1]}
    first = slurm.submit(study, home / "undisturbed")
    states = {"undisturbed": slurm.watched(first)}
    second = slurm.submit(study, home / "killed")
    while n_launches(home / "killed") < 3:
        time.sleep(0.2)
    node = slurm.state(second)["BatchHost"]
    slurm.hosts.kill(node)
    print(f"{node} was killed after {n_launches(home / 'killed')} launches", flush=True)
    time.sleep(20)
    slurm.begin(node, "slurmd")
    states["killed"] = slurm.watched(second)
    wrong = []
    for name, job in (("undisturbed", first), ("killed", second)):
        log = (home / f"nas-evidence-{job}.log").read_text(errors="replace")
        told = re.findall(r"^(?:\[\d+/|answer:|note:|trials:).*", log, flags=re.MULTILINE)
        facts[name], facts[f"log of {name}"] = states[name], told
        if states[name][-1][1:] != ("COMPLETED", int(name == "killed")):
            wrong.append(f"lost: {name}, {states[name][-1]}: {log[-600:]}")
    return Found(
        wrong=wrong or differing(tables_of(home / "killed"), tables_of(home / "undisturbed")),
        facts=facts,
    )


def table(result: Result) -> str:
    """Return the states of both jobs."""
    return json.dumps(result["cases"], indent=1)

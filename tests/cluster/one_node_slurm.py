"""A Slurm of one node, all its own: daemons of Debian's packages (slurm-wlm, munge), no systemd, no cgroups.

Everything it writes is in one folder, everything it starts is ended by it, other Slurms of the machine are left alone.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

CONF = """
ClusterName=salrun
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={root}/munge.socket,cred_expire=5
SlurmctldPort={control}
SlurmdPort={node}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=2,batch_sched_delay=0,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=4000
PartitionName=debug Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why there can be no Slurm here; empty if there can."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if _program(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed (apt-get install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "the daemons of a Slurm need root"


class Slurm:
    """The daemons, each of which can be ended and started again, and the environment in which they are found."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.conf = root / "slurm.conf"
        self.env = {**os.environ, "SLURM_CONF": str(self.conf)}
        self.processes: dict[str, subprocess.Popen] = {}

    def start(self, name: str) -> None:
        files = [f"--{what}={self.root}/munge.{what.partition('-')[0]}" for what in ("key-file", "socket", "pid-file")]
        files += [f"--{what}={self.root}/munged.{what.partition('-')[0]}" for what in ("log-file", "seed-file")]
        words = {
            "munged": ["--foreground", "--force", *files],
            "slurmctld": ["-D", "-i", "-f", str(self.conf)],
            "slurmd": ["-D", "-f", str(self.conf)],
        }[name]
        with open(self.root / f"{name}.log", "ab") as log:
            command = [str(_program(name)), *words]
            self.processes[name] = subprocess.Popen(command, env=self.env, stdout=log, stderr=log)

    def answer(self, *words: str) -> str:
        return subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=30).stdout.strip()

    def until_idle(self) -> None:
        _until(lambda: self.answer("sinfo", "--noheader", "--format=%T") == "idle", "slurmd", self.root)

    def end(self) -> None:
        for name in reversed(self.processes):
            _end(self.processes[name])


@contextmanager
def one_node_slurm(root: Path) -> Iterator[Slurm]:
    """Start it, and end it."""
    for folder in ("state", "spool"):
        (root / folder).mkdir(parents=True)
    root.chmod(0o755)
    key = root / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    slurm = Slurm(root)
    slurm.conf.write_text(
        CONF.format(root=root, host=socket.gethostname(), user="root", control=_free_port(), node=_free_port())
    )
    try:
        slurm.start("munged")
        _until(lambda: (root / "munge.socket").exists(), "munged", root)
        slurm.start("slurmctld")
        slurm.start("slurmd")
        slurm.until_idle()
        yield slurm
        slurm.answer("scancel", "--me")
    finally:
        slurm.end()


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _until(ready, what: str, root: Path, seconds: float = 90) -> None:
    begun = time.monotonic()
    while not ready():
        if time.monotonic() - begun > seconds:
            logs = "\n".join(f"{p.name}: {p.read_text(errors='replace')[-1000:]}" for p in root.glob("*.log"))
            raise RuntimeError(f"{what} does not answer\n{logs}")
        time.sleep(0.2)


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

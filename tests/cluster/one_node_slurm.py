"""A Slurm of one node, all its own: daemons of Debian's packages (slurm-wlm, munge), no systemd, no cgroups.

With accounting it has a database too (slurmdbd, mariadb-server). Everything it writes is in one folder, everything it
starts is ended by it, other Slurms of the machine are left alone.
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
{accounting}
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=2,batch_sched_delay=0,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=4000
PartitionName=debug Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""

NO_ACCOUNTING = "AccountingStorageType=accounting_storage/none"
ACCOUNTING = """AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={port}
AccountingStoragePass={root}/munge.socket"""
DATABASE_CONF = """
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
DbdHost=localhost
DbdPort={port}
SlurmUser={user}
PidFile={root}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_accounting
"""
DATABASE = """create database slurm_accounting;
create user 'slurm'@'127.0.0.1' identified by '{password}';
create user 'slurm'@'localhost' identified by '{password}';
grant all on slurm_accounting.* to 'slurm'@'127.0.0.1';
grant all on slurm_accounting.* to 'slurm'@'localhost';"""


def why_not(accounting: bool = False) -> str:
    """Why there can be no Slurm here; empty if there can."""
    needed = ["munged", "slurmctld", "slurmd", "sbatch"]
    needed += ["slurmdbd", "sacctmgr", "mariadbd", "mariadb", "mariadb-install-db"] if accounting else []
    missing = [name for name in needed if _program(name) is None]
    if missing:
        packages = "slurm-wlm munge" + (" slurmdbd mariadb-server" if accounting else "")
        return f"{', '.join(missing)} not installed (apt-get install {packages})"
    return "" if os.geteuid() == 0 else "the daemons of a Slurm need root"


class Slurm:
    """The daemons, each of which can be ended and started again, and the environment in which they are found."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.conf = root / "slurm.conf"
        self.env = {**os.environ, "SLURM_CONF": str(self.conf)}
        self.processes: dict[str, subprocess.Popen] = {}
        self.database = 0  # the port of its database, where it has one

    def start(self, name: str) -> None:
        files = [f"--{what}={self.root}/munge.{what.partition('-')[0]}" for what in ("key-file", "socket", "pid-file")]
        files += [f"--{what}={self.root}/munged.{what.partition('-')[0]}" for what in ("log-file", "seed-file")]
        words = {
            "munged": ["--foreground", "--force", *files],
            "slurmctld": ["-D", "-i", "-f", str(self.conf)],
            "slurmd": ["-D", "-f", str(self.conf)],
            "slurmdbd": ["-D"],
            "mariadbd": [
                *("--no-defaults", "--user=root", f"--datadir={self.root}/database", f"--socket={self.root}/db.socket"),
                *("--bind-address=127.0.0.1", f"--port={self.database}", "--innodb-buffer-pool-size=64M"),
            ],
        }[name]
        with open(self.root / f"{name}.log", "ab") as log:
            command = [str(_program(name)), *words]
            self.processes[name] = subprocess.Popen(command, env=self.env, stdout=log, stderr=log)

    def answer(self, *words: str) -> str:
        return subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=30).stdout.strip()

    def kill(self, name: str) -> None:
        """As a crash ends a daemon."""
        self.processes[name].kill()
        self.processes[name].wait()

    def until_idle(self) -> None:
        _until(lambda: self.answer("sinfo", "--noheader", "--format=%T") == "idle", "slurmd", self.root)

    def until_counted(self) -> None:
        """Until the database answers."""
        _until(
            lambda: self.answer("sacctmgr", "--noheader", "show", "cluster", "format=cluster"), "slurmdbd", self.root
        )

    def found_database(self, port: int) -> None:
        """Make the database, empty, and start it with the daemon that writes it."""
        self.database, password = _free_port(), secrets.token_hex(16)
        made = ["--no-defaults", f"--datadir={self.root}/database", "--user=root", "--skip-test-db"]
        subprocess.run(["mariadb-install-db", *made], capture_output=True, check=True, timeout=300)
        conf = self.root / "slurmdbd.conf"  # where slurmdbd looks for it: beside slurm.conf
        words = {"root": self.root, "user": "root", "port": port, "database": self.database, "password": password}
        conf.touch(0o600)
        conf.write_text(DATABASE_CONF.format(**words))
        self.start("mariadbd")
        speak = ["mariadb", "--no-defaults", f"--socket={self.root}/db.socket", "--execute"]
        _until(lambda: self.answer(*speak, "select 1"), "mariadbd", self.root)
        subprocess.run([*speak, DATABASE.format(password=password)], capture_output=True, check=True, timeout=60)
        self.start("slurmdbd")
        _until(lambda: "salrun" in self.answer("sacctmgr", "-i", "add", "cluster", "salrun"), "slurmdbd", self.root)

    def end(self) -> None:
        for name in reversed(self.processes):
            _end(self.processes[name])


@contextmanager
def one_node_slurm(root: Path, accounting: bool = False) -> Iterator[Slurm]:
    """Start it, and end it; `accounting`: with a database in which it keeps what became of jobs."""
    for folder in ("state", "spool"):
        (root / folder).mkdir(parents=True)
    root.chmod(0o755)
    key = root / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    slurm, port = Slurm(root), _free_port()
    words = {"root": root, "host": socket.gethostname(), "user": "root", "control": _free_port(), "node": _free_port()}
    kept = ACCOUNTING.format(port=port, root=root) if accounting else NO_ACCOUNTING
    slurm.conf.write_text(CONF.format(**words, accounting=kept))
    try:
        slurm.start("munged")
        _until(lambda: (root / "munge.socket").exists(), "munged", root)
        if accounting:
            slurm.found_database(port)
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

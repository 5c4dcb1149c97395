"""A Slurm of our own, of one machine: Debian's munged, slurmctld and slurmd on loopback, all in one folder."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from support import wait_until

PROGRAMS: Final = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
#: Further ones that keep accounts: Debian's slurmdbd and mariadb-server-core.
ACCOUNTING: Final = ("slurmdbd", "sacct", "sacctmgr", "mariadbd", "mariadb-install-db")
#: Where Debian has what only administrators run.
SEARCH: Final = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"
NODE: Final = "n1"
#: Nothing of control groups: a sandbox may forbid them.
CONFIGURATION: Final = """\
ClusterName=rdukit
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
{accounting}
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=nohold_on_prolog_fail,batch_sched_delay=0,sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=3
GresTypes=rdu_tile
PartitionName=rdu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes=ALL MaxTime=1 State=UP
PartitionName=other Nodes=ALL MaxTime=INFINITE State=UP
"""
NODES: Final = """\
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=16 Gres=rdu_tile:{tiles} State=UNKNOWN"""


NO_ACCOUNTS: Final = "AccountingStorageType=accounting_storage/none"
ACCOUNTS: Final = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge.sock
AccountingStorageTRES=gres/rdu_tile"""
#: Of slurmdbd.
ACCOUNTS_CONFIGURATION: Final = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={user}
StorageLoc=accounts
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
"""


class SlurmUnderTest:
    """A cluster, and its commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: For whoever is to use it.
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": SEARCH}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *words: str) -> None:
        """Start a daemon in the foreground."""
        program = shutil.which(name.partition("-")[0], path=SEARCH)
        assert program is not None
        with (self.folder / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                [program, *words], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**os.environ, **self.environment}, cwd=self.folder,
            )  # fmt: skip

    def start_accounting(self, port: int) -> None:
        """Start a database and ``slurmdbd``, which keeps the accounts of this cluster in it."""
        data, database = self.folder / "database", self.folder / "database.sock"
        user = pwd.getpwuid(os.geteuid()).pw_name
        kept = "--auth-root-authentication-method=normal"
        self.call("mariadb-install-db", "--no-defaults", f"--datadir={data}", f"--user={user}", kept)
        self.start("mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={database}", "--skip-networking",
                   f"--user={user}")  # fmt: skip
        wait_until(database.exists, 60)
        file = self.folder / "slurmdbd.conf"
        file.write_text(ACCOUNTS_CONFIGURATION.format(folder=self.folder, port=port, user=user))
        file.chmod(0o600)
        self.environment["MYSQL_UNIX_PORT"] = str(database)
        self.start("slurmdbd", "-D")
        wait_until(lambda: "rdukit" in self.call("sacctmgr", "-i", "add", "cluster", "rdukit", check=False), 60)

    def start_node(self, node: str = NODE) -> None:
        """Start ``slurmd`` of a node; returns when jobs may run there."""
        name = "slurmd" if node == NODE else f"slurmd-{node}"
        self.start(name, "-D", "-N", node)
        asked = ("sinfo", "-h", "-N", "-n", node, "-o", "%T")
        wait_until(lambda: self.call(*asked, check=False).startswith("idle"), 60)

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        """End a daemon, and wait for that."""
        daemon = self._daemons.pop(name)
        daemon.send_signal(number)
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def end_all(self) -> None:
        """Cancel all jobs, and end the cluster."""
        if "slurmctld" in self._daemons:
            self.call("scancel", "--me", check=False)
            if "slurmd" in self._daemons:
                wait_until(lambda: not self.call("squeue", "-h", check=False), 20)
        for name in list(reversed(self._daemons)):
            self.end(name)

    def call(self, *words: str, check: bool = True) -> str:
        """Run one of its commands. Returns what it prints."""
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, **self.environment}
        )
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout.strip()

    def state_of(self, job_id: str) -> str:
        """Return a job's state."""
        return self.call("squeue", "-h", "--states=all", f"--jobs={job_id}", "-O", "state:|").removesuffix("|")

    def hold(self, tiles: int) -> str:
        """Submit a job of somebody else that takes tiles. Returns its id."""
        words = ("--parsable", f"--gres=rdu_tile:{tiles}", "--output=/dev/null", "--wrap=sleep 600")
        job_id = self.call("sbatch", *words)
        wait_until(lambda: self.state_of(job_id) == "RUNNING", 30)
        return job_id


@contextmanager
def slurm_cluster(
    tiles: int = 8, more: Sequence[str] = (), has_accounts: bool = False, nodes: int = 1
) -> Iterator[SlurmUnderTest]:  # fmt: skip
    """Yield a cluster of this machine; the test skips where there is no Slurm.

    Args:
        tiles: of each node. more: further lines of ``slurm.conf``.
        has_accounts: with ``slurmdbd``, which counts tiles.
        nodes: each is a ``slurmd`` on this machine.
    """
    programs = (*PROGRAMS, *(ACCOUNTING if has_accounts else ()))
    if missing := [name for name in programs if shutil.which(name, path=SEARCH) is None]:
        if os.environ.get("RDUKIT_REQUIRE_SLURM"):
            raise AssertionError(f"there is no Slurm on this machine: {missing}")
        pytest.skip(f"no {', '.join(missing)} on this machine: apt-get install slurmctld slurmd slurm-client munge")
    with tempfile.TemporaryDirectory(prefix="rdk-slurm-", dir="/tmp") as made:
        folder = Path(made)
        folder.chmod(0o755)
        names = [f"n{number + 1}" for number in range(nodes)]
        for name in ("state", *(f"spool-{node}" for node in names)):
            (folder / name).mkdir(mode=0o755)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        with ExitStack() as stack:
            doors = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2 + nodes)]
            ports = [door.getsockname()[1] for door in doors]
        accounting = ACCOUNTS.format(folder=folder, port=ports[1]) if has_accounts else NO_ACCOUNTS
        host = socket.gethostname().partition(".")[0]
        text = CONFIGURATION.format(
            folder=folder, host=host, user=pwd.getpwuid(os.geteuid()).pw_name, controller_port=ports[0],
            accounting=accounting,
        )  # fmt: skip
        lines = [
            NODES.format(node=node, host=host, port=port, tiles=tiles)
            for node, port in zip(names, ports[2:], strict=True)
        ]
        (folder / "slurm.conf").write_text("\n".join([text, *lines, *more, ""]))
        (folder / "gres.conf").write_text("".join(f"NodeName={node} Name=rdu_tile Count={tiles}\n" for node in names))
        cluster = SlurmUnderTest(folder)
        try:
            cluster.start(
                "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.sock",
                f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/seed",
                "--num-threads=2",
            )  # fmt: skip
            wait_until((folder / "munge.sock").exists, 20)
            if has_accounts:
                cluster.start_accounting(ports[1])
            cluster.start("slurmctld", "-D", "-c")
            for node in names:
                cluster.start_node(node)
            yield cluster
        finally:
            cluster.end_all()

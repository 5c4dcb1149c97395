"""The launch that a process belongs to: its launcher, rank and size, and a name that its ranks on this node share.

Some launchers do not name a launch, so the name comes from the process that started the ranks.

Source: SDK reference 18, 22 and runtime reference 9 for the launchers (MPICH, Open MPI, Slurm), whose own variables are
read. torchrun and the names are ours.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit.files.owned import Owner
from rdukit.system.process import read_facts

LOOPBACK: Final = "127.0.0.1"
#: Default port on which ranks meet if the program names only an address; torch's own default.
DEFAULT_PORT: Final = 29500


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher's variables. A process was started by it when ``rank`` and ``size`` are both set."""

    name: str
    rank: str
    size: str
    local_rank: str
    #: Ranks on this node; the empty name: the launcher does not say.
    local_size: str
    #: Number of nodes of the launch, if it has this number instead.
    nodes: str = ""


#: The innermost launcher first: torchrun and mpirun run inside a Slurm step, not the other way round.
LAUNCHERS: Final = (
    Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    Launcher(
        "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    Launcher("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    Launcher("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", "SLURM_STEP_NUM_NODES"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Launch:
    """A process's place among the ranks that were started together.

    ``address`` and ``port`` are the meeting place from the environment; ``None``: unknown.
    """

    launcher: Launcher | None
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    is_one_node: bool = True
    address: str | None = None
    port: int | None = None

    @property
    def name(self) -> str:
        """The launcher's name, for people."""
        return "no launcher" if self.launcher is None else self.launcher.name


def read_launch(environ: Mapping[str, str]) -> Launch:
    """Return the launch in ``environ``; a world of one without a launcher's variables.

    Raises:
        InvalidArgument: a variable is not a number, or the rank is not below the size.
    """
    for launcher in LAUNCHERS:
        if environ.get(launcher.rank) and environ.get(launcher.size):
            return _launch_of(launcher, environ)
    return Launch(None)


def slurm_job(environ: Mapping[str, str]) -> str | None:
    """Return the Slurm job of this process, for the node's tools; ``None``: no job."""
    number = environ.get("SLURM_JOB_ID", "").strip()
    return f"slurm-{number}" if number else None


def _launch_of(launcher: Launcher, environ: Mapping[str, str]) -> Launch:
    rank, size = _number(environ, launcher.rank), _number(environ, launcher.size)
    if not 0 <= rank < size:
        raise InvalidArgument(
            f"${launcher.rank} is {rank} and ${launcher.size} is {size}; expected a rank from 0 to the size minus one"
        )
    local_rank = _number(environ, launcher.local_rank) if environ.get(launcher.local_rank) else rank
    is_one_node = True
    if launcher.local_size and environ.get(launcher.local_size):
        is_one_node = _number(environ, launcher.local_size) >= size
    if launcher.nodes and environ.get(launcher.nodes):
        is_one_node = _number(environ, launcher.nodes) == 1
    address = environ.get("MASTER_ADDR") or None
    port = _number(environ, "MASTER_PORT") if environ.get("MASTER_PORT") else None
    if address is None and port is not None and is_one_node:
        address = LOOPBACK
    if address is not None and port is None and address not in {LOOPBACK, "localhost"}:
        port = DEFAULT_PORT
    return Launch(launcher, rank, size, local_rank, is_one_node, address, port)


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError as cause:
        raise InvalidArgument(f"${name} is {environ[name]!r}; expected a whole number") from cause


def launch_name() -> str | None:
    """Return a name that is common to the ranks of this launch on this node, and unique; None without a launcher."""
    owner = launch_owner()
    return None if owner is None else f"ranks-{owner.pid}-{owner.start_ticks}"


def launch_owner() -> Owner | None:
    """Return the process that started the ranks: the nearest ancestor that is no rank; None without a launcher.

    A rank has the launcher's variable of ranks, and may have shells of its own between.
    """
    launcher = read_launch(os.environ).launcher
    if launcher is None:
        return None
    pid = os.getppid()
    while pid > 1 and _has_variable(pid, launcher.rank):
        pid = _stat(pid)[1]
    return Owner(pid, _stat(pid)[0])


def _has_variable(pid: int, variable: str) -> bool:
    try:
        held = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # another user's: a launcher's daemon
        return False
    return any(entry.startswith(f"{variable}=".encode()) for entry in held.split(b"\0"))


def _stat(pid: int) -> tuple[int, int]:
    """Return a process's start time and parent; zeros when it cannot be read."""
    try:
        facts = read_facts(pid)
    except OSError:
        return 0, 0
    return (facts.start_ticks, facts.parent) if facts is not None else (0, 0)

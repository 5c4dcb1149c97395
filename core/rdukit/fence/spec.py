"""Values that describe a fence, and the choice of a way that the machine allows. Pure.

A fenced program has its own root folder, with only the files that are named here, at their outer paths. It runs without
capabilities and cannot gain any. If root starts it, it runs as a separate user.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Final

#: Readable in every fence, where they exist: programs, libraries, the compiler and its headers, and their
#: configuration. No file of ``/etc`` that belongs to this machine or its users.
SYSTEM: Final = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf",
    "/etc/ld.so.conf.d", "/etc/localtime", "/etc/timezone", "/etc/mime.types", "/etc/ssl/openssl.cnf",
    "/sys/devices/system/cpu", "/sys/devices/system/node",
)  # fmt: skip
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
HOST_NAME: Final = "box"
USER_NAME: Final = "box"

#: Exit statuses of the launcher itself.
NOT_FENCED, DISK_LIMIT, MEMORY_LIMIT = 123, 124, 125


class Way(StrEnum):
    """Ways to put up a fence."""

    #: Root, with the machine's own namespaces.
    ROOT = "root"
    #: Any user, in a user namespace.
    USER = "user"


class FencePart(StrEnum):
    """The parts of a fence; a machine may lack some."""

    NAMESPACES = "namespaces"
    ROOT = "root"
    NETWORK = "network"
    USER = "user"
    LIMITS = "limits"
    CAPABILITIES = "capabilities"
    LANDLOCK = "landlock"
    SYSTEM_CALLS = "system-calls"


#: Required parts of a fence; Landlock repeats the protection of others.
NEEDED: Final = frozenset(FencePart) - {FencePart.LANDLOCK}


@dataclass(frozen=True, slots=True)
class FenceLimits:
    """Limits of a fenced program; None: no limit."""

    #: Bytes of all processes together, checked about once a second, and hard limit of each process.
    memory_bytes: int | None = None
    #: Processes and threads of its user, or in a user namespace of the program.
    processes: int | None = 2048
    #: Bytes of one file.
    file_bytes: int | None = 64 << 30
    #: Open files of each process.
    open_files: int | None = 4096
    #: Bytes in all its writable folders, and number of their files and folders.
    disk_bytes: int | None = 256 << 30
    disk_files: int | None = 1_000_000
    #: Bytes of ``/tmp`` and of ``/dev/shm``, which are in memory.
    temporary_bytes: int = 2 << 30


@dataclass(frozen=True, slots=True)
class FenceSpec:
    """A program and its fence."""

    command: Sequence[str]
    environment: Mapping[str, str]
    #: Working folder, which must exist inside.
    folder: str
    #: Readable and writable files and folders, at the same paths inside and outside.
    readable: Sequence[str] = ()
    writable: Sequence[str] = ()
    #: Folders that appear empty inside, except for the paths named above.
    hidden: Sequence[str] = ()
    #: UNIX sockets to which the program may connect.
    sockets: Sequence[str] = ()
    #: Files to write before the start, as the program's user with mode 0600, to writable paths: path → hexadecimal
    #: bytes.
    files: Mapping[str, str] = field(default_factory=dict)
    limits: FenceLimits = FenceLimits()
    #: User and group of the program, if root puts up the fence.
    uid: int | None = None
    #: Whether its only network is a separate loopback.
    has_own_network: bool = True
    #: Additional address of its loopback, as an interface named ``ALIAS``, and the first and last ephemeral port.
    address: str | None = None
    ports: tuple[int, int] = (32768, 60999)
    #: Numbers of its processor cores.
    cores: Sequence[int] | None = None
    #: Id of the process with which the fence ends; None: it does not depend on one.
    parent: int | None = None
    #: Descriptors that stay open while any of its processes runs, but that the program does not inherit.
    held: Sequence[int] = ()


#: Name of the interface with a fence's additional address.
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
    """Choose the way to put up a fence (pure). Root does not use a user namespace, where limits would not hold."""
    return Way.ROOT if is_root else Way.USER


def outermost(paths: Sequence[str]) -> list[str]:
    """Return the distinct paths that are not inside another one, in order (pure)."""
    chosen = list(dict.fromkeys(paths))
    folders = {path: path.rstrip("/") + "/" for path in chosen}
    return [path for path in chosen if not any(o != path and path.startswith(f) for o, f in folders.items())]

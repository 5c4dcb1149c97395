"""Where ranks of an elastic training find each other: each rank's store, and a file that names all stores.

A process has ended where its store's port refuses connections. torch's stores have no password, and list their keys to
whoever connects. A rank's file stays when the rank is killed, and tells its new process where the others are. Source:
ours.
"""

import atexit
import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import sha256_of, write_json_atomic
from rdukit.settings import home_folder, resolve
from rdukit.system.process import read_facts
from rdukit_node.leases.launch import LOOPBACK, launch_name
from rdukit_runtime.collectives.membership import Address
from rdukit_runtime.engine.torch_private import TCPStore
from rdukit_runtime.settings import DISTRIBUTED_ROSTER

#: Seconds that a connection may take.
CONNECT_S: Final = 2.0
#: Key of a rank's store that holds the training's name.
TRAINING_KEY: Final = "training"
#: Longest file that is read, in bytes: enough for some 100,000 ranks.
_LARGEST: Final = 1 << 23


@dataclass(frozen=True, slots=True)
class Roster:
    """The name of a training, and its members' stores by the ranks of their launch."""

    training: str
    addresses: Mapping[int, Address]


def serve_store() -> TCPStore:
    """Return a new store of this process, at a port of its own."""
    return TCPStore("localhost", 0, None, True, timeout=timedelta(seconds=CONNECT_S), wait_for_workers=False)


def connect_store(address: Address) -> TCPStore:
    """Return another rank's store.

    Raises:
        RuntimeError: torch's; it does not answer.
    """
    host, port = address
    return TCPStore(host, port, None, False, timeout=timedelta(seconds=CONNECT_S), wait_for_workers=False)


def find_own_address(meeting: str | None) -> str:
    """Return the address of this machine on the way to where the ranks met; loopback where they name no place."""
    with suppress(OSError):
        family, kind, _, _, address = socket.getaddrinfo(meeting or LOOPBACK, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    return LOOPBACK


def has_ended(address: Address) -> bool:
    """Return whether a machine says that nobody listens at ``address``; False where it does not answer at all."""
    try:
        socket.create_connection(address, CONNECT_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def seconds_since_start() -> float:
    """Return the age of this process."""
    facts = read_facts(os.getpid())
    assert facts is not None, "this process runs"
    return time.clock_gettime(time.CLOCK_BOOTTIME) - facts.start_ticks / os.sysconf("SC_CLK_TCK")


# -- files -------------------------------------------------------------------------------------------------------------


def roster_file(rank: int) -> Path:
    """Return the file of a rank of this launch."""
    folder = resolve(DISTRIBUTED_ROSTER)
    if folder:
        return Path(folder).expanduser() / f"rank-{rank}.json"
    return home_folder() / "run" / f"roster-{sha256_of((launch_name() or '').encode())[:16]}-{rank}.json"


def keep_roster(rank: int) -> None:
    """Remove a rank's file when this process ends by itself."""
    atexit.register(roster_file(rank).unlink, missing_ok=True)


def write_roster(rank: int, roster: Roster) -> None:
    """Write the file that a new process in the place of ``rank`` reads."""
    path = roster_file(rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomic(path, asdict(roster), 0o600)


def find_roster(rank: int) -> Roster | None:
    """Return what a killed process of this rank left; None if there is no such file.

    Raises:
        InvalidArgument: the file is damaged.
    """
    path = roster_file(rank)
    try:
        with path.open("rb") as file:
            held = json.loads(file.read(_LARGEST))
        addresses = {int(member): (str(host), int(port)) for member, (host, port) in held["addresses"].items()}
        return Roster(str(held["training"]), addresses)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as cause:
        raise InvalidArgument(
            f"{path} does not name the ranks of a training ({cause}); expected the file that a rank has left: remove "
            "it, and start all ranks again"
        ) from cause

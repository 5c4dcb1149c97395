"""Stores and files by which the ranks of an elastic training find each other.

Each rank serves a store. A rank has ended if its store's port refuses connections. Stores serve only processes that
have the training's token. Each rank also has a file, for its user only, with that token and the addresses of all
stores. The file of a killed rank stays, and its new process reads it. Source: ours.
"""

import atexit
import json
import os
import socket
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument, Unauthenticated
from rdukit.files.atomic import write_json_atomic
from rdukit.files.owned import remove_of_ended, remove_of_former_versions
from rdukit.settings import home_folder, resolve
from rdukit.system.process import read_facts
from rdukit_node.leases.launch import launch_owner
from rdukit_runtime.collectives.membership import Address, read_addresses
from rdukit_runtime.collectives.network import CONNECT_S
from rdukit_runtime.collectives.rank_store import RankStore, connect_rank_store, serve_rank_store
from rdukit_runtime.settings import DISTRIBUTED_ROSTER

#: Kinds of a launch's files: each rank's of an elastic training, and that by which ranks on one machine meet.
_ROSTER: Final = "roster"
RENDEZVOUS: Final = "rendezvous"
#: Longest file that is read, in bytes: enough for some 100,000 ranks.
_LARGEST: Final = 1 << 23


class ForeignStore(RuntimeError):
    """A store that is not of this training; raised where torch's errors of broken connections are."""


@dataclass(frozen=True, slots=True)
class Roster:
    """The token of a training, and its members' stores by the ranks of their launch."""

    token: str = field(repr=False)
    addresses: Mapping[int, Address]


def serve_store(token: str) -> RankStore:
    """Return a new store of this process, at a port of its own, for ranks that have the token."""
    return serve_rank_store(token, timedelta(seconds=CONNECT_S))


def connect_store(address: Address, token: str) -> RankStore:
    """Return another rank's store.

    Raises:
        ForeignStore: the store is another program's. RuntimeError: torch's; it does not answer.
    """
    try:
        return connect_rank_store(address, token, timedelta(seconds=CONNECT_S))
    except Unauthenticated as cause:
        raise ForeignStore(cause.message) from cause


def has_ended(address: Address) -> bool:
    """Return whether a machine refuses connections to ``address``; False if the machine does not answer."""
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
    return launch_file(_ROSTER, f"-{rank}")


def launch_file(kind: str, ending: str = "") -> Path:
    """Return a file of this launch's ranks in the home folder: ``roster`` with a rank, or ``rendezvous``."""
    owner = launch_owner()
    return home_folder() / "run" / f"{kind}-{'alone' if owner is None else owner.mark}{ending}.json"


def remove_ended_launches() -> None:
    """Remove files that killed ranks left in the home folder, of launches that have ended and of former versions."""
    folder = home_folder() / "run"
    for kind in (_ROSTER, RENDEZVOUS):
        remove_of_ended(folder, kind)
    remove_of_former_versions(folder, rf"({_ROSTER}|{RENDEZVOUS})-[0-9a-f]{{16}}(-\d+)?\.json")


def keep_roster(rank: int, own: Address) -> None:
    """Remove a rank's file when this process exits; a killed one leaves it. ``own``: address of its store."""
    atexit.register(remove_roster, rank, own)


def remove_roster(rank: int, own: Address) -> None:
    """Remove a rank's file if it names the store ``own``; a process that has taken the rank's place names another."""
    with suppress(InvalidArgument, OSError):
        held = find_roster(rank)
        if held is not None and held.addresses.get(rank) == own:
            roster_file(rank).unlink(missing_ok=True)


def write_roster(rank: int, roster: Roster) -> None:
    """Write the file that a new process in the place of ``rank`` reads.

    Raises:
        InvalidArgument: the folder cannot be written.
    """
    path = roster_file(rank)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomic(path, asdict(roster), 0o600)
    except OSError as cause:
        raise InvalidArgument(
            f"{path} cannot be written: {cause.strerror}; expected a folder in which this user can write: set "
            f"${DISTRIBUTED_ROSTER.variable}"
        ) from cause


def find_roster(rank: int) -> Roster | None:
    """Return the contents of the file that a killed process of this rank left; None: there is no such file.

    Raises:
        InvalidArgument: the file is damaged, cannot be read, or belongs to another user of this machine, who could
            direct this process to a server of theirs.
    """
    path = roster_file(rank)
    try:
        # a pipe is opened without waiting for its writer, and refused
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid not in {os.geteuid(), 0}:
                raise InvalidArgument(
                    f"{path} does not belong to this user; expected the file of rank {rank}: set "
                    f"${DISTRIBUTED_ROSTER.variable} to a folder that other users cannot write"
                )
            held = json.loads(file.read(_LARGEST))
        return Roster(str(held["token"]), read_addresses(held["addresses"]))
    except FileNotFoundError:
        return None
    except OSError as cause:
        raise InvalidArgument(
            f"{path} cannot be read: {cause.strerror}; expected the file of rank {rank}: remove it"
        ) from cause
    except (ValueError, TypeError, KeyError, AttributeError) as cause:
        raise InvalidArgument(
            f"{path} does not name the ranks of a training ({cause}); expected the file of a rank: remove it, and "
            "start all ranks again"
        ) from cause

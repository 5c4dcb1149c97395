"""Other members of an operation: further processes of a box's work, each with its own lease.

The platform leases tiles for each member and names the leases in ``$RDUKIT_BOX_MEMBERS``. The operation's process is
the box's first member and starts the others; they communicate over loopback like ranks of torchrun. Members end with
the operation, and it ends when the first of them fails: no member continues alone. If ``$RDUKIT_BOX_PART`` says that
boxes of other nodes have further members, a relay brings their connections (``rdukit.box.links``).
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, Final

from rdukit.box.image import BoxEnd
from rdukit.box.links import STORE_PORT, LinkedPart, part_address, read_part
from rdukit.box.relay import relaying
from rdukit.box.settings import MEMBERS, PART
from rdukit.errors import ChildDied, InvalidArgument, PeerLost, RdukitError, all_error_classes
from rdukit.fence.spec import ALIAS
from rdukit.settings import LEASE, SND_SOCKET, resolve
from rdukit_modelbox.operations.forks import ChildMain, ForkedMember, can_fork_members, fork_member
from rdukit_runtime.settings import DISTRIBUTED_TOKEN

#: Address on which members of a box meet; a fence permits only loopback.
LOOPBACK: Final = "127.0.0.1"
#: Seconds that the first member waits for the exit status of a lost member.
END_S: Final = 10.0

Environment = dict[str, str]


@dataclass(frozen=True, slots=True)
class MemberLease:
    """Tiles of a member: ``<id>:<token>`` of its lease, and the socket to attach by; empty: the node's own."""

    lease: str
    socket: str = ""


def read_members(text: str) -> tuple[MemberLease, ...]:
    """Parse the leases of all members, the first member's first (pure); empty: the operation has one process.

    Raises:
        InvalidArgument: the text is not a list of leases.
    """
    found = []
    for word in text.split():
        lease, _, path = word.partition("@")
        if lease.count(":") != 1:
            raise InvalidArgument(
                f"${MEMBERS.variable} has {word[:40]!r}; expected <id>:<token>@<socket> for each member, separated by "
                "spaces"
            )
        found.append(MemberLease(lease, path))
    return tuple(found)


def find_part() -> LinkedPart | None:
    """Return this box's part of its job; ``None``: it is the only box.

    Raises:
        InvalidArgument: the setting is malformed.
    """
    return read_part(resolve(PART))


def place_of(
    number: int, members: Sequence[MemberLease], port: int, part: LinkedPart | None = None, token: str = ""
) -> Environment:
    """Return the additional variables of a member's process (pure).

    Args:
        number: number of the member in this box. port: their meeting port, if this box has all members.
        token: their secret; empty: none.
    """
    count, own = len(members), members[number]
    first, world = (0, count) if part is None else (part.first_rank, part.world)
    address, port, interface = (LOOPBACK, port, "lo") if part is None else (part_address(0), STORE_PORT, ALIAS)
    return {
        "RANK": str(first + number), "WORLD_SIZE": str(world), "LOCAL_RANK": str(number),
        "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": address, "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": interface, **({DISTRIBUTED_TOKEN.variable: token} if token else {}),
        LEASE.variable: own.lease, **({SND_SOCKET.variable: own.socket} if own.socket else {}),
    }  # fmt: skip


@dataclass(slots=True)
class _Member:
    """Process of another member, and the file of its messages."""

    rank: int
    count: int
    process: subprocess.Popen[bytes] | ForkedMember
    events: IO[bytes]
    watch: threading.Thread = field(init=False)

    def error(self, status: int) -> RdukitError:
        """Return the error of its end; ``status`` is negative for a signal."""
        self.events.seek(0)
        said = [json.loads(line) for line in self.events.read().splitlines() if line.startswith(b"{")]
        name = f"member {self.rank} of {self.count}"
        for message in said[::-1]:
            if message.get("kind") == "error":
                failure = message["error"]
                known = all_error_classes().get(str(failure["code"]), RdukitError)
                return known(f"{name}: {failure['message']}", **(failure.get("detail") or {}))
        if status < 0:
            detail = {"end": str(BoxEnd.KILLED)} if status == -signal.SIGKILL else {}
            return ChildDied(f"{name} was ended by {signal.Signals(-status).name}", **detail)
        return ChildDied(f"{name} ended with exit status {status}")


@contextmanager
def other_members(
    main: ChildMain, request: Mapping[str, Any], fail: Callable[[RdukitError], object]
) -> Iterator[None]:  # fmt: skip
    """Run the other members of this box while the block runs the first one.

    Does nothing if the operation has a single member.

    Args:
        main: program of a forked member. request: the child's request, with local inputs.
        fail: called in another thread when a member fails; must end this process.
    """
    members, part = read_members(resolve(MEMBERS)), find_part()
    if part is None and len(members) < 2:
        yield
        return
    yield from _with_others(partial(_start, main, request), members, part, fail)


def _with_others(
    start: Callable[[Environment], _Member], members: Sequence[MemberLease], part: LinkedPart | None,
    fail: Callable[[RdukitError], object],
) -> Iterator[None]:  # fmt: skip
    # Members in several boxes meet through links, which have a key, at an address inside of their fences.
    port, token = (_find_port(), secrets.token_hex(16)) if part is None else (STORE_PORT, "")
    os.environ.update(place_of(0, members, port, part, token))
    is_over = threading.Event()
    others: list[_Member] = []
    try:
        for number in range(1, len(members)):  # before any thread starts: they may be forks
            others.append(start(place_of(number, members, port, part, token)))
        with nullcontext() if part is None else relaying(part):
            yield from _watched(others, is_over, fail)
    finally:
        is_over.set()
        for each in others:
            each.process.kill()
            each.process.wait()
            each.events.close()


def _watched(
    others: Sequence[_Member], is_over: threading.Event, fail: Callable[[RdukitError], object]
) -> Iterator[None]:  # fmt: skip
    for each in others:
        each.watch = threading.Thread(target=_watch, args=(each, is_over, fail), daemon=True)
        each.watch.start()
    try:
        yield
    except PeerLost:
        for each in others:  # the lost member's own end has the reason
            each.watch.join(END_S)
        raise
    for each in others:
        each.watch.join()


def _watch(member: _Member, is_over: threading.Event, fail: Callable[[RdukitError], object]) -> None:
    status = member.process.wait()
    if status != 0 and not is_over.is_set():
        fail(member.error(status))


def _start(main: ChildMain, request: Mapping[str, Any], place: Environment) -> _Member:
    events = tempfile.TemporaryFile()  # noqa: SIM115 it lives as long as the member
    line = json.dumps({**request, "is_follower": True}).encode() + b"\n"
    rank = int(place["RANK"])
    process = (
        fork_member(main, line, events.fileno(), rank, place) if can_fork_members()
        else _start_anew(line, events.fileno(), place)
    )  # fmt: skip
    return _Member(rank, int(place["WORLD_SIZE"]), process, events)


def _start_anew(request: bytes, events: int, place: Environment) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-u", "-m", "rdukit_modelbox.operations.child"]
    process = subprocess.Popen(
        [*command, "--events-fd", str(events), "--parent", str(os.getpid())],
        env={**os.environ, **place}, stdin=subprocess.PIPE, pass_fds=(events,),
    )  # fmt: skip
    assert process.stdin is not None
    with process.stdin as stdin:
        stdin.write(request)
    return process


def _find_port() -> int:
    with socket.socket() as asked:
        asked.bind((LOOPBACK, 0))
        return int(asked.getsockname()[1])

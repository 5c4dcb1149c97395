"""Shared memory of the ranks of one machine: a slot for each rank's data, and counters of their progress.

Every collective is a chain of meetings. At a meeting a rank raises its counter and waits until all counters are as
high. Data written into the slots before a meeting is read after it, until the next one. Two sets of slots alternate
from meeting to meeting, so a rank never overwrites data that another still reads.

A rank that waits spins shortly, then sleeps in the kernel (futex) and looks every 50 ms whether a peer has gone. The
region is a memfd: it has no name in any file system, so that killed ranks leave nothing behind. Source: ours.
"""

import contextlib
import ctypes
import mmap
import os
import platform
import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

import torch

from rdukit.errors import InvalidArgument, OutOfDeviceMemory, PeerLost
from rdukit_node.leases.memory import create_region, map_region
from rdukit_runtime.collectives.group import compare_calls
from rdukit_runtime.collectives.membership import GroupRanks, all_ranks
from rdukit_runtime.collectives.stragglers import Stragglers

_PAGE: Final = mmap.PAGESIZE
_TOKEN_BYTES: Final = 16
#: Bytes of an announcement: its length, then its text.
_TEXT_BYTES: Final = 512
#: Words of 8 bytes in a rank's page, a cache line apart: meetings, begun collectives, state, number of the last text,
#: and times of arrival at collectives, alternating like the slots.
_MEETINGS, _BEGUN, _STATE, _LAST, _ARRIVED = 0, 8, 16, 24, 32
#: A rank's texts: two of collectives, alternating like the slots, one of sending and receiving, and one of its activity
#: between collectives.
_PAIR_TEXT, _DOING_TEXT = 2, 3
_TEXTS_AT: Final = 512
_IDLE, _BUSY, _LEFT = 0, 1, 2
#: Most bytes of the slots of one turn, and of all channels.
_ROOM_BYTES: Final = 64 << 20
_SLOT_BYTES: Final = 16 << 20
_CHANNEL_BYTES: Final = 1 << 20

_SYSTEM_CALL: Final = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_WAIT, _WAKE = 0, 1
_ALL: Final = 2**31 - 1
_LOOK_S: Final = 0.05


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class RankRegion:
    """A rank's view of the shared memory.

    Args:
        memory: ``region_bytes(size)`` bytes, the same for all ranks.
        pids: process id of each rank, in this process's namespace.
        timeout_s: longest wait for a peer. ranks: the launch's numbers of the ranks.
        ask: returns what ranks do in other groups, in the form that follows what they do in this one, within a second.
    """

    def __init__(
        self, memory: memoryview, rank: int, pids: list[int], timeout_s: float, ranks: GroupRanks | None = None,
        ask: Callable[[Sequence[int]], Mapping[int, str]] | None = None,
    ) -> None:  # fmt: skip
        self.rank, self.size, self.timeout_s = rank, len(pids), timeout_s
        self.ranks, self._ask = ranks or all_ranks(self.size), ask
        self.slot_bytes = slot_bytes(self.size)
        self.channel_bytes = channel_bytes(self.size)
        self._memory = memory
        self._words = memory.cast("q")
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)
        self._slots: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        #: Ranks by the descriptor that becomes readable when the process ends.
        self._lives = {os.pidfd_open(pid): peer for peer, pid in enumerate(pids) if peer != rank}
        self._poll = select.poll()
        for descriptor in self._lives:
            self._poll.register(descriptor, select.POLLIN)
        self._gone: set[int] = set()
        self._turns = 60 if self.size <= len(os.sched_getaffinity(0)) else 4
        self._look = _Timespec(0, int(_LOOK_S * 1e9))
        self._system = ctypes.CDLL(None).syscall
        self._system.argtypes = [
            ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p,
            ctypes.c_uint32,
        ]  # fmt: skip
        self._meetings = 0
        self.stragglers = Stragglers(self.ranks.numbers)

    # -- one collective ------------------------------------------------------------------------------------------------

    def begin(self, text: str, *, is_pair: bool = False) -> None:
        """Announce the collective that this rank begins, for ``compare`` and for errors of the others.

        Args:
            is_pair: only two ranks take part.
        """
        words, page = self._words, self.rank * _PAGE // 8
        last = _PAIR_TEXT if is_pair else self._meetings & 1
        self._write_text(self.rank * _PAGE + _TEXTS_AT + _TEXT_BYTES * last, text)
        words[page + _LAST] = last
        if not is_pair:
            words[page + _ARRIVED + last] = time.monotonic_ns()
        words[page + _BEGUN] += 1
        words[page + _STATE] = _BUSY

    def note(self, doing: str) -> None:
        """Record this rank's activity between collectives, for errors of the others."""
        self._write_text(self.rank * _PAGE + _TEXTS_AT + _TEXT_BYTES * _DOING_TEXT, doing)

    def compare(self) -> None:
        """Check after the first meeting of a collective that all ranks announced the same, and record late ranks.

        Raises:
            InvalidArgument: a rank announced another one. All ranks raise it, and can continue.
        """
        turn = self._meetings - 1 & 1
        at = _TEXTS_AT + _TEXT_BYTES * turn
        self.stragglers.note([self._words[peer * _PAGE // 8 + _ARRIVED + turn] for peer in range(self.size)])
        compare_calls([self._read_text(peer * _PAGE + at) for peer in range(self.size)], self.ranks)

    def end(self) -> None:
        """Record that this rank has finished its collective."""
        self._words[self.rank * _PAGE // 8 + _STATE] = _IDLE

    def leave(self) -> None:
        """Announce that this rank joins no further collective."""
        self._words[self.rank * _PAGE // 8 + _STATE] = _LEFT
        for descriptor in self._lives:
            os.close(descriptor)
        self._lives = {}

    def slots(self, dtype: torch.dtype) -> list[torch.Tensor]:
        """Return the slots of all ranks, by rank, as 1-D tensors; they are to be written before the next meeting."""
        if dtype not in self._slots:
            first = self.size * _PAGE
            flat = self._bytes[first : first + 2 * self.size * self.slot_bytes].view(dtype).view(2, self.size, -1)
            self._slots[dtype] = (list(flat[0]), list(flat[1]))
        return self._slots[dtype][self._meetings & 1]

    def meet(self) -> None:
        """Wait until every rank has come as far.

        Raises:
            PeerLost: a rank died, left, or did not come within ``timeout_s``. The message has its name and activity.
        """
        self._meetings += 1
        target = self._meetings
        self._publish(self.rank * _PAGE // 8 + _MEETINGS, target)
        for peer in range(self.size):
            if self._words[peer * _PAGE // 8 + _MEETINGS] < target:
                self._wait(peer * _PAGE // 8 + _MEETINGS, target, self._missing)

    def _missing(self, target: int) -> list[int]:
        return [peer for peer in range(self.size) if self._words[peer * _PAGE // 8 + _MEETINGS] < target]

    # -- channels between two ranks ------------------------------------------------------------------------------------

    def send_piece(self, to: int, text: str, data: torch.Tensor) -> None:
        """Send at most ``channel_bytes`` bytes (uint8, 1-D) to rank ``to``; return when it has read them.

        Raises:
            InvalidArgument: the receiver expects another text than ``text``. PeerLost: it is gone.
        """
        at, number = self._channel(self.rank, to), self.ranks.numbers
        words, word = self._words, at // 8
        self._write_text(at + _TEXTS_AT, text)
        self._bytes[at + _PAGE : at + _PAGE + data.numel()].copy_(data)
        self._publish(word, words[word] + 1)
        self._wait(word + 8, words[word], lambda target: [to] if words[word + 8] < target else [])
        self._agree(at, f"rank {number[self.rank]} sends", text, f"rank {number[to]} expects", _TEXTS_AT + _TEXT_BYTES)

    def take_piece(self, sender: int, text: str, data: torch.Tensor) -> None:
        """Fill ``data`` with the next data from ``sender``.

        Raises:
            InvalidArgument: the sender announced another text than ``text``. PeerLost: it is gone.
        """
        at, number = self._channel(sender, self.rank), self.ranks.numbers
        words, word = self._words, at // 8
        target = words[word + 8] + 1
        self._wait(word, target, lambda target: [sender] if words[word] < target else [])
        self._write_text(at + _TEXTS_AT + _TEXT_BYTES, text)
        try:
            self._agree(at, f"rank {number[self.rank]} expects", text, f"rank {number[sender]} sends", _TEXTS_AT)
            data.copy_(self._bytes[at + _PAGE : at + _PAGE + data.numel()])
        finally:
            self._publish(word + 8, target)

    def _agree(self, at: int, mine: str, text: str, theirs: str, other_at: int) -> None:
        other = self._read_text(at + other_at)
        if other != text:
            raise InvalidArgument(f"{mine} {text}, and {theirs} {other}; use equal shapes and types on both ranks")

    def _channel(self, sender: int, receiver: int) -> int:
        first = self.size * _PAGE + 2 * self.size * self.slot_bytes
        return first + (sender * self.size + receiver) * (_PAGE + self.channel_bytes)

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _publish(self, word: int, value: int) -> None:
        if _SYSTEM_CALL is not None and platform.machine() != "x86_64":
            self._call(word, _WAKE, _ALL)  # a full barrier: data is visible before the counter is
        self._words[word] = value
        if _SYSTEM_CALL is not None:
            self._call(word, _WAKE, _ALL)

    def _wait(self, word: int, target: int, missing: Callable[[int], list[int]]) -> None:
        """Wait until ``word`` reaches ``target``; ``missing`` lists the ranks that have not come so far."""
        words = self._words
        for _ in range(self._turns):
            os.sched_yield()
            if words[word] >= target:
                return
        end = time.monotonic() + self.timeout_s
        while (held := words[word]) < target:
            self._check_peers(target, missing)
            if time.monotonic() > end:
                late = missing(target)
                doing = {} if self._ask is None else self._ask(late)
                silent = self._numbers(late)
                self._lose(late, f"did not answer in time, within {self.timeout_s:g} s", doing, silent=silent)
            if _SYSTEM_CALL is None:
                time.sleep(1e-4)
            else:
                self._call(word, _WAIT, held & 0xFFFFFFFF)

    def _call(self, word: int, operation: int, value: int) -> None:
        address = self._address + 8 * word
        self._system(_SYSTEM_CALL, address, operation, value, ctypes.addressof(self._look), None, 0)

    def _check_peers(self, target: int, missing: Callable[[int], list[int]]) -> None:
        for descriptor, _ in self._poll.poll(0):
            self._poll.unregister(descriptor)
            self._gone.add(self._lives[descriptor])
        late = missing(target)
        left = [peer for peer in late if self._words[peer * _PAGE // 8 + _STATE] == _LEFT]
        if gone := [peer for peer in late if peer in self._gone and peer not in left]:
            self._lose(gone, "died or ended", left=self._numbers(left))
        if left:
            self._lose(left, "gave up or left the group", left=self._numbers(left))

    def _numbers(self, peers: Sequence[int]) -> str:
        return ", ".join(map(str, self.ranks.at(peers)))

    def _lose(
        self, peers: Sequence[int], reason: str, more: Mapping[int, str] | None = None, **detail: str
    ) -> NoReturn:  # fmt: skip
        doing = "; ".join(f"{self.describe(peer)}{(more or {}).get(peer, '')}" for peer in (*peers, self.rank))
        raise PeerLost(
            f"{self.ranks.name(peers)} {reason} ({doing})", rank=self.ranks.numbers[self.rank],
            missing=self._numbers(peers), **detail,
        )  # fmt: skip

    def describe(self, peer: int) -> str:
        """Return a rank's announced activity."""
        page, who = peer * _PAGE // 8, f"rank {self.ranks.numbers[peer]}"
        begun = self._words[page + _BEGUN]
        doing = self._read_text(peer * _PAGE + _TEXTS_AT + _TEXT_BYTES * _DOING_TEXT)
        doing = f", and is {doing}" if doing else ""
        if not begun:
            return f"{who} has begun no collective{doing}"
        text = self._read_text(peer * _PAGE + _TEXTS_AT + _TEXT_BYTES * self._words[page + _LAST])
        verb = "finished" if self._words[page + _STATE] == _IDLE else "is in"
        return f"{who} {verb} collective {begun}, {text}{doing}"

    def _write_text(self, at: int, text: str) -> None:
        encoded = text.encode()[: _TEXT_BYTES - 2]
        self._memory[at : at + 2] = len(encoded).to_bytes(2, "little")
        self._memory[at + 2 : at + 2 + len(encoded)] = encoded

    def _read_text(self, at: int) -> str:
        length = int.from_bytes(self._memory[at : at + 2], "little")
        return bytes(self._memory[at + 2 : at + 2 + length]).decode(errors="replace")


# -- its making --------------------------------------------------------------------------------------------------------


def slot_bytes(size: int) -> int:
    """Return the bytes of a slot among ``size`` ranks."""
    return _whole_pages(max(1 << 16, min(_SLOT_BYTES, _ROOM_BYTES // size)))


def channel_bytes(size: int) -> int:
    """Return the bytes that a channel between two of ``size`` ranks holds."""
    return _whole_pages(max(1 << 14, min(_CHANNEL_BYTES, _ROOM_BYTES // size**2)))


def region_bytes(size: int) -> int:
    """Return the bytes of a region; only written pages take memory."""
    return size * _PAGE + 2 * size * slot_bytes(size) + size**2 * (_PAGE + channel_bytes(size))


def _whole_pages(count: int) -> int:
    return count // _PAGE * _PAGE


def open_region(
    rank: int, size: int, exchange: Callable[[str], list[str]], timeout_s: float, ranks: GroupRanks,
    ask: Callable[[Sequence[int]], Mapping[int, str]],
) -> RankRegion | None:  # fmt: skip
    """Open a region for the ranks of a group; None on every rank unless all are on one machine.

    Args:
        exchange: returns all ranks' texts, by rank. ranks, ask: as for ``RankRegion``.
    """
    shared = share_memory(rank, region_bytes(size), exchange)
    return None if shared is None else RankRegion(shared[0], rank, shared[1], timeout_s, ranks, ask)


def share_memory(
    rank: int, count_bytes: int, exchange: Callable[[str], list[str]]
) -> tuple[memoryview, list[int]] | None:
    """Map new zeroed memory that all ranks share; a collective.

    The ranks open rank 0's memory through ``/proc``; a token at its end proves that it is the same memory, even across
    containers.

    Args:
        exchange: returns all ranks' texts, by rank.
    Returns:
        At least ``count_bytes`` bytes, and each rank's process id; None on every rank if a rank is on another machine,
        or rank 0's machine lacks memory.
    """
    total, token = count_bytes + 2 * _TOKEN_BYTES, os.urandom(_TOKEN_BYTES).hex()
    descriptor, memory = -1, None
    try:
        if rank == 0 and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OutOfDeviceMemory):
                descriptor = create_region("of collectives", total)
                memory = map_region(descriptor, total)
                memory[-len(token) :] = token.encode()
        said = exchange(f"{os.getpid()} {descriptor} {token}")
        first, number, expected = said[0].split()
        if rank:
            memory = _reach(f"/proc/{first}/fd/{number}", total, expected)
        mine = os.readlink("/proc/self/ns/pid")
        answers = exchange("no" if memory is None else mine)
        if memory is None or any(answer != mine for answer in answers):
            return None
        return memory, [int(text.split()[0]) for text in said]
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _reach(path: str, total: int, token: str) -> memoryview | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_size != total:
            return None
        memory = map_region(descriptor, total)
        return memory if bytes(memory[-len(token) :]) == token.encode() else None
    except OutOfDeviceMemory:
        return None
    finally:
        os.close(descriptor)

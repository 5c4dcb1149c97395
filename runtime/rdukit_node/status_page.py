"""The status page: shared memory with an application's counters and phase, which the node daemon reads.

The application writes, without a system call; the daemon reads whenever somebody asks, also after the application was
killed. One word has the other direction: the number of interrupts, which the application checks before and after each
run.

The page is 4096 bytes of native 64-bit words, see ``PageWord``. A writer makes ``SEQUENCE`` odd while it changes
several words, and even afterwards, so that readers detect a torn copy. Times are ``CLOCK_MONOTONIC`` nanoseconds, which
all processes of a machine share.

Source: ours; sntilestat distinguishes these phases (runtime reference 3.1, 6.1).
"""

from collections.abc import Sequence
from time import monotonic_ns
from typing import Final, NamedTuple

from rdukit_node.states import Phase

PAGE_BYTES: Final = 4096
VERSION: Final = 1
_MAX: Final = 2**63 - 1
_TRIES: Final = 64


class PageWord:
    """Position of each word. Plain numbers: they are used at every run."""

    VERSION: Final = 0
    INTERRUPTS: Final = 1
    SEQUENCE: Final = 2
    PHASE: Final = 3
    PHASE_BEGAN: Final = 4
    #: Nanoseconds spent in each of ``TIMED_PHASES``, five words.
    PHASE_NS: Final = 5
    RUNS: Final = 10
    SECTIONS: Final = 11
    CYCLES: Final = 12
    FLOPS: Final = 13
    DDR_READ: Final = 14
    DDR_WRITTEN: Final = 15
    PCIE_RX: Final = 16
    PCIE_TX: Final = 17
    #: Bytes that each of the lease's RDUs received from its others, ``MOST_CHIPS`` words, then those that it sent them.
    #: The bytes over PCIe include them.
    LINK_RX: Final = 18
    LINK_TX: Final = 26
    END: Final = 34


#: Maximum RDUs of one program. Source: compiler reference 4.1.
MOST_CHIPS: Final = 8

#: Phases in which the tiles are busy, in the order of their words; their codes are 1 to 5, and 0 is the host's time.
TIMED_PHASES: Final = (
    Phase.EXECUTE, Phase.PROGRAM_LOAD, Phase.ARGUMENT_LOAD, Phase.CHECKPOINT, Phase.QUIESCE,
)  # fmt: skip
HOST: Final = 0
EXECUTE, PROGRAM_LOAD, ARGUMENT_LOAD, CHECKPOINT, QUIESCE = range(1, 6)


class PageValues(NamedTuple):
    """A consistent copy of a page; ``phase_ns`` includes the phase that is under way."""

    phase: int = HOST
    phase_ns: tuple[int, ...] = (0, 0, 0, 0, 0)
    runs: int = 0
    sections: int = 0
    cycles: int = 0
    flops: int = 0
    ddr_read: int = 0
    ddr_written: int = 0
    pcie_rx: int = 0
    pcie_tx: int = 0
    #: By chip; empty if chips exchanged no bytes.
    link_rx: tuple[int, ...] = ()
    link_tx: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes moved between tiles and device memory."""
        return self.ddr_read + self.ddr_written


class StatusPage:
    """A page, for its writer and its reader. One writer thread at a time."""

    def __init__(self, memory: memoryview) -> None:
        """``memory``: ``PAGE_BYTES`` writable bytes, zeros at first."""
        self.words = memory.cast("Q")
        self.words[PageWord.VERSION] = VERSION

    def move(self, memory: memoryview) -> None:
        """Count on in another page's memory. Only by the thread that writes."""
        words = memory.cast("Q")
        former = self.words
        words[PageWord.SEQUENCE : PageWord.END] = former[PageWord.SEQUENCE : PageWord.END]
        words[PageWord.VERSION] = VERSION
        words[PageWord.INTERRUPTS] += former[PageWord.INTERRUPTS]  # the daemon may have interrupted already
        self.words = words

    # -- the application's side --------------------------------------------------------------------------------------

    @property
    def interrupts(self) -> int:
        """Number of interrupts of this lease; 0 until the first hardware failure."""
        return self.words[PageWord.INTERRUPTS]

    def enter(self, phase: int) -> int:
        """Begin ``phase`` and book the time of the phase before. Returns the phase before."""
        words = self.words
        now = monotonic_ns()
        sequence, former = words[2], words[3]
        words[2] = sequence + 1
        if former:
            words[4 + former] += now - words[4]
        words[3] = phase
        words[4] = now
        words[2] = sequence + 2
        return former

    def count_run(
        self, sections: int, cycles: int, flops: int, ddr_read: int, ddr_written: int, transfer_ns: int = 0,
        to_device: int = 0, to_host: int = 0,
    ) -> None:  # fmt: skip
        """Add one run and end the present phase; ``transfer_ns`` of its time were transfers of that many bytes."""
        words = self.words
        now = monotonic_ns()
        words[2] += 1
        former = words[3]
        if former:
            words[4 + former] += max(0, now - words[4] - transfer_ns)
        words[4 + ARGUMENT_LOAD] += transfer_ns
        words[3] = 0
        words[4] = now
        words[10] += 1
        words[11] += sections
        words[12] = (words[12] + cycles) & _MAX
        words[13] = (words[13] + flops) & _MAX
        words[14] = (words[14] + ddr_read) & _MAX
        words[15] = (words[15] + ddr_written) & _MAX
        words[16] += to_device
        words[17] += to_host
        words[2] += 1

    def count_transfer(self, to_device: int, to_host: int) -> None:
        """Add bytes that crossed PCIe."""
        words = self.words  # numbers rather than members of ``PageWord`` here and above: a step may take microseconds
        if to_device:
            words[16] += to_device
        if to_host:
            words[17] += to_host

    def count_links(self, received: Sequence[int], sent: Sequence[int]) -> None:
        """Add bytes that went from one of the lease's RDUs to another, over PCIe: one number a chip, in order."""
        words = self.words
        words[PageWord.SEQUENCE] += 1
        for first, total, sizes in (
            (PageWord.LINK_RX, PageWord.PCIE_RX, received), (PageWord.LINK_TX, PageWord.PCIE_TX, sent)
        ):  # fmt: skip
            for chip, size in enumerate(sizes):
                words[first + chip] = (words[first + chip] + size) & _MAX
            words[total] = (words[total] + sum(sizes)) & _MAX
        words[PageWord.SEQUENCE] += 1

    # -- the daemon's side -------------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Notify the application, which then asks the daemon for the reason."""
        self.words[PageWord.INTERRUPTS] += 1

    def read(self) -> PageValues:
        """Return the application's last values, all cut to integers from 0 below 2**63."""
        words = self.words
        copy: list[int] = []
        for _ in range(_TRIES):
            before = words[PageWord.SEQUENCE]
            copy = words[: PageWord.END].tolist()
            if before % 2 == 0 and words[PageWord.SEQUENCE] == before:
                break
        copy = [min(value, _MAX) for value in copy]
        phase = copy[PageWord.PHASE] if copy[PageWord.PHASE] <= QUIESCE else HOST
        times = copy[PageWord.PHASE_NS : PageWord.PHASE_NS + 5]
        if phase:
            times[phase - 1] += min(max(0, monotonic_ns() - copy[PageWord.PHASE_BEGAN]), _MAX)
        runs, sections, cycles, flops, read, written, rx, tx = copy[PageWord.RUNS : PageWord.LINK_RX]
        received, sent = tuple(copy[PageWord.LINK_RX : PageWord.LINK_TX]), tuple(copy[PageWord.LINK_TX : PageWord.END])
        values = PageValues(phase, tuple(times), runs, sections, cycles, flops, read, written, rx, tx)
        return values._replace(link_rx=received, link_tx=sent) if any(received) else values


def private_page() -> StatusPage:
    """Return a page of this process alone, for the counters of a private node's lease."""
    return StatusPage(memoryview(bytearray(PAGE_BYTES)))

"""Leases as programs hold them: of a private node, and of the node daemon.

Both account memory by the same rules; only the daemon's node has other users. Memory of a daemon's lease is shared
memory that the daemon created; a private one's is the process's own.
"""

import logging
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Any, Final, Protocol, Self

from rdukit.errors import HwException, LeaseLost, RdukitError, RuntimeFault, Unavailable, error_from_body
from rdukit.hardware import ChipSpec, NodeSpec
from rdukit.settings import SND_REATTACH_S, resolve
from rdukit.snd import SndClient
from rdukit.system.cpu import usable_cores
from rdukit_node.inventory import node_tiles
from rdukit_node.leases.allocator import Allocator, Lease, RegionId
from rdukit_node.leases.memory import map_private, map_region
from rdukit_node.states import LeaseEvent
from rdukit_node.status_page import EXECUTE, PAGE_BYTES, PageValues, StatusPage, private_page

logger = logging.getLogger(__name__)

#: Seconds between two tries to find a new daemon; milliseconds between two checks whether a lease is wanted.
_RETURN_EVERY_S: Final = 0.05
_WATCH_MS: Final = 1000
#: Seconds between two looks at whether the daemon is still there: a system call, and runs may take microseconds.
_LOOK_EVERY_S: Final = 0.2


class Region:
    """Device memory of one name, mapped into this process."""

    def __init__(self, name: str, buffer: memoryview, on_free: Callable[[], None]) -> None:
        self.name: Final = name
        self.bytes: Final = buffer.nbytes
        self._buffer: memoryview | None = buffer
        self._on_free = on_free

    @property
    def buffer(self) -> memoryview:
        """``bytes`` writable bytes, zeros at first. Tensors on it keep the memory alive.

        Raises:
            RuntimeFault: the region was freed.
        """
        if self._buffer is None:
            raise RuntimeFault(f"region {self.name!r} was freed; allocate it again")
        return self._buffer

    def free(self) -> None:
        """Give the memory back to the lease. The memory is unmapped with its last tensor.

        Freeing twice, or after the lease ended, does nothing.
        """
        if self._buffer is not None:
            self._buffer = None  # never ``release``: a tensor may still use it
            self._on_free()


class NodeLease(Protocol):
    """Tiles and memory of an emulated node, exclusively, until ``release``."""

    @property
    def id(self) -> str: ...

    @property
    def kind(self) -> str:
        """``"private"`` or ``"daemon"``."""
        ...

    @property
    def tiles(self) -> tuple[str, ...]:
        """Paths of the tiles."""
        ...

    @property
    def chip(self) -> ChipSpec: ...

    @property
    def memory_bytes(self) -> int:
        """Bytes that regions may have in all."""
        ...

    def allocate(self, name: str, region_bytes: int) -> Region:
        """Return a zeroed region.

        Raises:
            OutOfDeviceMemory: the lease, or the host, has less left.
            LeaseLost: the lease ended.
        """
        ...

    @property
    def cores(self) -> int:
        """Cores of the host that belong to the tiles, and so the number of computing threads."""
        ...

    @property
    def page(self) -> StatusPage:
        """Page with the application's counters, which the node's tools show."""
        ...

    def check(self) -> None:
        """Find out whether the hardware under the lease still works. Costs well under a microsecond.

        Raises:
            HwException: it failed; says which component, and links to the fault database.
            LeaseLost: the daemon ended, and the lease with it. Noticed within a quarter of a second.
        """
        ...

    def release(self) -> None:
        """End the lease; again, or after it was lost, does nothing. Also happens at exit."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _Lease:
    """The common part of both kinds of lease."""

    def __init__(self, lease_id: str, tiles: tuple[str, ...], chip: ChipSpec, memory_bytes: int) -> None:
        self.id: Final = lease_id
        self.tiles: Final = tiles
        self.chip: Final = chip
        self.memory_bytes: Final = memory_bytes

    def release(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class PrivateLease(_Lease):
    """A lease of a node that exists in this process only, for this lease only.

    Source: ours; lets a program run without a daemon.
    """

    kind: Final = "private"

    def __init__(self, allocator: Allocator, lease: Lease, ranks: int = 1) -> None:
        """Take over ``lease`` of ``allocator``, which must have no other users.

        Args:
            ranks: processes with a private node each that a launcher started on this machine: they share its cores.
        """
        self.cores: Final = max(1, usable_cores() // ranks)
        tiles = node_tiles(allocator.node)
        super().__init__(
            str(lease.id), tuple(tiles[i].path for i in lease.tiles), allocator.node.chip, lease.memory_bytes
        )
        self.node: Final[NodeSpec] = allocator.node
        self._allocator = allocator
        self._lease_id = lease.id
        self._lock = threading.Lock()
        self._next_region = 1
        self.page: Final = private_page()

    def allocate(self, name: str, region_bytes: int) -> Region:
        """See ``NodeLease.allocate``."""
        with self._lock:
            region_id = RegionId(f"region-{self._next_region}")
            self._allocator.allocate(self._lease_id, region_id, name, region_bytes)
            self._next_region += 1
            try:
                buffer = map_private(name, region_bytes)
            except RdukitError:
                self._allocator.free(self._lease_id, region_id)
                raise
        return Region(name, buffer, lambda: self._free(region_id))

    def check(self) -> None:
        """See ``NodeLease.check``. A private node has no failures."""

    def release(self) -> None:
        """See ``NodeLease.release``."""
        with self._lock:
            if self._lease_id in self._allocator.leases:
                self._allocator.end(self._lease_id, LeaseEvent.RELEASE, time.time())

    def _free(self, region_id: RegionId) -> None:
        with self._lock:
            if self._lease_id in self._allocator.leases:
                self._allocator.free(self._lease_id, region_id)


class DaemonLease(_Lease):
    """A lease of the node daemon, held by a connection of this process.

    A forked child closes the connection, so that the parent's death is noticed at once.
    """

    kind: Final = "daemon"

    def __init__(
        self,
        client: SndClient,
        lease: Mapping[str, Any],
        chip: ChipSpec,
        is_attached: bool,
        features: Collection[str] = (),
        cores: int | None = None,
        isolation: Mapping[str, object] | None = None,
    ) -> None:
        """Take over ``client``, which holds ``lease``.

        Args:
            is_attached: another process acquired the lease; ``release`` only detaches. features: features that the
            daemon reported. cores: the host's cores of these tiles; None: all that this process may use.
            isolation: isolation reported to the daemon, for its successor; ``None``: not reported.
        """
        self.cores: Final = usable_cores() if cores is None else cores
        super().__init__(str(lease["id"]), tuple(lease["tiles"]), chip, int(lease["memory_bytes"]))
        self.is_attached: Final = is_attached
        self._client = client
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._is_open = True
        self._look_at = 0.0
        self._token = str(lease.get("token", ""))
        #: Whether a daemon that follows this one keeps the lease.
        self._is_watched: Final = "reattach" in features and bool(self._token)
        self._isolation: Final = isolation if "isolation" in features else None
        #: Mapped regions of this process, by a local number: the daemon's id, name and bytes.
        self._regions: dict[int, tuple[str, str, int]] = {}
        self._next_region = 1
        #: Why the lease cannot be reattached; empty: it can, or need not be.
        self._lost = ""
        #: The daemon that is there now has not seen the page yet.
        self._must_move_page = False
        #: Earlier daemons have no pages: the counts are reported once, at the end.
        self._is_shared_page = "page" in features
        self.page: Final = self._shared_page() if self._is_shared_page else private_page()
        if self._is_watched:
            # A call given up closes the connection, which ends the lease once the daemon, busy or starting, reads on.
            client.wait_for_answers(max(client.answer_timeout_s or 0.0, resolve(SND_REATTACH_S)))
            watch = threading.Thread(target=_watch, args=(weakref.ref(self),), name="lease", daemon=True)
            watch.start()
        self._at_exit = weakref.finalize(self, _let_go, client, self.id, is_attached, self._owner)
        reference = weakref.ref(client)
        os.register_at_fork(after_in_child=lambda: _close_if_alive(reference))

    def _shared_page(self) -> StatusPage:
        _, descriptor = self._client.call_with_fd("page", lease=self.id)
        if descriptor is None:
            raise RuntimeFault("the node daemon sent a status page without memory; update the daemon")
        try:
            return StatusPage(map_region(descriptor, PAGE_BYTES))
        finally:
            os.close(descriptor)

    def allocate(self, name: str, region_bytes: int) -> Region:
        """See ``NodeLease.allocate``. The daemon hands over shared memory."""
        answer, descriptor = self._call("allocate", bytes=region_bytes, name=name)
        with self._lock:
            number, self._next_region = self._next_region, self._next_region + 1
            self._regions[number] = (str(answer["region"]["id"]), name, region_bytes)
        if descriptor is None:
            raise RuntimeFault("the node daemon sent a region without memory; update the daemon")
        try:
            buffer = map_region(descriptor, region_bytes)
        except RdukitError:
            self._free(number)
            raise
        finally:
            os.close(descriptor)
        return Region(name, buffer, lambda: self._free(number))

    def check(self) -> None:
        """See ``NodeLease.check``. The lease survives a restart of the daemon."""
        if self._must_move_page:
            self._move_page()
        if self.page.words[1]:  # ``Word.INTERRUPTS``
            self._raise_interrupt()
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY_S
            goes_on = self._is_watched and not self._lost and os.getpid() == self._owner
            if not goes_on and not self._client.is_alive:
                self._call("interrupt")  # says why, as every use of a lost lease does

    def _move_page(self) -> None:
        """Show the page to the daemon that is there now. Runs in the counting thread, but not while the lease is being
        reattached.
        """
        if os.getpid() != self._owner or not self._lock.acquire(blocking=False):
            return
        try:
            self._must_move_page = False
            _, descriptor = self._client.call_with_fd("page", lease=self.id)
            if descriptor is not None:
                try:
                    self.page.move(map_region(descriptor, PAGE_BYTES))
                finally:
                    os.close(descriptor)
        except RdukitError as error:  # the daemon ended again: the watcher will retry
            logger.debug("event=page-not-moved lease=%s error=%s", self.id, error)
        finally:
            self._lock.release()

    def return_to_daemon(self) -> None:
        """Attach again if another daemon runs; wait for it as long as the lease is kept. ``_lost`` says if not.

        Called by the watching thread.
        """
        with self._lock:
            if self._is_open and not self._lost and not self._client.is_alive:
                self._return()

    def _return(self) -> None:
        patience = resolve(SND_REATTACH_S)
        until, reason = time.monotonic() + patience, "it closed the connection"
        while True:
            try:
                self._client.reconnect()
                regions = [{"name": name, "bytes": size} for _, name, size in self._regions.values()]
                answer = self._client.call("reattach", lease=self.id, token=self._token, regions=regions)
                for number, region_id in zip(list(self._regions), answer["regions"], strict=True):
                    self._regions[number] = (region_id, *self._regions[number][1:])
                self._must_move_page = self._is_shared_page
                if self._isolation is not None:
                    self._client.call("isolation", lease=self.id, report=self._isolation)
                logger.info("event=reattach lease=%s", self.id)
                return
            except Unavailable as error:
                reason = error.message
            except RdukitError as error:  # the lease is over, or this is another node
                self._lost = error.message
                return
            if time.monotonic() >= until:
                how = "was killed or crashed" if self._client.path.exists() else "was stopped"
                self._lost = f"the node daemon {how} and did not come back within {patience:g} s ({reason})"
                return
            time.sleep(_RETURN_EVERY_S)

    def _raise_interrupt(self) -> None:
        answer, _ = self._call("interrupt")
        if answer["fault"] is not None:
            raise error_from_body({"error": answer["fault"]}, HwException)

    def release(self) -> None:
        """See ``NodeLease.release``. An attached lease stays with its other holders."""
        with self._lock:
            if not self._is_open:
                return
            if self._is_watched and not self._lost and not self._client.is_alive and os.getpid() == self._owner:
                self._return()
        if self._must_move_page:
            self._move_page()  # what was counted since
        with self._lock:
            self._is_open = False
            if not self._is_shared_page and os.getpid() == self._owner:
                values = self.page.read()
                try:
                    self._client.call("report", lease=self.id, counters=_report_of(values))
                except RdukitError as error:
                    logger.debug("event=last-report-lost lease=%s error=%s", self.id, error)
            self._at_exit()

    @property
    def is_wanted(self) -> bool:
        """True if a lost connection is to be made again."""
        return self._is_open and not self._lost

    @property
    def connection(self) -> int:
        """Descriptor of the connection to the daemon; -1: disconnected."""
        return self._client.fileno()

    def _free(self, number: int) -> None:
        if os.getpid() != self._owner:
            return
        with self._lock:
            region_id, _, _ = self._regions.pop(number)
            if not self._is_open:
                return
            try:
                self._client.call("free", lease=self.id, region=region_id)
            except (LeaseLost, Unavailable) as error:
                logger.debug("event=free-after-end lease=%s region=%s error=%s", self.id, region_id, error)

    def _call(self, op: str, **arguments: object) -> tuple[dict[str, Any], int | None]:
        if os.getpid() != self._owner:
            raise LeaseLost(f"lease {self.id} belongs to the parent process {self._owner}, not to this fork")
        with self._lock:
            if not self._is_open:
                raise LeaseLost(f"lease {self.id} was released; open a new one", lease=self.id)
            try:
                while True:
                    if self._lost:
                        raise Unavailable(self._lost)
                    if self._is_watched and not self._client.is_alive:
                        self._return()
                        continue
                    try:
                        return self._client.call_with_fd(op, lease=self.id, **arguments)
                    except Unavailable:
                        if not self._is_watched or self._client.fileno() >= 0:
                            raise
            except Unavailable as cause:
                raise LeaseLost(
                    f"lease {self.id} is lost: {cause.message}; look at `rdukit node status`, then start again",
                    lease=self.id,
                ) from cause


def _watch(reference: "weakref.ref[DaemonLease]") -> None:
    """Reattach a lease soon after a restart of its daemon, independently of its program."""
    while (lease := reference()) is not None and lease.is_wanted:
        descriptor = lease.connection
        lease = None
        if descriptor >= 0:
            poll = select.poll()
            poll.register(descriptor, select.POLLRDHUP)
            if not poll.poll(_WATCH_MS):
                continue
        if (lease := reference()) is not None:
            lease.return_to_daemon()


def _let_go(client: SndClient, lease_id: str, is_attached: bool, owner: int) -> None:
    if os.getpid() == owner and not is_attached:
        try:
            client.release(lease_id)
        except RdukitError as error:  # it ended, or the daemon did: what was wanted
            logger.debug("event=release-after-end lease=%s error=%s", lease_id, error)
    client.close()


def _close_if_alive(reference: "weakref.ref[SndClient]") -> None:
    client = reference()
    if client is not None:
        client.close()


def _report_of(values: PageValues) -> dict[str, float]:
    return {
        "runs": values.runs, "sections": values.sections, "cycles": values.cycles, "flops": values.flops,
        "bytes": values.bytes, "host_seconds": values.phase_ns[EXECUTE - 1] / 1e9,
    }  # fmt: skip

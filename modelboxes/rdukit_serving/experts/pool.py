"""The experts of a bundle while they are served: does what ``table.py`` decides. Belongs to one event loop.

A text enters by ``admit``: it waits until its expert is in memory, and keeps it there until the text has ended.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rdukit.errors import RdukitError, RuntimeFault, Unavailable
from rdukit.files.atomic import sha256_of
from rdukit.files.home import make_folder
from rdukit.pef.checkpoint_files import LATEST
from rdukit.settings import resolve
from rdukit_serving.experts.legalizer import loadable
from rdukit_serving.experts.process import ExpertLine, ExpertProcess
from rdukit_serving.experts.sizes import FoundBundle, FoundExpert
from rdukit_serving.experts.table import ExpertState, ExpertTable, LoadExpert
from rdukit_serving.experts.tiers import ExpertSwitch, MemoryTiers
from rdukit_serving.settings import DRAIN_S, RESTART_BACKOFF_S

logger = logging.getLogger(__name__)


class ExpertTexts(Protocol):
    """Texts of one expert, in the pool's view."""

    def has_come(self, line: ExpertLine, seconds: float) -> None:
        """Send texts to this line from now on. ``seconds``: time of the loading."""
        ...

    def has_gone(self, ending: str) -> None:
        """Fail the texts in progress, since the weights are gone; waiting texts keep waiting."""
        ...

    def has_failed(self, error: RdukitError) -> None:
        """Fail the waiting texts, because the weights cannot be loaded."""
        ...


@dataclass(slots=True)
class ExpertCounts:
    """Counts of one expert since the server began; switches and copies to DDR are emulated."""

    loads: int = 0
    evictions: int = 0
    switches: int = 0
    switch_bytes: int = 0
    switch_s: float = 0.0
    ddr_load_bytes: int = 0
    ddr_load_s: float = 0.0


@dataclass(slots=True)
class _Seat:
    """An expert in the pool, and its texts."""

    found: FoundExpert
    process: ExpertProcess
    texts: ExpertTexts | None = None
    counts: ExpertCounts = field(default_factory=ExpertCounts)
    #: Texts that wait for the expert, and waiters for its end.
    waiting: "list[asyncio.Future[None]]" = field(default_factory=list)
    leaving: "list[asyncio.Future[None]]" = field(default_factory=list)


class ExpertPool:
    """Experts that are loaded on demand, and evicted when others need the memory."""

    def __init__(self, bundle: FoundBundle, folder: Path) -> None:
        """``folder``: for logs and prepared weights."""
        self.bundle = bundle
        self.table = ExpertTable(bundle.fit.host_bytes, loadable(bundle.fit))
        self.tiers = MemoryTiers(
            bundle.fit.tiers, {each.name: each.weights_bytes for each in bundle.fit.experts},
            [each.name for each in bundle.fit.experts if each.is_pinned],
        )  # fmt: skip
        self.processes = {
            name: ExpertProcess(configuration, folder / f"{name}.log", self._count_switch, self._lost)
            for name, configuration in bundle.configurations.items()
        }
        self._weights = folder / "weights"
        self._seats = {
            name: _Seat(found, self.processes[found.configuration.name]) for name, found in bundle.experts.items()
        }
        #: Last running expert of each configuration.
        self._running: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    def seat(self, name: str, texts: ExpertTexts) -> None:
        """Register the texts of an expert."""
        self._seats[name].texts = texts

    def process_of(self, name: str) -> ExpertProcess:
        """Return the process that an expert runs in."""
        return self._seats[name].process

    def counts_of(self, name: str) -> ExpertCounts:
        """Return the counts of an expert."""
        return self._seats[name].counts

    async def start(self) -> None:
        """Start the processes of all configurations and load the pinned experts.

        Raises:
            RdukitError: a PEF, or the checkpoint of a pinned expert, cannot be loaded.
        """
        await asyncio.to_thread(self._prune)
        await asyncio.gather(*(process.start() for process in self.processes.values()))
        await asyncio.gather(*(self.load(name) for name, seat in self._seats.items() if seat.found.entry.pinned))

    @contextlib.asynccontextmanager
    async def admit(self, name: str) -> AsyncIterator[None]:
        """Wait for an expert, and keep it in memory while the block runs.

        Raises:
            RdukitError: the expert cannot be loaded.
        """
        if self.table.may_begin(name):
            self.table.begin(name)
        else:
            await self._wait(name)
        try:
            yield
        finally:
            self.table.end(name)
            self._step()

    async def load(self, name: str) -> None:
        """Bring an expert into memory, unless it is there.

        Raises:
            RdukitError: the expert cannot be loaded.
        """
        async with self.admit(name):
            pass

    async def unload(self, name: str) -> None:
        """Unload an expert when its sequences have ended, or after ``box.drain_s``."""
        seat, gone = self._seats[name], asyncio.get_running_loop().create_future()
        self.table.leave(name)
        if self.table.state(name) is ExpertState.OFFLINE:
            return
        seat.leaving.append(gone)
        self._step()
        try:
            async with asyncio.timeout(resolve(DRAIN_S)):
                await gone
        except TimeoutError:
            logger.warning("not drained expert=%s texts=%s", name, self.table.texts(name))
        finally:
            if gone in seat.leaving:
                seat.leaving.remove(gone)

    async def close(self) -> None:
        """End every process and fail the waiting texts."""
        self._is_closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(process.close() for process in self.processes.values()))
        for name, seat in self._seats.items():
            if seat.texts is not None:
                seat.texts.has_gone("was terminated: the server is stopping")
            self._refuse(name, Unavailable("the server is stopping"))

    async def _wait(self, name: str) -> None:
        """Wait until a text of an expert has begun."""
        if self._is_closing:
            raise Unavailable("the server is stopping")
        seat, begun = self._seats[name], asyncio.get_running_loop().create_future()
        seat.waiting.append(begun)
        self.table.want(name)
        self._step()
        try:
            await begun
        except asyncio.CancelledError:
            if begun.done() and not begun.cancelled() and begun.exception() is None:
                self.table.end(name)  # it had begun when its caller left
            raise
        finally:
            if begun in seat.waiting:
                seat.waiting.remove(begun)
            if not seat.waiting:
                self.table.forget(name)
            self._step()

    def _step(self) -> None:
        if self._is_closing:
            return
        for decision in self.table.decide():
            work = self._load if isinstance(decision, LoadExpert) else self._evict
            self._spawn(work(decision.name))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load(self, name: str) -> None:
        seat, loop = self._seats[name], asyncio.get_running_loop()
        began = loop.time()
        try:
            try:
                await self._bring(seat)
            except Unavailable:  # the process ended meanwhile: once more with a new one
                await self._bring(seat)
        except RdukitError as error:
            logger.warning("expert not loaded expert=%s reason=%s", name, error.message)
            self._set_gone(name)
            # Files that do not suit each other do not become better by asking again, or another server.
            kind = Unavailable if error.http_status == Unavailable.http_status else RuntimeFault
            self._refuse(name, kind(f"expert {name!r} cannot be loaded: {error.message}"))
        else:
            seat.counts.loads += 1
            self.table.loaded(name)
            assert seat.texts is not None
            seat.texts.has_come(seat.process.line(name), loop.time() - began)
            for begun in seat.waiting:
                if not begun.done():
                    self.table.begin(name)
                    begun.set_result(None)
        self._step()

    async def _bring(self, seat: _Seat) -> None:
        found = seat.found
        await seat.process.start()
        start = seat.process.starts
        await seat.process.load(found.entry.name, found.checkpoint, self._file_of(found), found.adapters)
        # Its end may be noticed after its answer, but before the answer is processed here.
        if seat.process.pid is None or seat.process.starts != start:
            raise Unavailable("the inference process ended once it had loaded the expert")

    async def _evict(self, name: str) -> None:
        seat = self._seats[name]
        assert seat.texts is not None
        seat.texts.has_gone("unload the expert")
        with contextlib.suppress(Unavailable):  # gone with its process
            await seat.process.unload(name)
        seat.counts.evictions += 1
        self._set_gone(name)
        self._step()

    def _set_gone(self, name: str) -> None:
        self.table.gone(name)
        for gone in self._seats[name].leaving:
            if not gone.done():
                gone.set_result(None)

    def _refuse(self, name: str, error: RdukitError) -> None:
        seat = self._seats[name]
        for begun in seat.waiting:
            if not begun.done():
                begun.set_exception(error)
        if seat.texts is not None:
            seat.texts.has_failed(error)

    def _lost(self, configuration: str, ending: str) -> None:
        """Record that a process ended: its experts are gone, and are reloaded if pinned or if they have texts."""
        self._running.pop(configuration, None)
        for name, seat in self._seats.items():
            if seat.found.configuration.name != configuration or self.table.state(name) is not ExpertState.LIVE:
                continue
            assert seat.texts is not None
            seat.texts.has_gone(ending)
            self._set_gone(name)
            if self.table.texts(name) or seat.found.entry.pinned:
                self.table.want(name)
        self._step()
        if not self._is_closing:
            self._spawn(self._revive(self.processes[configuration]))

    async def _revive(self, process: ExpertProcess) -> None:
        """Start a process again, with growing pauses, also without requests for its experts."""
        pause = 0.0
        while True:
            await asyncio.sleep(pause)
            try:
                await process.start()
            except RdukitError as error:
                logger.warning("not started configuration=%s reason=%s", process.configuration.name, error.message)
                pause = min(30.0, max(pause * 2, resolve(RESTART_BACKOFF_S)))
            else:
                return

    def _count_switch(self, name: str) -> ExpertSwitch:
        configuration = self._seats[name].found.configuration.name
        busy = [other for where, other in self._running.items() if where != configuration]
        self._running[configuration] = name
        switch, counts = self.tiers.use(name, busy), self._seats[name].counts
        counts.switches += switch.switch_bytes > 0
        counts.switch_bytes += switch.switch_bytes
        counts.switch_s += switch.switch_s
        counts.ddr_load_bytes += switch.load_bytes
        counts.ddr_load_s += switch.load_s
        return switch

    def _file_of(self, found: FoundExpert) -> Path:
        """Return the file of prepared weights, whose name changes with the PEF, the checkpoint and the adapters."""
        adapters = [f"{name} {_checkpoint_key(path)}" for name, path in found.adapters.items()]
        key = " ".join([found.configuration.key, _checkpoint_key(found.checkpoint), *adapters])
        return self._weights / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.weights"

    def _prune(self) -> None:
        """Delete prepared weights that no expert of the bundle has any more."""
        make_folder(self._weights)
        wanted = {self._file_of(found) for found in self.bundle.experts.values()}
        for file in self._weights.glob("*.weights"):
            if file not in wanted:
                file.unlink(missing_ok=True)


def _checkpoint_key(checkpoint: Path) -> str:
    """Return a key that changes with the parameters of a checkpoint."""
    pointer = checkpoint / LATEST
    if pointer.is_file():
        return f"{checkpoint}:{sha256_of(pointer.read_bytes())}"
    status = checkpoint.stat()
    return f"{checkpoint}:{status.st_ino}:{status.st_mtime_ns}:{status.st_size}"

"""The versions of a box's model: which are loaded, which answers by default, and swapping without a failed request."""

import asyncio
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument, NotFound, RdukitError, Unavailable
from rdukit.settings import resolve
from rdukit_modelbox.serving.device_link import ModelFiles
from rdukit_modelbox.serving.model_version import ModelVersion, VersionState
from rdukit_modelbox.serving.settings import DRAIN_S

logger = logging.getLogger(__name__)

#: Seconds that the first inference of a new version may take.
PROBE_S: Final = 30.0
#: Unloaded versions that the index still tells of; the oldest go first.
KEPT_UNLOADED: Final = 8

_VERSION = re.compile(r"[1-9][0-9]{0,8}")


class Repository:
    """Versions of one model, numbered from 1. Belongs to one event loop."""

    def __init__(self, name: str, serving: Mapping[str, Any], logs: Path) -> None:
        self.name = name
        self._serving = serving
        self._logs = logs
        #: Every version of this process that was not forgotten, by its number as text.
        self.versions: dict[str, ModelVersion] = {}
        #: The version that answers requests that name none.
        self._current = ""
        #: The last that did, loaded or not.
        self._latest = ""
        #: The version that is loaded, and has not been asked to answer yet.
        self._probed = ""
        self._next = 1
        self._swapping = asyncio.Lock()
        self._draining: set[asyncio.Task[None]] = set()

    def find(self, name: str, version: str = "") -> ModelVersion:
        """The version that a request means.

        Raises:
            NotFound: no such model or version is loaded; lists those that are.
            Unavailable: it is being loaded.
        """
        if name != self.name:
            raise NotFound(f"there is no model {name!r}; legal: {self.name}")
        found = self.versions.get(version or self._current)
        if found is None or (version and found.state is VersionState.LOADING):
            loading = self.find_loading(version)
            if loading is not None:
                raise Unavailable(f"model {name!r} {loading}; ask again when /v2/models/{name}/ready says so")
        if found is None or (found.state is not VersionState.READY and version):
            ready = [v for v, each in self.versions.items() if each.state is VersionState.READY]
            what = f"version {version!r}" if version else "version that is loaded"
            raise NotFound(f"model {name!r} has no {what}; loaded: {', '.join(ready) or 'none'}")
        return found

    def find_loading(self, version: str = "") -> str | None:
        """That ``version``, or without one any, is being loaded, in words; None if it is not."""
        found = [
            number
            for number, each in self.versions.items()
            if (each.state is VersionState.LOADING or number == self._probed) and version in ("", number)
        ]
        return f"is loading (version {', '.join(found)})" if found else None

    @property
    def current(self) -> ModelVersion | None:
        """The version that answers requests that name none."""
        return self.versions.get(self._current)

    @property
    def latest(self) -> ModelVersion | None:
        """The version that answered last, or answers, requests that name none; a failed load is none."""
        return self.versions.get(self._latest)

    def ready_versions(self) -> list[str]:
        """Versions that answer."""
        return [version for version, each in self.versions.items() if each.state is VersionState.READY]

    async def load(
        self, pef: Path, checkpoint: Path | None, version: str = "", keep: bool = False, switch: bool = True
    ) -> ModelVersion:
        """Load files as a version, probe it, switch to it, and drain the former one unless ``keep``.

        With ``switch`` off it answers only those who name it. Without ``version`` the next number is taken; one that
        is loaded already is replaced in the same way.

        Raises:
            RdukitError: it cannot be loaded or does not answer; whatever answered before goes on.
        """
        if version and not _VERSION.fullmatch(version):
            raise InvalidArgument(
                f"version {version[:20]!r} is not legal; legal: a number from 1 to 999999999, or none for the next"
            )
        async with self._swapping:
            number = version or str(self._next)
            files = ModelFiles(self.name, pef, checkpoint, self._serving)
            fresh = ModelVersion(number, files, self._logs / f"model-{number}.log")
            former = self.versions.get(number)
            if former is None or former.state is VersionState.UNAVAILABLE:
                former, self.versions[number] = None, fresh
            try:
                await fresh.load()
                self._probed = number
                reason = await fresh.why_not_ready(PROBE_S)
                if reason:
                    raise InvalidArgument(f"version {number} was loaded but does not answer: {reason}")
            except RdukitError:
                if former is None and fresh.state is not VersionState.UNAVAILABLE:
                    await fresh.unload(0)
                raise
            except asyncio.CancelledError:
                if former is None:
                    del self.versions[number]
                await fresh.unload(0)
                raise
            finally:
                self._probed = ""
            self._next = max(self._next, int(number) + 1)
            before = former or self.current
            self.versions[number] = fresh
            if not switch:
                return fresh
            self._current = self._latest = number
            logger.info("version switched model=%s version=%s pef=%s", self.name, number, pef)
            if before is not None and before is not fresh and (before is former or not keep):
                self._drain(before)
            return fresh

    async def unload(self, version: str = "") -> None:
        """Drain and end ``version``, or all.

        Raises:
            NotFound: no such version is loaded.
        """
        targets = [self.find(self.name, version)] if version else list(self.versions.values())
        if version == self._current or not version:
            self._current = max((v for v in self.ready_versions() if v != version and version), key=int, default="")
        await asyncio.gather(*(each.unload(resolve(DRAIN_S)) for each in targets if each.state is VersionState.READY))

    def index(self) -> list[dict[str, str]]:
        """The repository extension's index."""
        return [
            {"name": self.name, "version": version, "state": str(each.state), "reason": each.reason}
            for version, each in sorted(self.versions.items(), key=lambda item: int(item[0]))
        ] or [{"name": self.name, "version": "", "state": str(VersionState.UNAVAILABLE), "reason": "nothing is loaded"}]

    async def why_not_ready(self) -> str:
        """Empty when the current version has done an inference since the last call, or does one now."""
        current = self.current
        if current is None:
            loading = self.find_loading()
            return f"model {self.name!r} {loading}" if loading else "no model is loaded"
        return await current.why_not_ready()

    async def close(self) -> None:
        """End everything, waiting for nothing but the processes."""
        for task in self._draining:
            task.cancel()
        await asyncio.gather(*(each.unload(0) for each in self.versions.values()))

    def _drain(self, version: ModelVersion) -> None:
        task = asyncio.create_task(version.unload(resolve(DRAIN_S)))
        self._draining.add(task)
        task.add_done_callback(self._drained)

    def _drained(self, task: "asyncio.Task[None]") -> None:
        self._draining.discard(task)
        gone = [number for number, each in self.versions.items() if each.state is VersionState.UNAVAILABLE]
        for number in sorted(gone, key=int)[:-KEPT_UNLOADED]:
            del self.versions[number]

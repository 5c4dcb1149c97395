"""The versions of a box's model: which are loaded, which answers by default, and swapping without a failed request."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rdukit import __version__
from rdukit.errors import InvalidArgument, NotFound, RdukitError, Unavailable
from rdukit.settings import resolve
from rdukit_serving.device.client import ModelFiles, draft_files
from rdukit_serving.models.version import ModelVersion, VersionState
from rdukit_serving.settings import DRAIN_S
from rdukit_serving.signature import ServedTensor

logger = logging.getLogger(__name__)

#: Seconds that the first inference of a new version may take.
PROBE_S: Final = 30.0
#: Number of unloaded versions that the index still lists; the oldest are dropped first.
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
        #: The version that answers requests without a version.
        self._current = ""
        #: The last that did, loaded or not.
        self._latest = ""
        #: The version that is loaded, and has not been asked to answer yet.
        self._probed = ""
        self._next = 1
        self._swapping = asyncio.Lock()
        self._draining: set[asyncio.Task[None]] = set()

    def check_name(self, name: str) -> None:
        """Check that a request means this model.

        Raises:
            NotFound: the name means another model; the message has this one's.
        """
        if name != self.name:
            raise NotFound(f"there is no model {name!r}; expected {self.name}")

    def find(self, name: str, version: str = "") -> ModelVersion:
        """Return the version that a request means.

        Raises:
            NotFound: the model or version is not loaded; the message lists the loaded ones.
            Unavailable: the version is being loaded.
        """
        self.check_name(name)
        found = self.versions.get(version or self._current)
        if found is None or (version and found.state is VersionState.LOADING):
            loading = self.find_loading(version)
            if loading is not None:
                raise Unavailable(f"model {name!r} {loading}; try again when /v2/models/{name}/ready reports it ready")
        if found is None or (found.state is not VersionState.READY and version):
            ready = [v for v, each in self.versions.items() if each.state is VersionState.READY]
            what = f"version {version!r}" if version else "version that is loaded"
            raise NotFound(f"model {name!r} has no {what}; loaded: {', '.join(ready) or 'none'}")
        return found

    def find_loading(self, version: str = "") -> str | None:
        """Describe the loading of ``version``, or of any; None if no load is in progress."""
        found = [
            number
            for number, each in self.versions.items()
            if (each.state is VersionState.LOADING or number == self._probed) and version in ("", number)
        ]
        return f"is loading (version {', '.join(found)})" if found else None

    @property
    def current(self) -> ModelVersion | None:
        """Return the version that answers requests without a version."""
        return self.versions.get(self._current)

    @property
    def latest(self) -> ModelVersion | None:
        """Return the version that answers requests without a version, or the last that did."""
        return self.versions.get(self._latest)

    def ready_versions(self) -> list[str]:
        """Return the versions that answer."""
        return [version for version, each in self.versions.items() if each.state is VersionState.READY]

    async def load(
        self, pef: Path, checkpoint: Path | None, version: str = "", keep: bool = False, switch: bool = True,
        draft: tuple[Path, Path] | None = None, replaces: ModelVersion | None = None,
    ) -> ModelVersion:  # fmt: skip
        """Load files as a version, probe it, switch to it, and drain the former one unless ``keep``.

        With ``switch`` off it answers only requests that name it. Without ``version`` the next number is used; a loaded
        version is replaced in the same way. With ``replaces``, nothing is loaded once another version answers.

        Raises:
            RdukitError: it cannot be loaded or does not answer; the earlier version keeps answering.
        """
        if version and not _VERSION.fullmatch(version):
            raise InvalidArgument(
                f"version {version[:20]!r} is not valid; expected a number from 1 to 999999999, or none for the next"
            )
        async with self._swapping:
            self._check_answers(replaces)
            number = version or str(self._next)
            files = ModelFiles(self.name, pef, checkpoint, self._serving, draft)
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
                self._check_answers(replaces)
            except RdukitError:
                if fresh.state is not VersionState.UNAVAILABLE:
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

    def _check_answers(self, version: ModelVersion | None) -> None:
        if version is not None and self.current is not version:
            raise Unavailable(f"version {version.version} no longer answers, so it is not replaced")

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
        """Return the repository extension's index."""
        return [
            {"name": self.name, "version": version, "state": str(each.state), "reason": each.reason}
            for version, each in sorted(self.versions.items(), key=lambda item: int(item[0]))
        ] or [{"name": self.name, "version": "", "state": str(VersionState.UNAVAILABLE), "reason": "nothing is loaded"}]

    async def why_not_ready(self) -> str:
        """Return "" if the current version did an inference since the last call, or does now; else why not."""
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


#: A path or URI, and its purpose → its file, fetched if it is not local.
BringFile = Callable[[str, str], Awaitable[Path]]

LOAD_PARAMETERS = ("pef", "checkpoint", "version", "keep_others", "draft_pef", "draft_checkpoint")
UNLOAD_PARAMETERS = ("version", "unload_dependents")


async def load_model(
    repository: Repository, name: str, parameters: Mapping[str, object], resolve_path: BringFile
) -> None:
    """Load a version: the files in ``parameters``, or again those of the named or the newest version.

    An unloaded version returns under its number.

    Raises:
        NotFound: another model's name, or a file that is not there.
        InvalidArgument: an unknown parameter, a path outside the mounts, or nothing to load.
        RdukitError: the files cannot be loaded; the earlier version keeps answering.
    """
    repository.check_name(name)
    given = {key: _text(key, value) for key, value in parameters.items() if key != "keep_others"}
    _refuse_unknown(parameters, LOAD_PARAMETERS)
    keep = parameters.get("keep_others", False)
    if not isinstance(keep, bool):
        raise InvalidArgument(f"parameter 'keep_others' {keep!r} is not valid; expected true or false")
    named = repository.versions.get(given.get("version", ""))
    newest = named or repository.current or repository.latest
    draft = await _draft(given, resolve_path)
    if "pef" in given:
        pef = await _existing("pef", given["pef"], resolve_path)
        checkpoint = await _existing("checkpoint", given["checkpoint"], resolve_path) if "checkpoint" in given else None
    elif newest is not None:
        pef, checkpoint, draft = newest.files.pef, newest.files.checkpoint, draft or newest.files.draft
        if "checkpoint" not in given and newest.state is VersionState.UNAVAILABLE:
            given.setdefault("version", newest.version)
        elif "checkpoint" in given:
            checkpoint = await _existing("checkpoint", given["checkpoint"], resolve_path)
    else:
        raise InvalidArgument(
            "no model was loaded before; pass the parameter pef, and checkpoint if the PEF has parameters"
        )
    await repository.load(pef, checkpoint, given.get("version", ""), keep, draft=draft)


async def _draft(given: Mapping[str, str], resolve_path: BringFile) -> tuple[Path, Path] | None:
    keys = ("draft_pef", "draft_checkpoint")
    return draft_files(*[await _existing(key, given[key], resolve_path) if key in given else None for key in keys])


async def unload_model(repository: Repository, name: str, parameters: Mapping[str, object]) -> None:
    """Unload a version, or all.

    Raises:
        NotFound: no such model or version. InvalidArgument: an unknown parameter.
    """
    repository.check_name(name)
    _refuse_unknown(parameters, UNLOAD_PARAMETERS)
    await repository.unload(_text("version", parameters.get("version", "")))


def _refuse_unknown(parameters: Mapping[str, object], legal: tuple[str, ...]) -> None:
    unknown = sorted(set(parameters) - set(legal))
    if unknown:
        raise InvalidArgument(f"parameter {unknown[0]!r} is not valid; expected {', '.join(legal)}")


def _text(key: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise InvalidArgument(f"parameter {key!r} {value!r} is not valid; expected text")
    return str(value)


async def _existing(key: str, text: str, resolve_path: BringFile) -> Path:
    path = await resolve_path(text, f"parameter {key!r}")
    if not path.exists():
        raise NotFound(f"parameter {key!r}: {path} does not exist")
    return path


SERVER_NAME: Final = "rdukit"
PLATFORM: Final = "rdukit_pef"
EXTENSIONS: Final = ("binary_tensor_data", "classification", "model_configuration", "model_repository", "statistics")


def server_metadata() -> dict[str, object]:
    """Answer ``GET /v2``."""
    return {"name": SERVER_NAME, "version": __version__, "extensions": list(EXTENSIONS)}


def model_metadata(repository: Repository, version: ModelVersion) -> dict[str, object]:
    """Answer ``GET /v2/models/NAME``."""
    signature = version.signature
    return {
        "name": repository.name,
        "versions": repository.ready_versions(),
        "platform": PLATFORM,
        "inputs": [spec.metadata() for spec in signature.inputs],
        "outputs": [spec.metadata() for spec in signature.outputs],
        "properties": dict(signature.properties),
        **({"table": version.table.describe()} if version.table else {}),
        **({"pictures": version.pictures.describe()} if version.pictures else {}),
    }


def model_configuration(repository: Repository, version: ModelVersion) -> dict[str, object]:
    """Answer ``GET /v2/models/NAME/config``. Source: Triton's ``ModelConfig``, the fields that apply here."""
    signature = version.signature
    return {
        "name": repository.name,
        "platform": PLATFORM,
        "backend": "rdukit",
        "version_policy": {"specific": {"versions": [int(v) for v in repository.ready_versions()]}},
        "max_batch_size": signature.max_batch,
        "input": [_configuration(spec) for spec in signature.inputs],
        "output": [_configuration(spec) for spec in signature.outputs],
        "instance_group": [{"name": repository.name, "kind": "KIND_MODEL", "count": 1}],
        "dynamic_batching": {"preferred_batch_size": [signature.max_batch], "max_queue_delay_microseconds": 0},
        "parameters": {name: {"string_value": value} for name, value in signature.properties.items()},
    }


def _configuration(spec: ServedTensor) -> Mapping[str, object]:
    data_type = "TYPE_" + {"BYTES": "STRING"}.get(spec.datatype, spec.datatype)
    return {"name": spec.name, "data_type": data_type, "dims": list(spec.row_shape)}

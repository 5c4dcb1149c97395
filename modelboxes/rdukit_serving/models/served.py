"""The models that a box serves: those named at its start or loaded by request, and its own newest training.

A model that was loaded by name stays. A version that was only found (the newest training, the files of a request) is
unloaded when it idles, or when an operation needs its tiles.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rdukit.errors import InvalidArgument, NotFound, RdukitError, Unavailable
from rdukit.files.atomic import sha256_of
from rdukit.pef.checkpoint_files import LATEST, PICTURE_FILE, TABLE_FILE
from rdukit.settings import resolve
from rdukit_serving.models.kernel_build import switch_to_native
from rdukit_serving.models.repository import BringFile, Repository
from rdukit_serving.models.version import ModelVersion, VersionState
from rdukit_serving.settings import ROWS_IDLE_S
from rdukit_serving.signature import InferRequest, RawTensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rdukit_serving.raw_inputs.answers import ClassPrediction, Prediction
    from rdukit_serving.router.decision import NamedRouter

logger = logging.getLogger(__name__)

#: Rows [N][C] and the class [N] with the highest.
Answer = tuple[list[list[float]], list[int]]
#: PEF and checkpoint of the newest training or inference that succeeded, if there was one.
FindLatest = Callable[[], tuple[Path, Path] | None]

_LOOK_S: Final = 1.0


class ServedModels:
    """Repository of one server, and the code that changes it. Belongs to one event loop."""

    def __init__(
        self, name: str, serving: Mapping[str, Any], logs: Path, find_latest: FindLatest, resolve_path: BringFile
    ) -> None:
        self.repository = Repository(serving.get("name") or name, serving, logs)
        self.resolve_path = resolve_path
        #: Chooses a model for requests that name it.
        self.router: NamedRouter | None = None
        self._find_latest = find_latest
        #: Versions that were only found: version -> its files, and the time of its last use.
        self._found: dict[str, str] = {}
        self._used: dict[str, float] = {}
        self._finding = asyncio.Lock()
        #: Loads for which callers wait, by key of the files.
        self._loading: dict[str, asyncio.Task[ModelVersion]] = {}
        self._retiring: asyncio.Task[None] | None = None
        self._building: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def repositories(self) -> Sequence[Repository]:
        """Return the repositories of all models."""
        return [self.repository]

    def repository_of(self, name: str) -> Repository:
        """Return the repository of a request's model; the only repository also gets other names, and refuses them.

        Raises:
            NotFound: there are several, and no repository has that name.
        """
        return self.repository

    async def start(
        self, pef: Path, checkpoint: Path | None, draft: tuple[Path, Path] | None = None,
        to_build: Mapping[Path, Path] | None = None,
    ) -> None:  # fmt: skip
        """Serve these files from the beginning.

        Args:
            draft: PEF and checkpoint of the draft model.
            to_build: PEF → path of the PEF with native kernels, for those that are built meanwhile.
        Raises:
            RdukitError: they cannot be loaded.
        """
        await self.repository.load(pef, checkpoint, draft=draft)
        if to_build:
            self._building = asyncio.create_task(switch_to_native(self.repository, to_build))

    async def why_not_ready(self) -> str:
        """Return "" if the device answered since the last call, answers now, or serves no model; else the reason."""
        if not self.repository.versions or (self._found and not self.repository.ready_versions()):
            return ""
        return await self.repository.why_not_ready()

    async def ensure(self, name: str, version: str) -> ModelVersion:
        """Return the version that a request names; if it names none and none is loaded, load the newest trained model.

        Raises:
            NotFound: no such model or version, and nothing to load. Unavailable: it is being loaded by name.
        """
        try:
            found = self.repository.find(name, version)
        except (NotFound, Unavailable) as error:
            latest = self._find_latest()
            if version or name != self.repository.name or latest is None:
                raise
            if isinstance(error, Unavailable) and not self._loading:
                raise
            found = await self._find(*latest)
        self._use(found)
        return found

    def loaded(self, name: str, version: str) -> ModelVersion | None:
        """Return the version if it is loaded; otherwise None: call ``ensure``."""
        try:
            found = self.repository.find(name, version)
        except (NotFound, Unavailable):
            return None
        self._use(found)
        return found

    async def version_of(self, files: tuple[Path, Path] | None) -> ModelVersion:
        """Return the version with these files; without ``files`` the one that answers now, or the newest training.

        Raises:
            NotFound: no model yet.
        """
        version = await (self._find(*files) if files else self.ensure(self.repository.name, ""))
        self._use(version)
        return version

    async def rows(self, rows: Sequence[Sequence[float]], files: tuple[Path, Path] | None) -> Answer:
        """Return outputs and classes for feature rows, by the first input and output of the model.

        ``files`` are PEF and checkpoint; None: the version that answers now, or the newest training.

        Raises:
            InvalidArgument: a row has another length, or the model takes no float rows. NotFound: no model yet.
        """
        version = await self.version_of(files)
        signature = version.signature
        if version.text is not None:
            raise InvalidArgument(
                f"{self.repository.name} takes texts, not rows: use /v1/completions or /v1/embeddings"
            )
        spec, output = signature.inputs[0], signature.outputs[0]
        if len(signature.inputs) != 1 or spec.datatype not in {"FP32", "FP64"} or output.datatype not in _NUMPY:
            raise InvalidArgument(
                f"{self.repository.name} takes tensors, not rows: use /v2/models/{self.repository.name}"
            )
        wrong = next((i for i, row in enumerate(rows) if len(row) != spec.row_elements), None)
        if wrong is not None:
            raise InvalidArgument(f"row {wrong} has {len(rows[wrong])} values; expected {spec.row_elements}")
        import numpy as np  # not before rows come: it is 13 MB

        try:
            rows_NF = np.asarray(rows, "<f4" if spec.datatype == "FP32" else "<f8")
        except (ValueError, TypeError, OverflowError) as cause:
            raise InvalidArgument(f"rows must be lists of numbers: {cause}") from cause
        wrong_NF = np.argwhere(~np.isfinite(rows_NF))
        if len(wrong_NF):
            row, column = wrong_NF[0].tolist()
            value = rows[row][column]
            raise InvalidArgument(
                f"row {row}, value {column}: {value!r} is not finite as {spec.datatype}; expected finite numbers"
            )
        logits_NC = await _run(version, rows_NF)
        return logits_NC.tolist(), logits_NC.argmax(axis=1).tolist()

    async def predict(self, rows: Sequence[Mapping[str, object]], version: ModelVersion) -> "Sequence[Prediction]":
        """Return the answers for rows by column name, of a model that was trained on a table.

        Raises:
            InvalidArgument: the model was trained on no table, or a row cannot be used; names row and column.
        """
        table = version.table
        if table is None:
            raise InvalidArgument(
                f"{self.repository.name} does not accept rows by column name: "
                f"{version.unused or f'no {TABLE_FILE} lies with its checkpoint'}; expected a PEF compiled with "
                f"purpose=serve and a checkpoint with {TABLE_FILE}, or tensors at "
                f"/v2/models/{self.repository.name}/infer"
            )
        from rdukit_serving.raw_inputs.preprocessing import read_features  # numpy: 13 MB

        if not rows:
            raise InvalidArgument("there are no rows; expected at least one", field="rows")
        # A row takes some microseconds a column.
        rows_NF = (
            await asyncio.to_thread(read_features, table, rows) if len(rows) > _FEW else read_features(table, rows)
        )
        return table.predictions(await _run(version, rows_NF))

    async def classify(self, pictures: Sequence[bytes], version: ModelVersion) -> "list[ClassPrediction]":
        """Return the answers for pictures, each the bytes of a file, of a model that was trained on pictures.

        Raises:
            InvalidArgument: the model was not trained on pictures, or a picture cannot be used; the message has its
                number.
        """
        known = version.pictures
        if known is None:
            raise InvalidArgument(
                f"{self.repository.name} does not accept pictures: "
                f"{version.unused or f'no {PICTURE_FILE} lies with its checkpoint'}; expected a PEF compiled with "
                f"purpose=serve and a checkpoint with {PICTURE_FILE}, or tensors at "
                f"/v2/models/{self.repository.name}/infer"
            )
        from rdukit_serving.raw_inputs.pictures import read_pictures

        shape = version.signature.inputs[0].row_shape
        return known.predictions(await _run(version, await asyncio.to_thread(read_pictures, known, pictures, shape)))

    async def release_found(self) -> None:
        """Unload models that no request named, because their tiles are needed."""
        for version in list(self._found):
            await self._forget(version)

    async def close(self) -> None:
        """End every process."""
        if self._retiring is not None:
            self._retiring.cancel()
        working = [*self._loading.values(), *([self._building] if self._building is not None else [])]
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        await self.repository.close()

    async def _find(self, pef: Path, checkpoint: Path) -> ModelVersion:
        """Return the version with these files, loaded if necessary; concurrent callers share one load.

        A caller that goes away ends its own waiting only: callers with little patience would else never get an answer.
        """
        key = model_key(pef, checkpoint)
        for version, known in self._found.items():
            if known == key and version in self.repository.ready_versions():
                return self.repository.versions[version]
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = asyncio.create_task(self._load_found(key, pef, checkpoint))
            loading.add_done_callback(lambda done: self._has_loaded(key, done))
        return await asyncio.shield(loading)

    async def _load_found(self, key: str, pef: Path, checkpoint: Path) -> ModelVersion:
        async with self._finding:
            for version in list(self._found):
                await self._forget(version)
            asked = [v for v in self.repository.ready_versions() if v not in self._found]
            known = set(self.repository.versions)
            try:
                fresh = await self.repository.load(pef, checkpoint, keep=True, switch=not asked)
            except RdukitError:
                # Somebody's wrong file is that request's fault; the box is as ready as before.
                for version in set(self.repository.versions) - known:
                    if self.repository.versions[version].state is VersionState.UNAVAILABLE:
                        del self.repository.versions[version]
                raise
            self._found[fresh.version] = key
            self._use(fresh)
            if self._retiring is None or self._retiring.done():
                self._retiring = asyncio.create_task(self._retire())
            return fresh

    def _has_loaded(self, key: str, loading: "asyncio.Task[ModelVersion]") -> None:
        del self._loading[key]
        if not loading.cancelled() and (error := loading.exception()) is not None:
            logger.info("not loaded reason=%s", error)

    def _use(self, version: ModelVersion) -> None:
        if version.version in self._found:
            self._used[version.version] = self._loop.time()

    async def _retire(self) -> None:
        """Unload found models that idle for longer than the setting allows."""
        while self._found:
            await asyncio.sleep(_LOOK_S)
            for version in list(self._found):
                found = self.repository.versions.get(version)
                if found is not None and found.pending:
                    self._use(found)
                if self._loop.time() - self._used.get(version, 0.0) > resolve(ROWS_IDLE_S):
                    await self._forget(version)

    async def _forget(self, version: str) -> None:
        self._found.pop(version, None)
        self._used.pop(version, None)
        try:
            await self.repository.unload(version)
        except RdukitError as error:
            logger.info("not unloaded version=%s reason=%s", version, error.message)
        self.repository.versions.pop(version, None)


async def _run(version: ModelVersion, rows_NF: "NDArray[Any]") -> "NDArray[Any]":
    """Return the first output [N, C] of a model with one input, for rows of its datatype, in batches."""
    import numpy as np

    signature = version.signature
    spec, output = signature.inputs[0], signature.outputs[0]
    waiting = []
    for at in range(0, len(rows_NF), signature.max_batch):
        part = rows_NF[at : at + signature.max_batch]
        tensor = RawTensor(spec.name, spec.datatype, (len(part), *spec.row_shape), part.tobytes())
        waiting.append(version.submit(InferRequest([tensor], [output.name])))
    answers = await asyncio.gather(*waiting)
    data = b"".join(answer.outputs[0] for answer in answers)
    return np.frombuffer(data, _NUMPY[output.datatype]).reshape(len(rows_NF), -1)


#: Largest number of rows by column name that are read without a thread.
_FEW: Final = 16
_NUMPY: Final = {"FP32": "<f4", "FP64": "<f8", "FP16": "<f2"}


def model_key(pef: Path, checkpoint: Path) -> str:
    """Return a key that changes whenever the PEF or the checkpoint's latest step does."""
    stat = pef.stat()
    latest = checkpoint / LATEST
    digest = sha256_of(latest.read_bytes()) if latest.is_file() else ""
    return f"{pef}:{stat.st_ino}:{stat.st_mtime_ns}:{stat.st_size}:{checkpoint}:{digest}"

"""A bundle for the wires: each expert is a model by its name, in the repository, in OpenAI's list, in metrics."""

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rdukit.errors import InvalidArgument, NotFound, RdukitError
from rdukit.settings import resolve
from rdukit_serving.device.client import ModelFiles
from rdukit_serving.experts.bundle import AdapterEntry
from rdukit_serving.experts.pool import ExpertPool
from rdukit_serving.experts.process import ExpertLine
from rdukit_serving.experts.sizes import FoundBundle, FoundExpert
from rdukit_serving.experts.table import ExpertState
from rdukit_serving.models.repository import Repository
from rdukit_serving.models.served import ServedModels
from rdukit_serving.models.version import ModelVersion, VersionState
from rdukit_serving.settings import MAX_QUEUE, READY_TIMEOUT_S
from rdukit_serving.signature import ServedSignature
from rdukit_serving.text.queue import TextQueue

#: The one version that an expert has.
VERSION = "1"
#: Names that an error lists.
_MOST_NAMES = 50

_STATES: Mapping[ExpertState, VersionState] = {
    ExpertState.LIVE: VersionState.READY, ExpertState.STARTING: VersionState.LOADING,
    ExpertState.QUEUED: VersionState.LOADING, ExpertState.OFFLINE: VersionState.UNAVAILABLE,
}  # fmt: skip


class ExpertVersion(ModelVersion):
    """An expert as a version; its process is shared, and a request loads it."""

    def __init__(
        self, found: FoundExpert, pool: ExpertPool, log_file: Path, max_queue: int, adapter: AdapterEntry | None = None
    ) -> None:  # fmt: skip
        """``adapter``: the expert's adapter that this version is; ``None``: the version is the expert itself."""
        entry, configuration = found.entry, found.configuration
        self.entry = adapter or entry
        self.adapter = "" if adapter is None else adapter.name
        files = ModelFiles(self.entry.name, configuration.pef, found.checkpoint, {"max_queue": max_queue})
        super().__init__(VERSION, files, log_file)
        self.found = found
        self._pool, self._process = pool, pool.process_of(entry.name)
        self.texts = TextQueue(
            max_queue, self.statistics, admit=partial(pool.admit, entry.name), turns=self._process.turns,
            numbers=self._process.numbers, tokens_of=self.prompt_tokens,
        )  # fmt: skip
        self.text = {**configuration.text.figures(), "generates": configuration.generates}
        self._last_error = ""
        self.loaded_at = time.time()
        #: Adapters of the expert, which are loaded and unloaded with it.
        self.adapters: list[ExpertVersion] = []
        if adapter is None:
            self.adapters = [ExpertVersion(found, pool, log_file, max_queue, each) for each in entry.adapters]
            pool.seat(entry.name, self)

    @property
    def state(self) -> VersionState:
        """Return the state in the words of the repository."""
        return _STATES[self.expert_state]

    @state.setter
    def state(self, value: VersionState) -> None:
        """Leave the state to the pool."""

    @property
    def expert_state(self) -> ExpertState:
        """Return the expert's state."""
        return self._pool.table.state(self.found.entry.name)

    @property
    def signature(self) -> ServedSignature:
        """Return a signature without inputs and outputs, with the known properties of the PEF."""
        properties = {"configuration": self.found.configuration.name, **self._process.properties}
        return ServedSignature((), (), 1, 1, properties=properties)

    @property
    def pid(self) -> int | None:
        """Return the process id of its configuration's process, while the expert is live."""
        return self._process.pid if self.expert_state is ExpertState.LIVE else None

    def describe(self) -> dict[str, object]:
        """Return its entry in the list of models."""
        return {
            **super().describe(), "state": str(self.expert_state), "configuration": self.found.configuration.name,
            "aliases": list(self.entry.aliases), "pinned": self.found.entry.pinned,
            **({"adapter_of": self.found.entry.name} if self.adapter else {}),
        }  # fmt: skip

    async def why_not_ready(self, timeout_s: float | None = None) -> str:
        """Return "" if a text was generated since the last call, or can be now; else the reason."""
        if self.expert_state is not ExpertState.LIVE:
            return f"expert {self.files.name} is {self.expert_state.lower()}; a request loads it{self._last_error}"
        return await self._why_no_answer(resolve(READY_TIMEOUT_S, timeout_s))

    def has_come(self, line: ExpertLine, seconds: float) -> None:
        """See ``ExpertTexts``."""
        self.load_seconds, self.loaded_at, self._last_error = seconds, time.time(), ""
        self.restarts = max(self._process.starts - 1, 0)
        self.texts.attach(line)
        for adapter in self.adapters:
            adapter.has_come(self._process.line(self.found.entry.name, adapter.adapter), seconds)

    def has_gone(self, ending: str) -> None:
        """See ``ExpertTexts``."""
        self.texts.detach(ending)
        for adapter in self.adapters:
            adapter.has_gone(ending)

    def has_failed(self, error: RdukitError) -> None:
        """See ``ExpertTexts``."""
        self._last_error = f"; {error.message}"
        self.texts.refuse(error)
        for adapter in self.adapters:
            adapter.has_failed(error)

    async def unload(self, drain_s: float) -> None:
        """Unload it when its texts have ended."""
        await self._pool.unload(self.found.entry.name)


class ExpertRepository(Repository):
    """Repository of one expert; its bundle names the files."""

    def __init__(self, expert: ExpertVersion, pool: ExpertPool, logs: Path) -> None:
        super().__init__(expert.files.name, expert.files.serving, logs)
        self._expert, self._pool = expert, pool
        self.versions[VERSION] = expert
        self._current = self._latest = VERSION

    def check_name(self, name: str) -> None:
        """Take every name: this repository was found by the expert's own or an alias."""

    def find(self, name: str, version: str = "") -> ModelVersion:
        """Return the expert in any state.

        Raises:
            NotFound: the repository has no such version.
        """
        if version not in ("", VERSION):
            raise NotFound(f"expert {self.name!r} has no version {version!r}; expected {VERSION}")
        return self._expert

    async def load(
        self, pef: Path, checkpoint: Path | None, version: str = "", keep: bool = False, switch: bool = True,
        draft: tuple[Path, Path] | None = None, replaces: ModelVersion | None = None,
    ) -> ModelVersion:  # fmt: skip
        """Bring the expert into memory, as a request does.

        Raises:
            InvalidArgument: other files than its own are named. RdukitError: it cannot be loaded.
        """
        files = self._expert.files
        if (pef, checkpoint, draft) != (files.pef, files.checkpoint, files.draft) or version not in ("", VERSION):
            raise InvalidArgument(f"the bundle determines the files of expert {self.name!r}; leave out the parameters")
        await self._pool.load(self._expert.found.entry.name)
        return self._expert

    async def unload(self, version: str = "") -> None:
        """Unload the expert when its texts have ended; a request loads it again.

        Raises:
            NotFound: the repository has no such version.
        """
        self.find(self.name, version)
        await self._expert.unload(0)

    def index(self) -> list[dict[str, str]]:
        """Return its entry in the repository extension's index; ``reason`` is its own state."""
        state = str(self._expert.state)
        return [{"name": self.name, "version": VERSION, "state": state, "reason": str(self._expert.expert_state)}]


class ExpertModels(ServedModels):
    """Experts of a bundle, by name and alias. Belongs to one event loop."""

    def __init__(self, bundle: FoundBundle, folder: Path) -> None:
        """``folder``: for logs and prepared weights.

        Raises:
            InvalidArgument: the bundle does not fit.
        """
        bundle.require_fit()
        super().__init__(bundle.name, {}, folder, lambda: None, _refuse_path)
        self._names = bundle.names
        self.router = bundle.router
        self.pool = ExpertPool(bundle, folder)
        limit = bundle.max_queue or resolve(MAX_QUEUE)
        found = bundle.experts.items()
        experts = [ExpertVersion(each, self.pool, folder / f"{name}.log", limit) for name, each in found]
        self._repositories = {
            model.files.name: ExpertRepository(model, self.pool, folder)
            for expert in experts for model in (expert, *expert.adapters)
        }  # fmt: skip
        self.repository = next(iter(self._repositories.values()))

    @property
    def repositories(self) -> Sequence[Repository]:
        """Return the repository of each expert."""
        return list(self._repositories.values())

    def repository_of(self, name: str) -> Repository:
        """Return the repository of the expert that a name or an alias means.

        Raises:
            NotFound: none; lists the legal names.
        """
        found = self._names.get(name)
        if found is None:
            names = [*self._names, *([self.router.name] if self.router else [])]
            more = f" … ({len(names)}: /v1/models)" if len(names) > _MOST_NAMES else ""
            legal = ", ".join(names[:_MOST_NAMES])
            raise NotFound(f"there is no model {name[:100]!r}; expected {legal}{more}")
        return self._repositories[found]

    async def load(self) -> None:
        """Start the processes of all configurations, and load the pinned experts.

        Raises:
            RdukitError: one cannot be loaded.
        """
        await self.pool.start()

    async def why_not_ready(self) -> str:
        """Return the fault of a process, or of a live expert of each configuration; "" if there is none."""
        for name, process in self.pool.processes.items():
            if process.pid is None:
                return f"the inference process of configuration {name} is being restarted"
        seen: set[str] = set()
        for repository in self._repositories.values():
            expert = repository.find(repository.name)
            assert isinstance(expert, ExpertVersion)
            if expert.expert_state is ExpertState.LIVE and expert.found.entry.configuration not in seen:
                seen.add(expert.found.entry.configuration)
                if reason := await expert.why_not_ready():
                    return f"{repository.name}: {reason}"
        return ""

    async def ensure(self, name: str, version: str) -> ModelVersion:
        """Return the expert that a request names; its first text loads it.

        Raises:
            NotFound: no such expert or version.
        """
        return self.repository_of(name).find(name, version)

    def loaded(self, name: str, version: str) -> ModelVersion | None:
        """Return the loaded expert; ``None``: it is not loaded, and ``ensure`` has the reason."""
        try:
            return self.repository_of(name).find(name, version)
        except NotFound:
            return None

    async def close(self) -> None:
        """End every process."""
        await self.pool.close()


class ExpertCollector(Collector):
    """Metrics of experts in addition to those of all models; copies between tiers are emulated."""

    def __init__(self, pool: ExpertPool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        """Yield one family after another."""
        state = GaugeMetricFamily("rdukit_box_expert_state", "1: the state of an expert.", labels=["model", "state"])
        weights = GaugeMetricFamily(
            "rdukit_box_expert_weights_bytes", "Bytes of an expert's weights.", labels=["model"]
        )
        counters = {
            name: CounterMetricFamily(f"rdukit_box_expert_{name}", words, labels=["model"])
            for name, words in _COUNTERS.items()
        }
        sizes = {each.name: each.weights_bytes for each in self._pool.bundle.fit.experts}
        for name, size in sizes.items():
            weights.add_metric([name], size)
            for each in ExpertState:
                state.add_metric([name, str(each)], float(self._pool.table.state(name) is each))
            counts = self._pool.counts_of(name)
            for counter, family in counters.items():
                family.add_metric([name], getattr(counts, _FIELDS.get(counter, counter)))
        held = GaugeMetricFamily("rdukit_box_experts_held_bytes", "Bytes of weights in the host's memory.")
        held.add_metric([], self._pool.table.held_bytes)
        yield from (state, weights, held, *counters.values())


_COUNTERS: Mapping[str, str] = {
    "loads": "Number of times that an expert's weights were loaded into the host's memory.",
    "evictions": "Number of times that an expert's weights were evicted or unloaded.",
    "switches": "Emulated: number of copies of an expert from DDR to HBM.",
    "switch_bytes": "Emulated: bytes moved by these copies.",
    "emulated_switch_seconds": "Emulated: seconds of these copies, bytes divided by DDR's bandwidth.",
    "emulated_ddr_load_bytes": "Emulated: bytes copied from the host to DDR.",
    "emulated_ddr_load_seconds": "Emulated: seconds of these copies, bytes divided by PCIe's bandwidth.",
}
#: Counter → its field of ``ExpertCounts``, if its name differs.
_FIELDS: Mapping[str, str] = {
    "emulated_switch_seconds": "switch_s", "emulated_ddr_load_bytes": "ddr_load_bytes",
    "emulated_ddr_load_seconds": "ddr_load_s",
}  # fmt: skip


async def _refuse_path(text: str, what: str) -> Path:
    raise InvalidArgument(
        f"{what} {text!r}: this server serves a bundle; change the bundle's file, and restart the server"
    )

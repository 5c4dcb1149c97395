"""A bundle with its files: PEFs read for their sizes and checkpoints found, without torch and without a device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rdukit.errors import InvalidArgument, NotFound
from rdukit.hardware import ChipSpec, find_chip
from rdukit.pef import Pef, read_pef
from rdukit.pef.memory import lease_bytes, parameter_layout
from rdukit.pef.model import SymbolKind
from rdukit_serving.experts.bundle import BundleFiles, Configuration, ExpertEntry, RouterEntry
from rdukit_serving.experts.legalizer import BundleFit, ConfigurationSizes, ExpertSizes, device_memory, legalize
from rdukit_serving.router.decision import NamedRouter, load_router
from rdukit_serving.shape import SERVE, TextSizes, shape_of
from rdukit_serving.text.chat_template import TOKENIZER_FILE, companion


@dataclass(frozen=True, slots=True)
class FoundConfiguration:
    """A configuration whose PEF was read: ``key`` changes with the file."""

    name: str
    pef: Path
    key: str
    text: TextSizes
    generates: bool
    sizes: ConfigurationSizes


@dataclass(frozen=True, slots=True)
class FoundExpert:
    """An expert whose checkpoint is there."""

    entry: ExpertEntry
    configuration: FoundConfiguration
    checkpoint: Path
    #: Files of the adapters beside its weights, by name.
    adapters: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundBundle:
    """A bundle whose files are there, and what of it fits."""

    name: str
    max_queue: int | None
    configurations: Mapping[str, FoundConfiguration]
    experts: Mapping[str, FoundExpert]
    #: The expert that each name or alias means.
    names: Mapping[str, str]
    fit: BundleFit
    router: NamedRouter | None = None

    def require_fit(self) -> None:
        """Check that all of it can be served.

        Raises:
            InvalidArgument: something does not fit; says what would.
        """
        if self.fit.problems:
            raise InvalidArgument(f"bundle {self.name} does not fit: {'; '.join(self.fit.problems)}")


def find_bundle(files: BundleFiles) -> FoundBundle:
    """Read the PEFs of a bundle, find its checkpoints, and add up what they need.

    Raises:
        NotFound, PefError: a file is missing, or is no PEF that can be used.
        InvalidArgument: a file lies outside of the bundle's folders, or is not what the bundle says of it.
        PefMismatch: the parameters of a PEF cannot be exchanged.
    """
    bundle = files.bundle
    chips: list[ChipSpec] = []
    found: dict[str, FoundConfiguration] = {}
    for at, configuration in enumerate(bundle.configurations):
        path = files.find(configuration.pef, ("configurations", at, "pef"))
        pef = read_pef(path).pef
        found[configuration.name] = _read(files, at, configuration, path, pef)
        chips.append(find_chip(pef.arch))
        if chips[-1] != chips[0]:
            words = f"{configuration.pef!r} is for {chips[-1].name}, the first for {chips[0].name}; legal: one chip"
            raise files.fault(("configurations", at, "pef"), words)
    experts: dict[str, FoundExpert] = {}
    for at, entry in enumerate(bundle.experts):
        checkpoint = files.find(entry.checkpoint, ("experts", at, "checkpoint"))
        if not companion(checkpoint, TOKENIZER_FILE).is_file():
            words = f"there is no {TOKENIZER_FILE} beside {entry.checkpoint!r}: a text model needs its tokenizer there"
            raise NotFound(files.fault(("experts", at, "checkpoint"), words).message)
        its = found[entry.configuration]
        if len(entry.adapters) > its.text.adapters:
            words = (
                f"{len(entry.adapters)} adapters do not fit; legal: {its.text.adapters}, as the PEF of "
                f"{its.name!r} was compiled with adapters={its.text.adapters}"
            )
            raise files.fault(("experts", at, "adapters"), words)
        adapters = {
            each.name: files.find(each.checkpoint, ("experts", at, "adapters", number, "checkpoint"))
            for number, each in enumerate(entry.adapters)
        }
        experts[entry.name] = FoundExpert(entry, its, checkpoint, adapters)
    memory = bundle.memory
    device = device_memory(chips[0], bundle.sockets, memory.host, memory.hbm, memory.ddr)
    if memory.hbm and not device.hbm_bytes:
        raise files.fault(("memory", "hbm"), f"{device.chip} has no HBM; legal: to leave it out")
    fit = legalize(device, [each.sizes for each in found.values()], _sizes_of(experts))
    router = None if bundle.router is None else _read_router(files, bundle.router, bundle.names())
    return FoundBundle(bundle.name, bundle.max_queue, found, experts, bundle.names(), fit, router)


def _read_router(files: BundleFiles, entry: RouterEntry, names: Mapping[str, str]) -> NamedRouter:
    """Read the router, whose experts must be the bundle's."""
    path = files.find(entry.file, ("router", "file"))
    try:
        router, _ = load_router(path)
    except InvalidArgument as error:
        raise files.fault(("router", "file"), error.message) from error
    if missing := sorted(set(router.experts) - set(names)):
        words = f"it chooses among {', '.join(missing)}, too; legal: names of the bundle's experts"
        raise files.fault(("router", "file"), words)
    if router.model:
        words = f"it needs vectors of {router.model!r}; legal here: a router by words, made without --embeddings"
        raise files.fault(("router", "file"), words)
    return NamedRouter(entry.name, router, entry.default or "", entry.least)


def _sizes_of(experts: Mapping[str, FoundExpert]) -> Sequence[ExpertSizes]:
    return [
        ExpertSizes(name, each.entry.configuration, each.configuration.sizes.weights_bytes, each.entry.pinned)
        for name, each in experts.items()
    ]


def _read(files: BundleFiles, at: int, said: Configuration, path: Path, pef: Pef) -> FoundConfiguration:
    """Compare a PEF with what the bundle says of it, and add up its memory."""
    shape = shape_of(pef, said.pef)
    if shape.text is None or shape.purpose != SERVE:
        words = f"{said.pef!r} is of purpose={shape.purpose}, task {shape.task}; legal: a model of texts, purpose=serve"
        raise files.fault(("configurations", at, "pef"), words)
    is_found = {"context": shape.text.context, "batch": shape.text.texts, "precision": shape.precision}
    for key, value in is_found.items():
        if getattr(said, key) not in (None, value):
            words = f"{getattr(said, key)!r} is not what {said.pef!r} was compiled with; legal: {value}"
            raise files.fault(("configurations", at, key), words)
    offsets, weights = parameter_layout(pef)
    caches = sum(
        symbol.bytes for name, symbol in pef.symbols.items() if symbol.kind is SymbolKind.BUFFER and name not in offsets
    )
    sizes = ConfigurationSizes(
        said.name, shape.text.context, shape.text.texts, shape.precision, weights, caches,
        max(lease_bytes(pef) - weights - caches, 0),
    )  # fmt: skip
    status = path.stat()
    key = f"{path}:{status.st_ino}:{status.st_mtime_ns}:{status.st_size}"
    generates = any(graph.startswith("decode") for graph in pef.graphs)
    return FoundConfiguration(said.name, path, key, shape.text, generates, sizes)


def check_checkpoints(found: FoundBundle) -> None:
    """Check that each checkpoint can be read and has a tensor for each parameter of its PEF, and that adapters fit.

    Raises:
        NotFound, InvalidArgument: one does not; names the expert.
    """
    from rdukit_serving.device.adapters import place_adapters  # torch: what only serves needs none
    from rdukit_serving.device.parameters import load_parameters, match_parameters, merge_adapters, open_parameters

    pefs = {name: read_pef(each.pef).pef for name, each in found.configurations.items()}
    for name, expert in found.experts.items():
        try:
            with open_parameters(expert.checkpoint) as stored:
                match_parameters(pefs[expert.configuration.name], stored.names)
            if expert.adapters:
                base = merge_adapters(load_parameters(expert.checkpoint)[1])
                place_adapters(pefs[expert.configuration.name], base, expert.adapters)
        except (InvalidArgument, NotFound) as cause:
            raise type(cause)(f"expert {name}: {cause.message}", **cause.detail) from cause

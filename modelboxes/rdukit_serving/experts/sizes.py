"""A bundle with its files: PEFs read for their sizes and checkpoints found, without torch and without a device."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rdukit.errors import InvalidArgument, NotFound
from rdukit.hardware import ChipSpec, find_chip
from rdukit.pef import read_pef
from rdukit.pef.checkpoint_files import check_tokenizer
from rdukit.pef.memory import lease_bytes, parameter_layout
from rdukit.pef.model import SymbolKind
from rdukit.strict_yaml import Path as KeyPath
from rdukit_serving.experts.bundle import (
    Bundle,
    BundleFiles,
    Configuration,
    DraftEntry,
    ExpertEntry,
    RouterEntry,
)
from rdukit_serving.experts.legalizer import (
    BundleFit,
    ConfigurationSizes,
    ExpertSizes,
    describe_fit,
    device_memory,
    legalize,
)
from rdukit_serving.router.decision import NamedRouter, load_router
from rdukit_serving.shape import SERVE, TextSizes, shape_of
from rdukit_serving.text.chat_template import TOKENIZER_FILE, check_draft_tokens, companion


@dataclass(frozen=True, slots=True)
class FoundConfiguration:
    """A configuration whose PEF was read: ``key`` changes with the file; ``model`` names the model of the box that
    compiled it."""

    name: str
    pef: Path
    key: str
    text: TextSizes
    generates: bool
    sizes: ConfigurationSizes
    #: PEF and checkpoint of the experts' draft model.
    draft: tuple[Path, Path] | None = None
    model: str = ""
    tiles: int = 1


@dataclass(frozen=True, slots=True)
class FoundExpert:
    """An expert whose checkpoint is there."""

    entry: ExpertEntry
    configuration: FoundConfiguration
    checkpoint: Path
    #: Files of the adapters of its weights, by name.
    adapters: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundBundle:
    """A bundle whose files exist, and the parts that fit."""

    name: str
    max_queue: int | None
    configurations: Mapping[str, FoundConfiguration]
    experts: Mapping[str, FoundExpert]
    #: The expert that each name or alias means.
    names: Mapping[str, str]
    fit: BundleFit
    router: NamedRouter | None = None

    def require_fit(self) -> None:
        """Check that the whole bundle can be served.

        Raises:
            InvalidArgument: a part does not fit; the message says what would.
        """
        if self.fit.problems:
            raise InvalidArgument(f"bundle {self.name} does not fit: {'; '.join(self.fit.problems)}")


def find_bundle(files: BundleFiles) -> FoundBundle:
    """Read the PEFs of a bundle, find its checkpoints, and add up their sizes.

    Raises:
        NotFound, PefError: a file is missing, or is not a usable PEF.
        InvalidArgument: a file lies outside of the bundle's folders, or does not match the bundle.
        PefMismatch: the parameters of a PEF cannot be exchanged.
    """
    bundle = files.bundle
    chips: list[ChipSpec] = []
    found: dict[str, FoundConfiguration] = {}
    for at, configuration in enumerate(bundle.configurations):
        found[configuration.name] = _read(files, ("configurations", at), configuration, chips)
    for at, configuration in enumerate(bundle.configurations):
        if configuration.draft is not None:
            its = found[configuration.name]
            found[configuration.name] = _with_draft(files, at, configuration.draft, its, found, chips)
    experts: dict[str, FoundExpert] = {}
    for at, entry in enumerate(bundle.experts):
        checkpoint = files.find(entry.checkpoint, ("experts", at, "checkpoint"))
        if not companion(checkpoint, TOKENIZER_FILE).is_file():
            words = f"there is no {TOKENIZER_FILE} next to {entry.checkpoint!r}, where a text model needs its tokenizer"
            raise NotFound(files.fault(("experts", at, "checkpoint"), words).message)
        its = found[entry.configuration]
        if its.draft is not None:
            with _telling(files, ("experts", at, "checkpoint")):
                check_draft_tokens(checkpoint, its.draft[1])
        if len(entry.adapters) > its.text.adapters:
            words = (
                f"{len(entry.adapters)} adapters do not fit; expected {its.text.adapters}, because the PEF of "
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
        raise files.fault(("memory", "hbm"), f"{device.chip} has no HBM; leave out memory.hbm")
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
        words = f"it also chooses among {', '.join(missing)}; expected only names of the bundle's experts"
        raise files.fault(("router", "file"), words)
    experts = {expert.name for expert in files.bundle.experts}
    if router.model and names.get(router.model) not in experts:
        words = (
            f"it chooses by vectors of {router.model!r}; expected an expert with that name or alias (adapters give no "
            "vectors), or a router by words, trained without --embeddings"
        )
        raise files.fault(("router", "file"), words)
    return NamedRouter(entry.name, router, entry.default or "", entry.least)


def _sizes_of(experts: Mapping[str, FoundExpert]) -> Sequence[ExpertSizes]:
    return [
        ExpertSizes(name, each.entry.configuration, each.configuration.sizes.weights_bytes, each.entry.pinned)
        for name, each in experts.items()
    ]


@contextlib.contextmanager
def _telling(files: BundleFiles, place: KeyPath) -> Iterator[None]:
    """Add the place in the bundle to an error."""
    try:
        yield
    except InvalidArgument as error:
        raise files.fault(place, error.message) from error


def _with_draft(
    files: BundleFiles, at: int, entry: DraftEntry, its: FoundConfiguration,
    found: Mapping[str, FoundConfiguration], chips: list[ChipSpec],
) -> FoundConfiguration:  # fmt: skip
    """Return a configuration with its draft, which must suit it."""
    place: KeyPath = ("configurations", at, "draft")
    if entry.expert is None:
        assert entry.pef is not None and entry.checkpoint is not None
        draft = _read(files, place, Configuration(name="draft", pef=entry.pef), chips)
        checkpoint = files.find(entry.checkpoint, (*place, "checkpoint"))
    else:
        number, expert = next(each for each in enumerate(files.bundle.experts) if each[1].name == entry.expert)
        draft, checkpoint = (
            found[expert.configuration],
            files.find(expert.checkpoint, ("experts", number, "checkpoint")),
        )
    with _telling(files, place):
        its.text.check_draft(draft.text)
        if not draft.generates:
            raise InvalidArgument("the draft generates no text; expected a language model")
    weights = draft.sizes.weights_bytes
    sizes = replace(
        its.sizes,
        draft_bytes=weights + draft.sizes.caches_bytes + draft.sizes.graphs_bytes,
        draft_weights_bytes=weights,
    )
    return replace(its, sizes=sizes, draft=(draft.pef, checkpoint), tiles=max(its.tiles, draft.tiles))


def _read(
    files: BundleFiles, place: KeyPath, said: Configuration, chips: list[ChipSpec]
) -> FoundConfiguration:  # fmt: skip
    """Compare the PEF of a configuration with the bundle, and sum its memory.

    ``chips``: chips of the PEFs so far; this PEF's chip is added.
    """
    path = files.find(said.pef, (*place, "pef"))
    pef = read_pef(path).pef
    shape = shape_of(pef, said.pef)
    if shape.text is None or shape.purpose != SERVE:
        words = f"{said.pef!r} has purpose={shape.purpose}, task {shape.task}; expected a text model with purpose=serve"
        raise files.fault((*place, "pef"), words)
    chips.append(find_chip(pef.arch))
    if chips[-1] != chips[0]:
        words = f"{said.pef!r} is for {chips[-1].name}, the first for {chips[0].name}; expected one chip"
        raise files.fault((*place, "pef"), words)
    is_found = {"context": shape.text.context, "batch": shape.text.texts, "precision": shape.precision}
    for key, value in is_found.items():
        if getattr(said, key) not in (None, value):
            words = f"{getattr(said, key)!r} differs from the compile of {said.pef!r}; expected {value}"
            raise files.fault((*place, key), words)
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
    return FoundConfiguration(said.name, path, key, shape.text, generates, sizes, None, shape.model, pef.num_tiles)


def describe_bundle(bundle: Bundle, found: FoundBundle) -> dict[str, Any]:
    """Return a bundle as a JSON object for its users: its models, its files, and which parts fit."""
    models: list[dict[str, object]] = []
    for expert in bundle.experts:
        models.append({"name": expert.name, "kind": "expert", "aliases": expert.aliases, "adapter_of": None})
        models += [
            {"name": each.name, "kind": "adapter", "aliases": each.aliases, "adapter_of": expert.name}
            for each in expert.adapters
        ]
    if bundle.router is not None:
        models.append({"name": bundle.router.name, "kind": "router", "aliases": (), "adapter_of": None})
    first = next(iter(found.configurations.values()))
    files = [{"at": ".".join(map(str, path)), "file": text} for path, text in bundle.files()]
    return {
        "name": bundle.name, "box": first.model, "models": models, "files": files,
        "tiles": max(each.tiles for each in found.configurations.values()), **describe_fit(found.fit),
    }  # fmt: skip


def check_checkpoints(found: FoundBundle) -> None:
    """Check that each checkpoint can be read and has a tensor for each parameter of its PEF, and that adapters fit.

    Raises:
        NotFound, InvalidArgument: a checkpoint does not fit; the message names the expert, or the draft's
            configuration.
    """
    from rdukit_serving.device.adapters import place_adapters  # torch: what only serves needs none
    from rdukit_serving.device.parameters import (
        check_stored_ties,
        load_parameters,
        match_parameters,
        merge_adapters,
        open_parameters,
    )

    pefs = {name: read_pef(each.pef).pef for name, each in found.configurations.items()}
    for name, configuration in found.configurations.items():
        if configuration.draft is not None:
            try:
                draft = read_pef(configuration.draft[0]).pef
                with open_parameters(configuration.draft[1], wanted=shape_of(draft, draft.name)) as stored:
                    match_parameters(draft, stored.names)
            except (InvalidArgument, NotFound) as cause:
                raise type(cause)(f"draft of configuration {name}: {cause.message}", **cause.detail) from cause
    for name, expert in found.experts.items():
        try:
            pef = pefs[expert.configuration.name]
            shape = shape_of(pef, pef.name)
            with open_parameters(expert.checkpoint, wanted=shape) as stored:
                match_parameters(pef, stored.names)
                check_stored_ties(shape.tensors, stored)
            check_tokenizer(expert.checkpoint, companion(expert.checkpoint, TOKENIZER_FILE))
            if expert.adapters:
                base = merge_adapters(load_parameters(expert.checkpoint)[1])
                place_adapters(pef, base, expert.adapters)
        except (InvalidArgument, NotFound) as cause:
            raise type(cause)(f"expert {name}: {cause.message}", **cause.detail) from cause

"""Bundle files: a server's experts, their compiled configurations, and their memory. Strict.

A bundle is hostile until checked: it may name files of its own folder only, and each error names its line. On a
platform files are artifacts: ``artifact://ID`` means the file ``ID`` next to the bundle.

Source: bundles of SambaStack (models × configurations of context, batch size and precision); the form is ours.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, Strict, StringConstraints, ValidationError

from rdukit.errors import InvalidArgument, NotFound
from rdukit.strict_yaml import Diagnostic, MarkedYaml, read_yaml
from rdukit.strict_yaml import Path as KeyPath
from rdukit_serving.strict_yaml.schema_errors import Bytes, StrictModel, diagnostics_of

ExpertName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
#: As vendors call models: ``meta-llama/Llama-3.1-8B-Instruct``.
ModelAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,199}$")]
FileOfBundle = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Aliases = Annotated[
    tuple[ModelAlias, ...],
    Field(max_length=32, description="Aliases, such as a vendor's name of the model."),
]
Positive = Annotated[int, Strict(), Field(ge=1)]

MAX_EXPERTS: Final = 1000
#: Prefix of names of platform artifacts.
ARTIFACT: Final = "artifact://"


class DraftEntry(StrictModel):
    """A draft model for a configuration's texts: an expert of the bundle, or files of its own."""

    expert: ExpertName | None = Field(default=None, description="Name of one of the experts, instead of files.")
    pef: FileOfBundle | None = Field(default=None, description="File in the bundle's folder, instead of an expert.")
    checkpoint: FileOfBundle | None = Field(default=None, description="Parameters, in the bundle's folder.")


class Configuration(StrictModel):
    """A PEF compiled to serve text. The other keys must match its compilation."""

    name: ExpertName
    pef: FileOfBundle = Field(description="File in the bundle's folder.")
    context: Positive | None = Field(default=None, description="Largest number of tokens in a text.")
    batch: Positive | None = Field(default=None, description="Number of texts generated at once.")
    precision: Literal["f32", "bf16"] | None = None
    draft: DraftEntry | None = Field(
        default=None, description="Draft model that proposes its experts' tokens without changing their texts."
    )


class AdapterEntry(StrictModel):
    """An adapter (LoRA) for an expert's weights, and its names in requests."""

    name: ExpertName
    checkpoint: FileOfBundle = Field(
        description="Checkpoint of a training with lora_rank, or folder of PEFT's, in the bundle's folder."
    )
    aliases: Aliases = ()


class ExpertEntry(StrictModel):
    """A checkpoint for one configuration, and the names by which requests mean it."""

    name: ExpertName
    configuration: ExpertName = Field(description="Name of one of the configurations.")
    checkpoint: FileOfBundle = Field(description="Folder or safetensors file in the bundle's folder.")
    aliases: Aliases = ()
    adapters: Annotated[tuple[AdapterEntry, ...], Field(max_length=64)] = Field(
        default=(), description="Models that are adapters for these weights; all share a run with the expert."
    )
    pinned: Annotated[bool, Strict()] = Field(
        default=False, description="Whether it is loaded at the start and stays in memory."
    )


class MemoryBudget(StrictModel):
    """Memory for experts. HBM and DDR are emulated, the host's memory is real."""

    host: Bytes = Field(description="Largest number of bytes of weights in this machine's memory.")
    hbm: Bytes | None = Field(default=None, description="Emulated; default: that of the sockets.")
    ddr: Bytes | None = Field(default=None, description="Emulated; default: that of the sockets.")


class RouterEntry(StrictModel):
    """Name behind which an expert is chosen for each prompt; an expert's own name always wins."""

    name: ExpertName
    file: FileOfBundle = Field(description="File in the bundle's folder that rdukit router train wrote.")
    default: ExpertName | None = Field(default=None, description="Expert for choices with a confidence below least.")
    least: float = Field(default=0.0, ge=0, le=1, description="Confidence below which the default expert is chosen.")


class Bundle(StrictModel):
    """A document of a file for: rdukit serve --bundle FILE."""

    apiVersion: Literal["rdukit.dev/v1"]
    kind: Literal["Bundle"]
    name: ExpertName
    sockets: Annotated[int, Strict(), Field(ge=1, le=16)] = Field(
        default=1, description="Number of emulated chips whose HBM, DDR and bandwidth the experts share."
    )
    memory: MemoryBudget
    max_queue: Positive | None = Field(
        default=None, description="Largest number of requests waiting for one expert; default: box.max_queue."
    )
    configurations: Annotated[tuple[Configuration, ...], Field(min_length=1, max_length=32)]
    experts: Annotated[tuple[ExpertEntry, ...], Field(min_length=1, max_length=MAX_EXPERTS)]
    router: RouterEntry | None = Field(
        default=None, description="Router that chooses an expert for prompts that name none."
    )

    def names(self) -> Mapping[str, str]:
        """Return the expert or adapter that each name or alias means."""
        models: list[ExpertEntry | AdapterEntry] = [*self.experts]
        models += [adapter for expert in self.experts for adapter in expert.adapters]
        return {name: model.name for model in models for name in (model.name, *model.aliases)}

    def files(self) -> Iterator[tuple[KeyPath, str]]:
        """Yield each file that it names, with its place in the bundle."""
        for at, configuration in enumerate(self.configurations):
            yield ("configurations", at, "pef"), configuration.pef
            draft = configuration.draft
            if draft is not None and draft.pef is not None and draft.checkpoint is not None:
                yield ("configurations", at, "draft", "pef"), draft.pef
                yield ("configurations", at, "draft", "checkpoint"), draft.checkpoint
        for at, expert in enumerate(self.experts):
            yield ("experts", at, "checkpoint"), expert.checkpoint
            for number, adapter in enumerate(expert.adapters):
                yield ("experts", at, "adapters", number, "checkpoint"), adapter.checkpoint
        if self.router is not None:
            yield ("router", "file"), self.router.file


class BundleFiles:
    """A bundle with the folder in which its files are, and other folders that it may name."""

    def __init__(
        self, bundle: Bundle, where: Path, marked: MarkedYaml, mounts: Sequence[Path] = (), *,
        is_of_artifacts: bool = False,
    ) -> None:  # fmt: skip
        """``is_of_artifacts``: it may name artifacts only."""
        self.bundle = bundle
        self.where = where
        self._marked = marked
        self._is_of_artifacts = is_of_artifacts
        self._roots = [root.resolve() for root in (where.parent, *mounts)]

    def find(self, text: str, path: KeyPath) -> Path:
        """Return the file that the bundle names at ``path``.

        Raises:
            InvalidArgument: the file is outside the allowed folders. NotFound: the file is missing.
        """
        if self._is_of_artifacts and not text.startswith(ARTIFACT):
            legal = f"{ARTIFACT}ID, or {ARTIFACT}ID/PATH for a folder"
            raise self.fault(path, f"{text!r} is not an artifact; expected {legal}")
        found = (self._roots[0] / text.removeprefix(ARTIFACT)).resolve()
        if not any(found.is_relative_to(root) for root in self._roots):
            legal = ", ".join(map(str, self._roots))
            raise self.fault(path, f"{text!r} is outside of the bundle's folders; expected a file in {legal}")
        if not found.exists() and self._is_of_artifacts:
            words = f"{text!r} does not exist; expected an artifact that rdukit artifact list shows, and a path in it"
            raise NotFound(self.fault(path, words).message)
        if not found.exists():
            raise NotFound(self.fault(path, f"there is no {text!r} in {self._roots[0]}").message)
        return found

    def fault(self, path: KeyPath, words: str) -> InvalidArgument:
        """Return the error for a fault at ``path``."""
        return InvalidArgument(_told(str(self.where), Diagnostic(self._marked.mark_of(path), path, words)))


def load_bundle(file: Path, mounts: Sequence[Path] = (), *, is_of_artifacts: bool = False) -> BundleFiles:
    """Read a bundle; its files are found later. With ``is_of_artifacts`` only artifacts are allowed.

    Raises:
        NotFound: there is no such file. InvalidArgument: it is wrong; names line, key and what is legal.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as cause:
        raise NotFound(f"there is no bundle {file}") from cause
    except (OSError, UnicodeDecodeError) as cause:
        raise InvalidArgument(f"{file} is not readable text: {cause}") from cause
    bundle, marked = parse_bundle(text, str(file))
    return BundleFiles(bundle, file, marked, mounts, is_of_artifacts=is_of_artifacts)


def parse_bundle(text: str, where: str) -> tuple[Bundle, MarkedYaml]:
    """Return the bundle in ``text``, from a file called ``where``, and the places of its parts (pure).

    Raises:
        InvalidArgument: it is wrong; names line, key and what is legal.
    """
    marked = read_yaml(text)
    faults = list(marked.faults)
    if not faults:
        try:
            bundle = Bundle.model_validate(marked.value)
            faults = [Diagnostic(marked.mark_of(path), path, words) for path, words in _conflicts(bundle)]
        except ValidationError as cause:
            faults = diagnostics_of(cause, marked, bundle_schema())
    if faults:
        raise InvalidArgument("\n  ".join(_told(where, fault) for fault in sorted(faults, key=lambda f: f.mark)))
    return bundle, marked


@cache
def bundle_schema() -> Mapping[str, Any]:
    """Return the JSON schema of a bundle, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Bundle.model_json_schema()}


def _told(where: str, fault: Diagnostic) -> str:
    return f"{where}:{fault.mark.line}:{fault.mark.column}: {fault.key}: {fault.message}"


def _conflicts(bundle: Bundle) -> Iterator[tuple[KeyPath, str]]:
    """Yield contradictions between the parts of a bundle."""
    configurations: set[str] = set()
    for at, configuration in enumerate(bundle.configurations):
        if configuration.name in configurations:
            words = f"{configuration.name!r} is already a configuration; choose another name"
            yield ("configurations", at, "name"), words
        configurations.add(configuration.name)
        if configuration.draft is not None and (words := _wrong_draft(bundle, configuration.draft)):
            yield ("configurations", at, "draft"), words
    names: dict[str, str] = {}
    for at, expert in enumerate(bundle.experts):
        if expert.configuration not in configurations:
            legal = ", ".join(sorted(configurations))
            words = f"{expert.configuration!r} is not a configuration of the bundle; expected {legal}"
            yield ("experts", at, "configuration"), words
        models: list[tuple[KeyPath, ExpertEntry | AdapterEntry]] = [(("experts", at), expert)]
        models += [(("experts", at, "adapters", number), each) for number, each in enumerate(expert.adapters)]
        for where, model in models:
            places: list[tuple[KeyPath, str]] = [((*where, "name"), model.name)]
            places += [((*where, "aliases", number), alias) for number, alias in enumerate(model.aliases)]
            for path, name in places:
                if name in names:
                    yield path, f"{name!r} already names {names[name]!r}; choose another name"
                names.setdefault(name, model.name)
    if (router := bundle.router) is not None:
        if router.name in names:
            yield (
                ("router", "name"),
                f"{router.name!r} already names {names[router.name]!r}; choose another name",
            )
        if router.default is not None and router.default not in names:
            yield ("router", "default"), f"{router.default!r} is not an expert; expected {', '.join(names)}"


def _wrong_draft(bundle: Bundle, draft: DraftEntry) -> str:
    """Return the fault in a draft's keys; "" if there is none."""
    if draft.expert is None:
        return "" if draft.pef and draft.checkpoint else "it needs an expert, or pef and checkpoint"
    if draft.pef or draft.checkpoint:
        return "it names both an expert and files; expected one of them"
    experts = [expert.name for expert in bundle.experts]
    return "" if draft.expert in experts else f"{draft.expert!r} is not an expert; expected {', '.join(experts[:50])}"

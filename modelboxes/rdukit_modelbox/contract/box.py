"""A ModelBox as a value: the checked content of its ``modelbox.yaml``.

A box is one model and one compiler version behind a few verbs, with named parameters and their legal values. Its parts
are in ``contract/``; ``contract/modelbox.schema.json`` is the same as a JSON schema.
"""

import functools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, PrivateAttr, StringConstraints, ValidationError, field_validator, model_validator

from rdukit import __version__
from rdukit.errors import InvalidArgument, NotFound, suggest
from rdukit.strict_yaml import Diagnostic, MarkedYaml, read_yaml
from rdukit_modelbox.contract.allowed_values import ParameterValue, Word
from rdukit_modelbox.contract.inheritance import Change, EffectiveDocument, extend_task, task_names
from rdukit_modelbox.contract.metrics import BoxMetric
from rdukit_modelbox.contract.parameter import BoxParameter
from rdukit_modelbox.contract.parts import (
    ArtifactSlot,
    BoxResources,
    Label,
    Name,
    RelativeFile,
    Sentence,
    Serving,
    Size,
    Verb,
    VerbArtifacts,
)
from rdukit_modelbox.contract.validation import Draft, Problem, find_file_problems, find_problems, read_draft
from rdukit_serving.strict_yaml.schema_errors import StrictModel, diagnostics_of

__all__ = [
    "API_VERSION",
    "BOXES_FOLDER",
    "FILE_NAME",
    "FOLDER_BOXES",
    "ArtifactSlot",
    "Box",
    "BoxParameter",
    "BoxResources",
    "Serving",
    "Verb",
    "VerbArtifacts",
    "box_names",
    "check_compiler_version",
    "find_box_file",
    "load_box",
    "read_document",
    "refusal_of",
]  # fmt: skip

API_VERSION: Final = "rdukit.dev/v1"
BOXES_FOLDER: Final = Path(__file__).parents[1] / "boxes"
#: Boxes that work with any model of a folder; they have no card and no model of their own.
FOLDER_BOXES: Final = Path(__file__).parents[1] / "finetune" / "boxes"
FILE_NAME: Final = "modelbox.yaml"

OwnModule = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._/-]*\.py:[A-Za-z_]\w*$")]


class Box(StrictModel):
    """Content of a ``modelbox.yaml``."""

    api_version: Literal["rdukit.dev/v1"] = Field(alias="apiVersion")
    kind: Literal["ModelBox"] = "ModelBox"
    extends: str | None = Field(
        default=None,
        description="Task whose mode, target, verbs, parameters and artifacts the box inherits; its own keys "
        "override them.",
        json_schema_extra={"enum": [*task_names(), None]},
    )
    name: Name = Field(description="Name of the box: lower-case letters, digits, - and _.")
    title: Sentence = Field(description="One-line title for lists.")
    description: Sentence = Field(description="Inputs and outputs of the model.")
    model: Word = Field(description="Entry of the zoo; with module, a display name (default: the box's name).")
    module: OwnModule | None = Field(
        default=None,
        description="Own model instead of one from the zoo, as FILE.py:FUNCTION with a file in the box's folder; the "
        "function takes no arguments and returns a rdukit_zoo.registry.ModelEntry.",
    )
    sizes: Mapping[Word, Size] = Field(
        default_factory=dict, description="Fixed sizes of the model, which no parameter changes."
    )
    compiler_version: Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+){0,2}$")] = Field(
        alias="compilerVersion", description='Version of the compiler, in quotes: "0.1" takes every 0.1.x.'
    )
    mode: Literal["o0", "o1", "o3"] = Field(description="Fusion mode: o0 none, o1 by rules, o3 full.")
    target: Literal["sn10", "sn30", "sn40l"] = Field(description="Chip generation.")
    verbs: tuple[Verb, ...] = Field(min_length=1, description="Verbs of the box.")
    parameters: tuple[BoxParameter, ...] = Field(default=(), description="Named parameters with their legal values.")
    override: Mapping[Verb, Mapping[Word, Change]] = Field(
        default_factory=dict,
        description="Changes to the task's parameters by verb and name: a default, or default, legal, help, unit, when",
    )
    remove: Mapping[Verb, tuple[Word, ...]] = Field(
        default_factory=dict, description="Parameters of the task that the box removes: names by verb."
    )
    artifacts: Mapping[Verb, VerbArtifacts] = Field(
        default_factory=dict, description="Files and folders that each verb reads and writes."
    )
    metrics: tuple[BoxMetric, ...] = Field(
        default=(), description="Metrics that verbs report: the task's, replaced or extended by the box's."
    )
    uncached: tuple[Verb, ...] = Field(
        default=(),
        description="Verbs whose results pipelines never reuse, because their outputs vary or they have effects "
        "elsewhere.",
    )
    resources: BoxResources = Field(default=BoxResources(), description="Resources of one replica.")
    serving: Serving = Field(default=Serving(), description="Tensors served over the Open Inference Protocol.")
    labels: Mapping[Label, Annotated[str, StringConstraints(max_length=200)]] = Field(
        default_factory=dict, description="Labels for searches."
    )
    licence: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = Field(
        default=None, description="Licence of the model as an SPDX expression, such as Apache-2.0."
    )
    model_card: RelativeFile | None = Field(
        default=None, alias="modelCard", description="A text file inside the box's folder that describes the model."
    )
    _folder: Path = PrivateAttr(default_factory=Path)

    @property
    def folder(self) -> Path:
        """Return the folder of the YAML; ``module`` and ``modelCard`` are inside it."""
        return self._folder

    @field_validator("model", mode="before")
    @classmethod
    def _model_is_a_word(cls, value: object) -> object:
        if isinstance(value, dict):
            raise ValueError("model must be a name; for a model of your own use the key module: FILE.py:FUNCTION")  # noqa: TRY004 pydantic's
        return value

    @model_validator(mode="before")
    @classmethod
    def _own_module_needs_no_model(cls, value: object) -> object:
        if isinstance(value, dict) and "module" in value and "model" not in value:
            name = value.get("name")
            return {**value, "model": name.replace("-", "_") if isinstance(name, str) else name}
        return value

    @model_validator(mode="after")
    def _parts_agree(self) -> "Box":
        draft = Draft(
            self.verbs, dict(enumerate(self.parameters)), frozenset(p.name for p in self.parameters), self.artifacts,
            self.serving, metrics=self.metrics, uncached=self.uncached,
        )  # fmt: skip
        found = find_problems(draft)
        if found:
            raise ValueError("; ".join(f"{'.'.join(map(str, path))}: {words}" for path, words in found))
        return self

    def parameters_of(self, verb: Verb) -> tuple[BoxParameter, ...]:
        """Return the parameters that ``verb`` takes, in the file's order."""
        return tuple(p for p in self.parameters if verb in p.verbs)

    @property
    def is_for_folders(self) -> bool:
        """Return whether the box trains the model of a Hugging Face folder, and has none of its own."""
        return self.folder.parent == FOLDER_BOXES.resolve()

    def slots_of(self, verb: Verb) -> VerbArtifacts:
        """Return the artifact slots of ``verb``."""
        return self.artifacts.get(verb, VerbArtifacts())

    def sizes_with(self, parameters: Mapping[str, ParameterValue]) -> dict[str, ParameterValue]:
        """Return all sizes for the model's builder: those of ``parameters``, and defaults for the others."""
        chosen = {p.name: parameters.get(p.name, p.default) for p in self.parameters if p.size}
        return {**self.sizes, **chosen}


def box_names(folder: Path = BOXES_FOLDER) -> tuple[str, ...]:
    """Return the sorted names of the boxes in ``folder``."""
    return tuple(sorted(path.parent.name for path in folder.glob(f"*/{FILE_NAME}")))


def find_box_file(box: str) -> Path:
    """Return the YAML file of ``box``: a name of a box that is installed, a YAML file, or a folder with one.

    Raises:
        NotFound: no box has this name; the message lists the names.
    """
    for folder in (BOXES_FOLDER, FOLDER_BOXES):
        installed = folder / box / FILE_NAME
        if "/" not in box and installed.is_file():
            return installed
    path = Path(box)
    for candidate in (path, path / FILE_NAME):
        if candidate.is_file():
            return candidate.absolute()
    raise NotFound(
        f"no ModelBox {box!r}; installed: {', '.join(box_names())}; or pass the path of a {FILE_NAME}."
        f"{suggest(box, box_names())}"
    )


def load_box(path: Path) -> Box:
    """Read and check the ``modelbox.yaml`` at ``path``.

    Raises:
        NotFound: the file does not exist.
        InvalidArgument: it is invalid; the message has every fault with file, line, key and legal values.
    """
    if path.parent.parent == BOXES_FOLDER and path.is_file():
        return _load_installed(path, path.stat().st_mtime_ns)
    return _load_box(path)


@functools.lru_cache(maxsize=128)
def _load_installed(path: Path, changed_ns: int) -> Box:
    return _load_box(path)


def _load_box(path: Path) -> Box:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as cause:
        raise NotFound(f"no ModelBox file at {path}") from cause
    except (OSError, UnicodeDecodeError) as cause:
        raise InvalidArgument(f"{path} is not readable text: {cause}") from cause
    marked = read_yaml(text)
    faults = marked.faults
    if not isinstance(marked.value, dict):
        words = f"a ModelBox file is a mapping with the keys {_KEYS}"
        raise _refusal(path, faults or [Diagnostic(marked.mark_of(()), (), words)])
    document = extend_task(marked.value)
    if any(place == ("extends",) for place, _ in document.faults):
        raise _refusal(path, [*faults, *_as_faults(document.faults, marked)])
    box: Box | None = None
    found: list[Problem] = []
    try:
        box = Box.model_validate(document.value)
    except ValidationError as cause:
        # The draft yields errors about the file as a whole, with their keys.
        whole = MarkedYaml(document.value)
        found = [(f.path, f.message) for f in diagnostics_of(cause, whole, Box.model_json_schema()) if f.path]
    # A valid box has already passed the check that its parts agree.
    later = [] if box is not None else find_problems(read_draft(document.value))
    later = [*later, *find_file_problems(document.value, path.parent)]
    named = {place for place, _ in found}
    found = [document.in_file(*one) for one in [*found, *(one for one in later if one[0] not in named)]]
    changed = {place for place, _ in document.faults}
    found = [*document.faults, *(one for one in found if one[0] not in changed)]
    faults += _as_faults(found, marked, {fault.path for fault in faults})
    if faults or box is None:
        raise _refusal(path, faults)
    box._folder = path.parent.resolve()
    return box


def read_document(path: Path) -> EffectiveDocument:
    """Return the document at ``path``, merged with its task's."""
    value = read_yaml(path.read_text(encoding="utf-8")).value
    assert isinstance(value, dict)
    return extend_task(value)


def check_compiler_version(box: Box, installed: str = __version__) -> None:
    """Refuse to serve a box made for another compiler.

    Raises:
        InvalidArgument: the box names another version.
    """
    if installed != box.compiler_version and not installed.startswith(box.compiler_version + "."):
        raise InvalidArgument(
            f"box {box.name} is for compiler {box.compiler_version}, but {installed} is installed; install rdukit "
            f"{box.compiler_version} or change compilerVersion in its {FILE_NAME}"
        )


def refusal_of(path: Path, found: Sequence[Problem]) -> InvalidArgument:
    """Return one error for all faults of the file at ``path``, with its lines.

    Places in ``found`` refer to the document merged with its task's.
    """
    marked, document = read_yaml(path.read_text(encoding="utf-8")), read_document(path)
    return _refusal(path, _as_faults([document.in_file(*one) for one in found], marked))


_KEYS: Final = ", ".join(field.alias or name for name, field in Box.model_fields.items())


def _as_faults(
    found: Sequence[Problem], marked: MarkedYaml, known: Collection[tuple[str | int, ...]] = ()
) -> list[Diagnostic]:
    """Add lines to the found faults; ``known`` ones are left out."""
    return [Diagnostic(marked.mark_of(place), place, words) for place, words in found if place not in known]


def _refusal(path: Path, faults: Sequence[Diagnostic]) -> InvalidArgument:
    """Return one error for all faults, the file's first line first."""
    in_order = sorted(faults, key=lambda fault: fault.mark)
    lines = [f"{path}:{f.mark.line}:{f.mark.column}: {f.key}: {f.message}" for f in in_order]
    message = lines[0] if len(lines) == 1 else "\n  ".join([f"{path} has {len(lines)} faults:", *lines])
    detail = [{"line": f.mark.line, "column": f.mark.column, "key": f.key, "message": f.message} for f in in_order]
    return InvalidArgument(message, file=str(path), faults=detail)

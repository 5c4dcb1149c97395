"""A ModelBox as a value: what its ``modelbox.yaml`` says, checked.

A box is one model of the zoo and one compiler version behind four verbs, with named parameters and their legal values.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from rdukit import __version__
from rdukit.errors import InvalidArgument, NotFound
from rdukit_modelbox.legal import Legal, ParameterType, ParameterValue, find_objection

API_VERSION: Final = "rdukit.dev/v1"
BOXES_FOLDER: Final = Path(__file__).with_name("boxes")
FILE_NAME: Final = "modelbox.yaml"

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
Word = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
Sentence = Annotated[str, StringConstraints(min_length=1, max_length=2000, strip_whitespace=True)]


class Verb(StrEnum):
    """What a box can be asked to do."""

    PREPROCESS = "preprocess"
    COMPILE = "compile"
    TRAIN = "train"
    INFER = "infer"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Parameter(_Part):
    """One named parameter: its type, default, legal values and the verbs that take it."""

    name: Word
    type: ParameterType
    default: bool | int | float | str
    legal: Legal = Legal()
    verbs: tuple[Verb, ...] = Field(min_length=1)
    help: Sentence
    #: The value is also a size of the model: it is passed to the zoo entry's builder under the same name.
    size: bool = False

    @model_validator(mode="after")
    def _default_is_legal(self) -> "Parameter":
        objection = find_objection(self.type, self.legal, self.default)
        if objection is not None:
            raise ValueError(f"default of parameter {self.name!r}: {objection}")
        if self.size and self.verbs != (Verb.COMPILE,):
            raise ValueError(f"parameter {self.name!r} is a size of the model; its verbs must be [compile]")
        return self


class Slot(_Part):
    """An artifact that a verb takes or makes."""

    name: Word
    kind: Literal["file", "folder"]
    required: bool = True
    help: Sentence


class Slots(_Part):
    """Artifacts of one verb."""

    inputs: tuple[Slot, ...] = ()
    outputs: tuple[Slot, ...] = ()


class Box(_Part):
    """Everything a ``modelbox.yaml`` says."""

    api_version: Literal["rdukit.dev/v1"] = Field(alias="apiVersion")
    kind: Literal["ModelBox"] = "ModelBox"
    name: Name
    title: Sentence
    description: Sentence
    #: Entry of the zoo's registry.
    model: Word
    #: Sizes of the model that no parameter changes.
    sizes: Mapping[Word, int] = Field(default_factory=dict)
    #: Version of the compiler: ``0.1`` takes every 0.1.x.
    compiler_version: Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+){0,2}$")] = Field(alias="compilerVersion")
    mode: Literal["o0", "o1", "o3"]
    target: Literal["sn10", "sn30"]
    verbs: tuple[Verb, ...] = Field(min_length=1)
    parameters: tuple[Parameter, ...] = ()
    artifacts: Mapping[Verb, Slots] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_agree(self) -> "Box":
        if len(set(self.verbs)) != len(self.verbs):
            raise ValueError("verbs: a verb is listed twice")
        for verb in self.verbs:
            names = [p.name for p in self.parameters if verb in p.verbs]
            twice = sorted({n for n in names if names.count(n) > 1})
            if twice:
                raise ValueError(f"parameters: verb {verb} has more than one parameter named {twice}")
        used = {verb for p in self.parameters for verb in p.verbs} | set(self.artifacts)
        extra = sorted(used - set(self.verbs))
        if extra:
            raise ValueError(f"{', '.join(extra)} is used but not under verbs; there: {', '.join(self.verbs)}")
        return self

    def parameters_of(self, verb: Verb) -> tuple[Parameter, ...]:
        """The parameters that ``verb`` takes, in the file's order."""
        return tuple(p for p in self.parameters if verb in p.verbs)

    def slots_of(self, verb: Verb) -> Slots:
        """The artifacts of ``verb``."""
        return self.artifacts.get(verb, Slots())

    def sizes_with(self, parameters: Mapping[str, ParameterValue]) -> dict[str, int]:
        """All sizes for the zoo entry's builder, those from ``parameters`` of compile included."""
        chosen = {p.name: int(parameters[p.name]) for p in self.parameters if p.size}
        return {**self.sizes, **chosen}


def box_names(folder: Path = BOXES_FOLDER) -> tuple[str, ...]:
    """Names of the boxes in ``folder``, sorted."""
    return tuple(sorted(path.parent.name for path in folder.glob(f"*/{FILE_NAME}")))


def find_box_file(box: str) -> Path:
    """The YAML file of ``box``: a name of a box that is installed, a YAML file, or a folder with one.

    Raises:
        NotFound: none of these; the message lists the names.
    """
    installed = BOXES_FOLDER / box / FILE_NAME
    if "/" not in box and installed.is_file():
        return installed
    path = Path(box)
    for candidate in (path, path / FILE_NAME):
        if candidate.is_file():
            return candidate.absolute()
    raise NotFound(f"no ModelBox {box!r}; installed: {', '.join(box_names())}; or pass the path of a {FILE_NAME}")


def load_box(path: Path) -> Box:
    """Read and check the ``modelbox.yaml`` at ``path``.

    Raises:
        NotFound: there is no file.
        InvalidArgument: not YAML, or a key is missing, unknown or illegal; names file, key and what is legal.
    """
    try:
        value = yaml.safe_load(path.read_text())
    except FileNotFoundError as cause:
        raise NotFound(f"no ModelBox file at {path}") from cause
    except (yaml.YAMLError, UnicodeDecodeError) as cause:
        raise InvalidArgument(f"{path} is not valid YAML: {cause}") from cause
    if not isinstance(value, dict):
        raise InvalidArgument(f"{path}: a ModelBox file is a mapping with the keys {_KEYS}")
    try:
        return Box.model_validate(value)
    except ValidationError as cause:
        faults = [f"{_key_of(error['loc'])}: {_words_of(error)}" for error in cause.errors()]
        raise InvalidArgument(f"{path}: " + "; ".join(faults), file=str(path), faults=faults) from cause


def check_compiler_version(box: Box, installed: str = __version__) -> None:
    """Refuse to serve a box made for another compiler.

    Raises:
        InvalidArgument: the box names another version.
    """
    if installed != box.compiler_version and not installed.startswith(box.compiler_version + "."):
        raise InvalidArgument(
            f"box {box.name} is for compiler {box.compiler_version}, installed is {installed}; "
            f"install rdukit {box.compiler_version} or change compilerVersion in its {FILE_NAME}"
        )


_KEYS: Final = ", ".join(field.alias or name for name, field in Box.model_fields.items())


def _key_of(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) or "file"


def _words_of(error: object) -> str:
    assert isinstance(error, dict)
    if error["type"] == "extra_forbidden":
        return "unknown key" + (f"; legal at the top: {_KEYS}" if len(error["loc"]) == 1 else "")
    return str(error["msg"]).removeprefix("Value error, ")

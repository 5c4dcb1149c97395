"""Parts of a ``modelbox.yaml``: strict mappings, verbs, artifacts, resources and serving."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, Strict, StringConstraints

from rdukit_modelbox.contract.allowed_values import Word
from rdukit_serving.strict_yaml.schema_errors import Bytes, StrictModel

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
Sentence = Annotated[str, StringConstraints(min_length=1, max_length=2000, strip_whitespace=True)]
Flag = Annotated[bool, Strict()]
Count = Annotated[int, Strict()]
Size = Annotated[int, Strict(), Field(ge=0)]


class Verb(StrEnum):
    """Verb of a box."""

    PREPROCESS = "preprocess"
    COMPILE = "compile"
    TRAIN = "train"
    INFER = "infer"
    #: Ours: the published contract has only the other four, and evaluates in Train and Infer.
    EVALUATE = "evaluate"


Scheme = Literal["file", "s3", "http", "https"]
Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16",
    "BYTES",
]  # fmt: skip

#: A path inside a container: absolute, no ``..``, not the root.
MountPoint = Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$", max_length=200)]
Label = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9._/-]{0,61}[a-z0-9])?$")]
#: A relative file name; whether it stays inside the box's folder is checked on opening.
RelativeFile = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._/-]*$", max_length=200)]


class ArtifactSlot(StrictModel):
    """An artifact that a verb takes or makes."""

    name: Word
    kind: Literal["file", "folder", "any"] = Field(description="Kind of artifact; any: a file or a folder.")
    required: Flag = True
    help: Sentence
    mount: MountPoint | None = Field(
        default=None,
        description="Mount folder in a container; relative paths start there if the folder exists.",
    )
    schemes: tuple[Scheme, ...] | None = Field(
        default=None, min_length=1, description="Permitted URI schemes; default: all."
    )


class VerbArtifacts(StrictModel):
    """Artifacts of one verb."""

    inputs: tuple[ArtifactSlot, ...] = ()
    outputs: tuple[ArtifactSlot, ...] = ()


class BoxResources(StrictModel):
    """Resources that one replica needs. Each field is optional; the platform has its own defaults."""

    tiles: Count | None = Field(default=None, ge=1, le=64, description="Tiles to lease.")
    memory: Bytes | None = Field(default=None, description="Memory of the box's processes: 2GiB, 512MiB or bytes.")
    cpus: float | None = Field(default=None, gt=0, le=1024, description="Processor cores; may be fractional.")
    replicas: Count | None = Field(default=None, ge=0, le=1000, description="Copies to run.")


class TensorDescription(StrictModel):
    """A tensor of the Open Inference Protocol, and its symbol in the PEF."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,127}$")]
    symbol: Annotated[str, StringConstraints(min_length=1, max_length=200)] = Field(description="The PEF's symbol.")
    datatype: Datatype | None = Field(default=None, description="Datatype as served; if absent, the symbol's own.")


class Serving(StrictModel):
    """Tensors and batches of the Open Inference Protocol. Each key is optional; the default comes from the PEF."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$")] | None = Field(
        default=None, description="Name of the served model; if absent, the box's."
    )
    max_batch_size: Count | None = Field(
        default=None, ge=1, description="Largest number of rows in a batch, within the PEF's."
    )
    max_queue: Count | None = Field(
        default=None, ge=1, description="Largest number of waiting requests; further ones are refused."
    )
    inputs: tuple[TensorDescription, ...] = Field(default=(), description="Inputs that clients send.")
    outputs: tuple[TensorDescription, ...] = Field(default=(), description="Outputs that clients get.")
    labels: tuple[Annotated[str, StringConstraints(min_length=1, max_length=200)], ...] = Field(
        default=(), description="Names of the classes, in order."
    )
    text: Mapping[Word, Word] | None = Field(
        default=None,
        description="For a text model: the required part (tokenizer) and the infer input that contains it.",
    )

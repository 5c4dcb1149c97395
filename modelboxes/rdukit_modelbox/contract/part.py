"""What all parts of the file share: strict keys, and the kinds of text."""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, Strict, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
Sentence = Annotated[str, StringConstraints(min_length=1, max_length=2000, strip_whitespace=True)]
Flag = Annotated[bool, Strict()]
Count = Annotated[int, Strict()]
Size = Annotated[int, Strict(), Field(ge=0)]


class Verb(StrEnum):
    """What a box can be asked to do."""

    PREPROCESS = "preprocess"
    COMPILE = "compile"
    TRAIN = "train"
    INFER = "infer"


class StrictModel(BaseModel):
    """A mapping in the file: unknown keys are faults, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)

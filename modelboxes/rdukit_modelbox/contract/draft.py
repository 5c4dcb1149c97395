"""What can be read of a file that is partly wrong, so that all that is wrong can be told at once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from rdukit.errors import InvalidArgument
from rdukit_modelbox.contract.agreement import Draft, Problem
from rdukit_modelbox.contract.inside import find_inside
from rdukit_modelbox.contract.parameter import BoxParameter
from rdukit_modelbox.contract.part import Verb
from rdukit_modelbox.contract.parts import Serving, VerbArtifacts

P = TypeVar("P", bound=BaseModel)


def read_draft(value: Mapping[str, Any]) -> Draft:
    """Whatever parts of the file's value are right by themselves."""
    written, artifacts = value.get("parameters"), value.get("artifacts")
    parameters = {n: _find(BoxParameter, p) for n, p in enumerate(written if isinstance(written, list) else [])}
    slots = {
        Verb(verb): _find(VerbArtifacts, these)
        for verb, these in (artifacts.items() if isinstance(artifacts, dict) else ())
        if verb in set(Verb)
    }
    return Draft(
        verbs=_find_verbs(value.get("verbs")),
        parameters={n: p for n, p in parameters.items() if p is not None},
        names=frozenset(
            str(p.get("name")) for p in (written if isinstance(written, list) else []) if isinstance(p, dict)
        ),
        artifacts={verb: these for verb, these in slots.items() if these is not None},
        serving=_find(Serving, value.get("serving", {})),
        is_whole=None not in parameters.values(),
    )


def find_file_problems(value: Mapping[str, Any], folder: Path) -> list[Problem]:
    """Files that the box names and that are not inside its folder."""
    found: list[Problem] = []
    for key in ("module", "modelCard"):
        name = value.get(key)
        if isinstance(name, str):
            try:
                find_inside(folder, name.rpartition(":")[0] if key == "module" else name)
            except InvalidArgument as error:
                found.append(((key,), error.message))
    return found


def _find_verbs(value: object) -> tuple[Verb, ...] | None:
    try:
        return TypeAdapter(tuple[Verb, ...]).validate_python(value) or None
    except ValidationError:
        return None


def _find(part: type[P], value: object) -> P | None:
    try:
        return part.model_validate(value)
    except ValidationError:
        return None

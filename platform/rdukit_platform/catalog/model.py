"""Descriptions of ModelBoxes as values, read from the JSON of ``GET /v1/describe`` (``docs/design/wire.md`` 2)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rdukit.errors import InvalidArgument, NotFound


@dataclass(frozen=True, slots=True)
class Parameter:
    """A named parameter; ``legal`` says in words what it may be, ``schema`` in JSON schema."""

    name: str
    type: str
    default: object
    legal: str
    help: str
    schema: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for an artifact."""

    name: str
    kind: str
    is_required: bool


@dataclass(frozen=True, slots=True)
class Verb:
    """Something a box can do."""

    name: str
    parameters: tuple[Parameter, ...]
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """One ModelBox. ``raw`` is its whole description."""

    name: str
    title: str
    verbs: tuple[Verb, ...]
    raw: Mapping[str, object]

    def verb(self, name: str) -> Verb:
        """The verb called ``name``.

        Raises:
            InvalidArgument: the box has none; the message lists its verbs.
        """
        for verb in self.verbs:
            if verb.name == name:
                return verb
        legal = [verb.name for verb in self.verbs]
        raise InvalidArgument(f"box {self.name!r} has no verb {name!r}; legal: {legal}", legal=legal)


@dataclass(frozen=True, slots=True)
class Boxes:
    """All boxes by name."""

    boxes: Mapping[str, Box]

    def box(self, name: str) -> Box:
        """The box called ``name``.

        Raises:
            NotFound: there is none; the message lists those there are.
        """
        box = self.boxes.get(name)
        if box is None:
            raise NotFound(f"no ModelBox is called {name!r}; legal: {sorted(self.boxes)}", legal=sorted(self.boxes))
        return box


def read_box(raw: Mapping[str, object]) -> Box:
    """A box from its description.

    Raises:
        InvalidArgument: a key is missing or of the wrong type.
    """
    try:
        return Box(
            name=str(raw["name"]),
            title=str(raw.get("title") or raw["name"]),
            verbs=tuple(_read_verb(verb) for verb in _maps(raw["verbs"])),
            raw=raw,
        )
    except (KeyError, TypeError, ValueError) as cause:
        raise InvalidArgument(f"a ModelBox's description is wrong: {cause!r}") from cause


def _read_verb(raw: Mapping[str, object]) -> Verb:
    return Verb(
        name=str(raw["name"]),
        parameters=tuple(
            Parameter(
                name=str(p["name"]),
                type=str(p.get("type", "")),
                default=p.get("default"),
                legal=str(p.get("legal") or ""),
                help=str(p.get("help") or ""),
                schema=_read_schema(p.get("schema")),
            )
            for p in _maps(raw.get("parameters", []))
        ),
        inputs=_read_slots(raw.get("inputs", []), True),
        outputs=_read_slots(raw.get("outputs", []), True),
    )


def _read_schema(raw: object) -> Mapping[str, Any]:
    if raw is not None and not isinstance(raw, Mapping):
        raise TypeError(f"a schema is an object, not {type(raw).__name__}")
    return raw or {}


def _read_slots(raw: object, is_required: bool) -> tuple[Slot, ...]:
    return tuple(Slot(str(s["name"]), str(s.get("kind", "")), bool(s.get("required", is_required))) for s in _maps(raw))


def _maps(raw: object) -> list[Mapping[str, object]]:
    if not isinstance(raw, list) or not all(isinstance(item, Mapping) for item in raw):
        raise TypeError(f"expected a list of objects, not {type(raw).__name__}")
    return raw

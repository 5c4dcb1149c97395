"""Descriptions of ModelBoxes as values, read from the JSON of ``GET /v1/describe`` (``docs/design/wire.md`` 2)."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument, NotFound, suggest
from rdukit.files.tree import is_utf8
from rdukit.units import format_bytes

#: A database's integer takes nine digits.
_VERSION: Final = re.compile(r"[1-9][0-9]{0,8}\Z")
#: Picture in the folder of a tenant's own box, and its largest size in bytes.
PICTURE: Final = "picture.png"
MAX_PICTURE_BYTES: Final = 256 << 10
_PNG_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
#: Limits of a box's folder: bytes, files, and bytes of a path; the same as for an image.
MAX_BYTES: Final = 4 << 20
MAX_FILES: Final = 500
MAX_PATH: Final = 200
#: Characters that multipart forms change in file names.
UNSENDABLE: Final = '"\\' + "".join(map(chr, range(32)))


@dataclass(frozen=True, slots=True)
class Selector:
    """Selector of a box: a name, and a version of a tenant's own box; ``None``: the newest."""

    name: str
    version: int | None = None

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}:{self.version}"

    def takes(self, name: str, version: int | None) -> bool:
        """Return whether the selector matches a box."""
        return self.name == name and self.version in {None, version}


def read_selector(text: str, what: str = "box") -> Selector:
    """Read ``name``, ``name:version`` or ``name@version`` of a box, or of another versioned kind, ``what``.

    Raises:
        InvalidArgument: the version is not a whole number from 1.
    """
    name, mark, version = text.replace("@", ":", 1).partition(":")
    if not mark:
        return Selector(name)
    if not _VERSION.match(version):
        raise InvalidArgument(
            f"{what} {text!r}: version {version!r} is not valid; expected a whole number from 1, as in {name}:1, or "
            f"only {name!r} for the newest"
        )
    return Selector(name, int(version))


@dataclass(frozen=True, slots=True)
class VerbParameter:
    """A named parameter; ``legal`` describes its values in words, ``schema`` as a JSON schema."""

    name: str
    type: str
    default: object
    legal: str
    help: str
    schema: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VerbSlot:
    """A place for an artifact."""

    name: str
    kind: str
    is_required: bool


@dataclass(frozen=True, slots=True)
class VerbMetric:
    """A number that a verb reports. ``better``: higher, lower or empty; ``reported``: result, progress or both."""

    name: str
    help: str = ""
    unit: str = ""
    better: str = ""
    reported: str = "result"


@dataclass(frozen=True, slots=True)
class BoxVerb:
    """Something a box can do."""

    name: str
    parameters: tuple[VerbParameter, ...]
    inputs: tuple[VerbSlot, ...]
    outputs: tuple[VerbSlot, ...]
    #: Empty: it may report any.
    metrics: tuple[VerbMetric, ...] = ()
    #: Whether pipelines may reuse its outputs.
    is_cached: bool = True


@dataclass(frozen=True, slots=True)
class BoxDescription:
    """Description of a ModelBox, ``raw`` as a whole."""

    name: str
    title: str
    verbs: tuple[BoxVerb, ...]
    raw: Mapping[str, object]
    #: Version of a tenant's own box; ``None``: the box is rdukit's.
    version: int | None = None
    #: SVG picture of the model's task, for rdukit's boxes.
    svg: bytes | None = None

    def verb(self, name: str) -> BoxVerb:
        """Return the verb called ``name``.

        Raises:
            InvalidArgument: the box has none; the message lists its verbs.
        """
        for verb in self.verbs:
            if verb.name == name:
                return verb
        legal = [verb.name for verb in self.verbs]
        said = f"box {self.name!r} has no verb {name!r}; expected {', '.join(legal)}"
        raise InvalidArgument(said + _hint(name, legal), legal=legal)


@dataclass(frozen=True, slots=True)
class Boxes:
    """Boxes by name, or by the selector that requested them."""

    boxes: Mapping[str, BoxDescription]

    def box(self, name: str) -> BoxDescription:
        """Return the box called ``name``.

        Raises:
            NotFound: there is no such box; the message lists the existing ones.
        """
        box = self.boxes.get(name)
        if box is None:
            raise unknown_box(name, self.boxes)
        return box


def directions_of(boxes: Boxes) -> dict[str, str]:
    """Return the metrics that boxes declare for judging a model, each with its direction (pure)."""
    judging = [
        verb for box in boxes.boxes.values() for verb in box.verbs if verb.name in {"train", "evaluate", "infer"}
    ]
    return {metric.name: metric.better for verb in judging for metric in verb.metrics if metric.reported != "progress"}


def unknown_box(name: str, names: Iterable[str]) -> NotFound:
    """Return the error for a name that no box has; it lists the names that boxes have."""
    legal = sorted(names)
    said = f"unknown ModelBox {name!r}; expected {', '.join(legal)}; add your own with: rdukit box install FOLDER"
    return NotFound(said + _hint(name, legal), legal=legal)


def _hint(name: str, legal: Iterable[str]) -> str:
    """Return a suggestion for the end of a sentence, if a similar name exists."""
    near = suggest(name, legal)
    return f".{near}" if near else ""


def check_files(sizes: Mapping[str, int]) -> None:
    """Refuse an invalid box folder, by the paths and sizes of its files (pure).

    Raises:
        InvalidArgument: too many files, too many bytes, or too long a path.
    """
    for path in sizes:
        if len(path.encode()) > MAX_PATH:
            raise InvalidArgument(f"{path[:40]!r}… has {len(path)} characters; expected paths of up to {MAX_PATH}")
    total = sum(sizes.values())
    if len(sizes) > MAX_FILES or total > MAX_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        raise InvalidArgument(
            f"the folder has {len(sizes)} files of {format_bytes(total)}; expected up to {MAX_FILES} files of "
            f"{format_bytes(MAX_BYTES)} in a box. The largest is {largest} ({format_bytes(sizes[largest])}). Move "
            "data, PEFs and checkpoints out of the folder, and give them to jobs as inputs (rdukit artifact add)"
        )


def read_box_folder(folder: Path) -> list[tuple[str, Path]]:
    """Return the files of a box: all but hidden ones and ``__pycache__``.

    Raises:
        NotFound: there is no such folder.
        InvalidArgument: there is a link, no file at all, or more than a box may have.
    """
    if not folder.is_dir():
        raise NotFound(f"there is no folder {folder}")
    found = []
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if any(part.startswith(".") or part == "__pycache__" for part in parts):
            continue
        if not is_utf8(path.name) or set(path.name) & set(UNSENDABLE):
            raise InvalidArgument(
                f"the name {str(path)!r} cannot be sent; rename it without quotes, \\ and control characters"
            )
        if path.is_symlink():
            raise InvalidArgument(f"{path} is a link, but a box may contain only files; copy the link's target")
        if path.is_file():
            found.append(("/".join(parts), path))
    if not found:
        raise InvalidArgument(f"{folder} is empty; a box is a folder with a modelbox.yaml: rdukit box new writes one")
    # Checked before anything is sent: the folder may have gigabytes.
    check_files({name: path.stat().st_size for name, path in found})
    return found


def check_picture(data: bytes) -> None:
    """Refuse anything but a PNG as the picture of a tenant's own box (pure).

    Raises:
        InvalidArgument: the file is not a PNG, or is too large.
    """
    if len(data) > MAX_PICTURE_BYTES:
        raise InvalidArgument(
            f"{PICTURE} has {format_bytes(len(data))}; expected up to {format_bytes(MAX_PICTURE_BYTES)}"
        )
    if not data.startswith(_PNG_SIGNATURE):
        raise InvalidArgument(f"{PICTURE} is not a PNG; expected an image in PNG, or none")


def read_box(raw: Mapping[str, object], version: int | None = None) -> BoxDescription:
    """Return a box from its description.

    A version means a tenant's own box: its patterns are not evaluated here, because a regular expression can block the
    platform.

    Raises:
        InvalidArgument: a key is missing or of the wrong type.
    """
    raw, svg = _without_svg(raw) if version is None else (raw, None)
    try:
        return BoxDescription(
            name=str(raw["name"]),
            title=str(raw.get("title") or raw["name"]),
            verbs=tuple(_read_verb(verb, version is None) for verb in _maps(raw["verbs"])),
            raw=raw,
            version=version,
            svg=svg,
        )
    except (KeyError, TypeError, ValueError) as cause:
        raise InvalidArgument(f"a ModelBox's description is not valid: {cause!r}") from cause


def _without_svg(raw: Mapping[str, object]) -> tuple[Mapping[str, object], bytes | None]:
    """Remove the picture and its local path from a description's model card; its text stays."""
    card = raw.get("card")
    picture = card.get("picture") if isinstance(card, Mapping) else None
    if not isinstance(card, Mapping) or not isinstance(picture, Mapping) or not isinstance(picture.get("svg"), str):
        return raw, None
    words = {key: value for key, value in picture.items() if key not in {"svg", "file"}}
    return {**raw, "card": {**card, "picture": words}}, str(picture["svg"]).encode()


def _read_verb(raw: Mapping[str, object], has_patterns: bool) -> BoxVerb:
    return BoxVerb(
        name=str(raw["name"]),
        parameters=tuple(
            VerbParameter(
                name=str(p["name"]),
                type=str(p.get("type", "")),
                default=p.get("default"),
                legal=str(p.get("legal") or ""),
                help=str(p.get("help") or ""),
                schema=_read_schema(p.get("schema"), has_patterns),
            )
            for p in _maps(raw.get("parameters", []))
        ),
        inputs=_read_slots(raw.get("inputs", []), True),
        outputs=_read_slots(raw.get("outputs", []), True),
        metrics=tuple(
            VerbMetric(
                str(each["name"]),
                **{key: str(each[key]) for key in ("help", "unit", "better", "reported") if each.get(key)},
            )
            for each in _maps(raw.get("metrics", []))
        ),
        is_cached=not raw.get("uncached", False),
    )


def _read_schema(raw: object, has_patterns: bool) -> Mapping[str, Any]:
    if raw is not None and not isinstance(raw, Mapping):
        raise TypeError(f"a schema is an object, not {type(raw).__name__}")
    if not raw or has_patterns:
        return raw or {}
    schema = {key: value for key, value in raw.items() if key != "pattern"}
    if "x-cases" in schema:
        schema["x-cases"] = [_read_schema(case, False) for case in _maps(schema["x-cases"])]
    return schema


def _read_slots(raw: object, is_required: bool) -> tuple[VerbSlot, ...]:
    return tuple(
        VerbSlot(str(s["name"]), str(s.get("kind", "")), bool(s.get("required", is_required))) for s in _maps(raw)
    )


def _maps(raw: object) -> list[Mapping[str, object]]:
    if not isinstance(raw, list) or not all(isinstance(item, Mapping) for item in raw):
        raise TypeError(f"expected a list of objects, not {type(raw).__name__}")
    return raw

"""Catalog entries for a tenant: rdukit's, and its own boxes, experts and artifacts."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit.errors import InvalidArgument, NotFound, suggest
from rdukit.strict_json import find_number
from rdukit_platform.catalog.entries import ARTIFACT_KINDS, Entry, EntryKind, EntryQuery
from rdukit_platform.catalog.experts import get_expert, selector_of
from rdukit_platform.catalog.figures import figures_of
from rdukit_platform.catalog.model import BoxDescription, Boxes, Selector, read_selector
from rdukit_platform.catalog.own import box_of, get_own, newest_own
from rdukit_platform.db.models import ArtifactRow, ExpertRow, JobRow

#: Largest number of artifacts, and of experts' versions, that a search examines, newest first.
MAX_LOOKED: Final = 2000
#: Figure of a card with the training time.
_TRAINED_S: Final = "train_seconds"
_DEFAULT: Final = "default"


def read_entries(
    session: Session, boxes: Boxes, tenant_id: str, query: EntryQuery, *, with_artifacts: bool
) -> list[Entry]:
    """Return the entries that a tenant can find: all boxes and models, its newest experts and, ``with_artifacts``, its
    newest checkpoints, PEFs and data sets.

    Kinds outside the query are read, too, because they are counted.
    """
    own = {row.name: (box_of(row), row.created_at) for row in newest_own(session, tenant_id)}
    found = entries_of_boxes(boxes)
    found += [replace(entry_of_box(box), created_at=at) for name, (box, at) in own.items() if name not in boxes.boxes]
    bases = _bases(found)
    experts = select(ExpertRow).where(ExpertRow.tenant_id == tenant_id)
    if not query.with_deprecated:
        experts = experts.where(ExpertRow.deprecated_at.is_(None))
    rows = session.scalars(experts.order_by(ExpertRow.created_at.desc(), ExpertRow.id).limit(MAX_LOOKED))
    found += [_entry_of_expert(row, bases) for row in rows]
    return [*found, *_read_artifacts(session, tenant_id, bases)] if with_artifacts else found


def get_entry(session: Session, boxes: Boxes, tenant_id: str, text: str, *, with_artifacts: bool) -> Entry:
    """Return the entry that ``text`` names: ``KIND/NAME``, or a name that only one kind has.

    ``gpt2`` is a box, ``gpt2/medium`` a published size of its model, ``digits:2`` a version of an expert (``digits``
    its newest), ``art-…`` an artifact.

    Raises:
        NotFound: the tenant has nothing of this name.
        InvalidArgument: a box and an expert have this name.
    """
    kind, _, name = text.partition("/")
    kinds = [EntryKind(kind)] if name and kind in set(EntryKind) else list(EntryKind)
    name = name if len(kinds) == 1 else text
    shipped = entries_of_boxes(boxes)
    bases = _bases([*(entry_of_box(box_of(row)) for row in newest_own(session, tenant_id)), *shipped])
    found = [entry for entry in shipped if entry.kind in kinds and entry.name == name]
    if EntryKind.BOX in kinds and not found:
        found += _find_own_box(session, boxes, tenant_id, name)
    if EntryKind.EXPERT in kinds:
        found += _find_expert(session, tenant_id, name, bases)
    if with_artifacts and name.startswith("art-"):
        found += [entry for entry in _read_artifacts(session, tenant_id, bases, name) if entry.kind in kinds]
    if not found:
        raise NotFound(
            f"the catalog has no entry {text[:128]!r}; expected a box, MODEL/SIZE, an expert as NAME:VERSION, or the "
            "id of a checkpoint, PEF or data set; search with: rdukit catalog search WORDS"
            + (f".{near}" if (near := suggest(name, dict.fromkeys(entry.name for entry in shipped))) else "")
        )
    if len(found) > 1:
        legal = [entry.id for entry in found]
        raise InvalidArgument(f"{text[:128]!r} names {' and '.join(legal)}; say which", legal=legal)
    return found[0]


def entries_of_boxes(boxes: Boxes) -> list[Entry]:
    """Return rdukit's boxes, and the published sizes of their zoo models (pure)."""
    entries = [entry_of_box(box) for _, box in sorted(boxes.boxes.items())]
    models: dict[str, Entry] = {}
    for box in entries:
        for size, count in box.sizes.items():
            name = f"{box.family}/{size}"
            # If several boxes run a model, the box of the same name, else the first.
            if name not in models or box.name == box.family:
                models[name] = replace(
                    box, id=f"{EntryKind.MODEL}/{name}", kind=EntryKind.MODEL, name=name, box=box.name,
                    title=f"{box.family} {size}" if size != _DEFAULT else f"{box.family}, the box's own size",
                    parameters=count, sizes={}, metrics={}, projected={}, recipes={}, picture="",
                )  # fmt: skip
    return [*entries, *models.values()]


def entry_of_box(box: BoxDescription) -> Entry:
    """Return a box as an entry (pure). Fields of a tenant's own box are used only if they have the right type."""
    raw = box.raw
    card = _mapping(raw.get("card")) if box.version is None else {}
    sizes = {str(name): int(count) for name, count in _numbers(card.get("parameters")).items()}
    measured = {name: value for name, value in _mapping(card.get("measured")).items() if name != _TRAINED_S}
    projected = {
        str(chip): seconds
        for chip, figures in _mapping(card.get("projected")).items()
        if (seconds := find_number(_mapping(figures).get("step_seconds"))) is not None
    }
    recipes = {str(kind): figures_of(_mapping(_mapping(one).get("reached")))
               for kind, one in _mapping(raw.get("recipes")).items() if _mapping(one).get("reached")}  # fmt: skip
    name = str(Selector(box.name, box.version))
    return Entry(
        id=f"{EntryKind.BOX}/{name}", kind=EntryKind.BOX, name=name, title=box.title, box=name,
        description=_text(raw.get("description")), task=_text(card.get("task") or raw.get("task")),
        family=_text(raw.get("model")), modality=_text(card.get("modality")),
        licence=_text(card.get("licence") or raw.get("licence")), source=_text(card.get("source")),
        is_own=box.version is not None, parameters=sizes.get(_DEFAULT), sizes=sizes, metrics=figures_of(measured),
        projected=projected, recipes=recipes, picture=_picture_of(box, card),
    )  # fmt: skip


def _find_own_box(session: Session, boxes: Boxes, tenant_id: str, name: str) -> list[Entry]:
    try:
        row = get_own(session, boxes, tenant_id, name)
    except (NotFound, InvalidArgument):
        return []
    return [replace(entry_of_box(box_of(row)), created_at=row.created_at)]


def _find_expert(session: Session, tenant_id: str, name: str, bases: Mapping[str, Entry]) -> list[Entry]:
    try:
        return [_entry_of_expert(get_expert(session, tenant_id, name), bases)]
    except (NotFound, InvalidArgument):
        return []


def _entry_of_expert(row: ExpertRow, bases: Mapping[str, Entry]) -> Entry:
    name, box = str(selector_of(row)), str(Selector(row.box, row.box_version))
    base = bases.get(row.box, _NO_BASE)
    figures = figures_of(row.metrics)
    return Entry(
        id=f"{EntryKind.EXPERT}/{name}", kind=EntryKind.EXPERT, name=name, title=name, description=row.description,
        task=base.task, family=base.family, modality=base.modality, licence=row.licence, source=base.source, box=box,
        job=row.job_id, is_own=True, parameters=_count_of(figures), metrics=figures, created_at=row.created_at,
        deprecated=(row.deprecated_reason or "deprecated") if row.deprecated_at is not None else None,
    )  # fmt: skip


def _read_artifacts(
    session: Session, tenant_id: str, bases: Mapping[str, Entry], artifact_id: str | None = None
) -> Iterator[Entry]:
    """Read the tenant's newest artifacts of the listed kinds, or the one with an id."""
    of_tenant = select(ArtifactRow.id).where(ArtifactRow.tenant_id == tenant_id, ArtifactRow.deleted_at.is_(None))
    if artifact_id is not None:
        looked = of_tenant.where(ArtifactRow.id == artifact_id)
    else:
        looked = of_tenant.order_by(ArtifactRow.created_at.desc(), ArtifactRow.id.desc()).limit(MAX_LOOKED)
    columns = (ArtifactRow.id, ArtifactRow.name, ArtifactRow.kind, ArtifactRow.bytes, ArtifactRow.created_at,
               JobRow.id, JobRow.name, JobRow.box, JobRow.box_version, JobRow.result)  # fmt: skip
    query = select(*columns).outerjoin(JobRow, JobRow.id == ArtifactRow.job_id)
    query = query.where(ArtifactRow.id.in_(looked), ArtifactRow.kind.in_([str(kind) for kind in ARTIFACT_KINDS]))
    for id_, name, kind, size, at, job, job_name, box, version, result in session.execute(query):
        base = bases.get(box or "", _NO_BASE)
        figures = figures_of(result) if kind != EntryKind.DATASET else {}
        yield Entry(
            id=f"{kind}/{id_}", kind=EntryKind(kind), name=id_, title=f"{name} of {job_name}" if job_name else name,
            task=base.task, family=base.family, modality=base.modality,
            licence=base.licence if kind != EntryKind.DATASET else "", box=str(Selector(box, version)) if box else "",
            job=job, is_own=True, parameters=_count_of(figures), bytes=size, metrics=figures, created_at=at,
        )  # fmt: skip


def _bases(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Return the boxes among entries by their names, without versions."""
    return {read_selector(entry.name).name: entry for entry in entries if entry.kind is EntryKind.BOX}


_NO_BASE: Final = Entry(id="", kind=EntryKind.BOX, name="", title="")


def _count_of(figures: Mapping[str, object]) -> int | None:
    count = figures.get("parameters")
    return count if isinstance(count, int) and not isinstance(count, bool) else None


def _picture_of(box: BoxDescription, card: Mapping[str, object]) -> str:
    if box.svg is not None:
        return _text(_mapping(card.get("picture")).get("alt")) or box.title
    return box.title if box.version is not None and "picture" in box.raw else ""


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _numbers(value: object) -> dict[str, float]:
    found = {str(name): find_number(count) for name, count in _mapping(value).items()}
    return {name: count for name, count in found.items() if count is not None}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""

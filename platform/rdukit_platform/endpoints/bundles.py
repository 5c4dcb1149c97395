"""Bundles of experts whose files are artifacts: find the artifacts, check the bundle, and lay out its files.

A bundle is an artifact of the kind ``bundle``: a file for ``rdukit serve`` that names its files ``artifact://ID`` or
``artifact://ID/PATH``. Its language belongs to the server, whose process checks it; this module only finds the names of
artifacts. The artifacts become the bundle's lineage, and are kept with it.
"""

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit.errors import InvalidArgument, NotFound, Unavailable
from rdukit_platform.artifacts.service import get_artifact
from rdukit_platform.artifacts.store import BlobStore
from rdukit_platform.catalog.catalog import Catalog, incoming_folder
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import ArtifactRow, LineageRow

BUNDLE: Final = "bundle"
BUNDLE_FILE: Final = "bundle.yaml"
MAX_BUNDLE_BYTES: Final = 256 << 10
MAX_ARTIFACTS: Final = 256
#: Largest number of files in a folder that a bundle names; checkpoints have a few.
MAX_FILES: Final = 10_000
_REFERENCE: Final = re.compile(r"artifact://(?P<id>[a-z]+-[a-z0-9]+)(?P<path>(?:/[\w.+@-]+)*)")


@dataclass(frozen=True, slots=True)
class CheckedBundle:
    """A bundle that can be served: its artifact, its parts, and its models."""

    bundle_id: str
    #: Key of the bundle, as ``experts.0.checkpoint`` → the artifact that it names.
    parts: Mapping[str, str]
    #: Models as in ``EndpointRevisionRow.models``, the first expert first.
    models: Sequence[dict[str, object]]
    #: The box that compiled its first PEF, and that PEF.
    box: str
    pef_id: str
    #: Largest number of tiles that one of its PEFs was compiled for.
    tiles: int


def find_references(text: str) -> dict[str, set[str]]:
    """Return the artifacts that a text names, each with the named paths inside; "" is the complete artifact (pure)."""
    found: dict[str, set[str]] = {}
    for match in _REFERENCE.finditer(text):
        found.setdefault(match["id"], set()).add(match["path"].strip("/"))
    return found


def read_checked(bundle_id: str, checked: Mapping[str, object]) -> CheckedBundle:
    """Parse the check's report of a bundle that can be served (pure).

    Raises:
        Unavailable: the report is malformed.
    """
    try:
        files, models, tiles = checked["files"], checked["models"], checked["tiles"]
        if not (isinstance(files, list) and isinstance(models, list) and isinstance(tiles, int)):
            raise TypeError("files and models are lists, tiles a number")
        parts = {str(each["at"]): next(iter(find_references(each["file"]))) for each in files}
        return CheckedBundle(bundle_id, parts, models, str(checked["box"]), next(iter(parts.values())), tiles)
    except (LookupError, TypeError, StopIteration) as cause:
        raise Unavailable(f"the check of bundle {bundle_id} returned a malformed report: {cause!r}") from cause


def check_bundle(
    database: Database, store: BlobStore, catalog: Catalog, tenant_id: str, bundle_id: str, folder: Path
) -> CheckedBundle:
    """Check an artifact as a bundle: its language, its tenant's ownership of all artifacts, and its fit.

    Args:
        folder: parent of the temporary folder for the check.
    Raises:
        NotFound: the tenant has no such artifact.
        InvalidArgument: it is not a valid bundle; the message has all faults with their lines.
        Overloaded, Unavailable: it cannot be checked now.
    """
    with database.read() as session:
        text = read_bundle(session, store, tenant_id, bundle_id)
        references = find_references(text)
        if len(references) > MAX_ARTIFACTS:
            raise InvalidArgument(
                f"bundle {bundle_id} names {len(references)} artifacts; expected up to {MAX_ARTIFACTS}"
            )
        # Artifacts of other tenants count as missing: the check reports the line that names one.
        rows = _find_artifacts(session, tenant_id, references)
    with incoming_folder(folder) as inside:
        for row in rows:
            _lay_out(store, row, inside / row.id, references[row.id])
        file = inside / BUNDLE_FILE
        file.write_text(text, encoding="utf-8")
        return read_checked(bundle_id, catalog.check_bundle(file, tenant_id))


def read_bundle(session: Session, store: BlobStore, tenant_id: str, bundle_id: str) -> str:
    """Return the text of a bundle.

    Raises:
        NotFound: the tenant has no such artifact. InvalidArgument: the artifact is not a bundle.
    """
    row = get_artifact(session, tenant_id, bundle_id)
    if row.is_folder or row.kind != BUNDLE or row.bytes > MAX_BUNDLE_BYTES:
        what = "folder" if row.is_folder else f"file of {row.bytes} bytes"
        raise InvalidArgument(
            f"artifact {bundle_id} is a {what} of the kind {row.kind!r}; expected a bundle.yaml of up to "
            f"{MAX_BUNDLE_BYTES} bytes, added with: rdukit artifact add bundle.yaml --kind {BUNDLE}"
        )
    try:
        return b"".join(store.read(row.digest)).decode()
    except UnicodeDecodeError as cause:
        raise InvalidArgument(f"artifact {bundle_id} is not text: {cause.reason}; expected a bundle.yaml") from cause


def keep_parts(session: Session, tenant_id: str, bundle: CheckedBundle) -> None:
    """Record a bundle's parts as its lineage. The parts cannot be deleted until the transaction ends.

    Raises:
        NotFound: a part was deleted meanwhile.
    """
    get_artifact(session, tenant_id, bundle.bundle_id, is_locked=True)
    known = {(row.parent, row.slot) for row in parts_of(session, bundle.bundle_id)}
    for slot, part in bundle.parts.items():
        get_artifact(session, tenant_id, part, is_kept=True)
        if (part, slot) not in known:
            session.add(LineageRow(child=bundle.bundle_id, parent=part, slot=slot, job_id=None))
    session.flush()


def parts_of(session: Session, bundle_id: str) -> Sequence[LineageRow]:
    """Return the parts of a bundle that was served."""
    query = select(LineageRow).where(LineageRow.child == bundle_id, LineageRow.job_id.is_(None))
    return session.scalars(query.order_by(LineageRow.slot)).all()


def bring_bundle(store: BlobStore, bundle: ArtifactRow, parts: Iterable[ArtifactRow], folder: Path) -> Path:
    """Copy a bundle and its parts into ``folder`` in the layout of its server. Returns the bundle's file.

    Raises:
        NotFound, ContentDamaged: content is missing in the store, or damaged.
    """
    for row in parts:
        store.materialize(row.digest, row.is_folder, folder / row.id)
    file = folder / BUNDLE_FILE
    store.materialize(bundle.digest, False, file)
    return file


def _find_artifacts(session: Session, tenant_id: str, ids: Iterable[str]) -> list[ArtifactRow]:
    found = []
    for artifact_id in ids:
        try:
            found.append(get_artifact(session, tenant_id, artifact_id))
        except NotFound:
            continue
    return found


def _lay_out(store: BlobStore, row: ArtifactRow, target: Path, paths: set[str]) -> None:
    """Lay out at ``target`` the files of an artifact that a check reads: named files, and JSON such as tokenizers.
    Other files are only created.

    Raises:
        InvalidArgument: the folder has too many files.
    """
    if not row.is_folder:
        _link(store, row.digest, target)
        return
    entries = store.entries(row.digest)
    if len(entries) > MAX_FILES:
        raise InvalidArgument(f"artifact {row.id} has {len(entries)} files; expected up to {MAX_FILES} in a bundle")
    target.mkdir()
    for entry in entries:
        place = target / entry.path
        place.parent.mkdir(parents=True, exist_ok=True)
        if entry.path in paths or entry.path.endswith(".json"):
            _link(store, entry.digest, place)
        else:
            place.touch()


def _link(store: BlobStore, digest: str, target: Path) -> None:
    with store.local(digest) as blob:
        try:
            os.link(blob, target)
        except OSError:  # the store is on another file system
            shutil.copyfile(blob, target)

"""Routes of artifacts."""

import re
from typing import Annotated

from fastapi import APIRouter, File, Form, Header, Query, Request, UploadFile, status
from fastapi.responses import StreamingResponse

from rdukit.errors import InvalidArgument, PreconditionFailed, RangeNotSatisfiable
from rdukit_platform.api.audit_requests import entry_of
from rdukit_platform.api.content_threads import reads_content
from rdukit_platform.api.context import Platform
from rdukit_platform.api.dependencies import Admin, ArtifactsReader, ArtifactsWriter, Cursor, Limit, platform_of
from rdukit_platform.artifacts.manifest import FolderEntry, FolderManifest, check_lengths
from rdukit_platform.artifacts.quota import check_quota, read_use
from rdukit_platform.artifacts.removal import delete_artifact, pin_artifact, unpin_artifact
from rdukit_platform.artifacts.service import (
    Artifact,
    ArtifactPage,
    ArtifactUseView,
    Collected,
    Deleted,
    Lineage,
    Link,
    VerifiedArtifact,
    find_file,
    get_artifact,
    list_artifacts,
    plain_name,
    read_lineage_jobs,
    record_artifact,
    verify_artifact,
    walk_lineage,
)
from rdukit_platform.artifacts.service import File as FileView
from rdukit_platform.artifacts.store import BlobStore, Content
from rdukit_platform.artifacts.sweep import collect
from rdukit_platform.audit.service import Act, record
from rdukit_platform.db.models import ArtifactRow
from rdukit_platform.jobs.service import get_job
from rdukit_platform.tenants.scopes import JOBS_READ, allows

router = APIRouter(prefix="/v1/artifacts", tags=["artifacts"])


@router.get("")
def list_(
    request: Request,
    caller: ArtifactsReader,
    kind: Annotated[str | None, Query(description="Only artifacts of this kind, such as pef.")] = None,
    job: Annotated[str | None, Query(description="Only artifacts of this job.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> ArtifactPage:
    """Return the tenant's artifacts, newest first."""
    with platform_of(request).database.read() as session:
        if job is not None:
            get_job(session, caller.tenant_id, job)
        rows, following = list_artifacts(session, caller.tenant_id, kind, job, limit, cursor)
    return ArtifactPage(artifacts=[show_artifact(row) for row in rows], next_cursor=following)


@router.post("", status_code=status.HTTP_201_CREATED)
@reads_content
def add(
    request: Request,
    caller: ArtifactsWriter,
    files: Annotated[list[UploadFile], File(description="One file, or a folder's files named by their paths.")],
    kind: Annotated[str, Form(min_length=1, max_length=32)],
    name: Annotated[str | None, Form(min_length=1, max_length=256)] = None,
    folder: Annotated[bool, Form(description="Keep the files as a folder.")] = False,
) -> Artifact:
    """Add an artifact (multipart form)."""
    platform = platform_of(request)
    if not folder and len(files) != 1:
        raise InvalidArgument(f"{len(files)} files were sent; expected exactly one, or any number with folder=true")
    check_lengths(file.filename or "" for file in files)
    with platform.database.read() as session:
        check_quota(session, caller.tenant_id, sum(file.size or 0 for file in files))
    with platform.store.holding():
        content = _store_folder(platform.store, files) if folder else platform.store.add_stream(files[0].file)
        return _record(platform, caller.tenant_id, name, kind, files, content)


def _record(
    platform: Platform, tenant_id: str, name: str | None, kind: str, files: list[UploadFile], content: Content
) -> Artifact:
    with platform.database.write() as session:
        title = name or files[0].filename or kind
        file_name = None if content.is_folder else plain_name(files[0].filename)
        now = platform.clock.now()
        return show_artifact(record_artifact(session, tenant_id, title, kind, content, now, file_name))


@router.get("/usage")
def use(request: Request, caller: ArtifactsReader) -> ArtifactUseView:
    """Show the tenant's bytes of artifacts, and its limit."""
    with platform_of(request).database.read() as session:
        found = read_use(session, caller.tenant_id)
    return ArtifactUseView(artifacts=found.artifacts, bytes=found.bytes, limit_bytes=found.limit_bytes)


@router.post("/gc")
@reads_content
def collect_garbage(
    request: Request,
    caller: Admin,
    dry_run: Annotated[bool, Query(description="Only list content that would be removed.")] = False,
) -> Collected:
    """Remove content that no tenant's artifact refers to and that is older than ``artifacts.grace_s``."""
    platform = platform_of(request)
    found = collect(platform.database, platform.store, platform.clock.now(), is_dry=dry_run)
    if not dry_run:
        with platform.database.write() as session:
            detail = f"{found.removed} blobs with {found.removed_bytes} bytes"
            record(session, entry_of(request, caller, Act.COLLECT_CONTENT, "content", detail=detail))
    return Collected(
        removed=found.removed, removed_bytes=found.removed_bytes, kept=found.kept, young=found.young, dry_run=dry_run
    )


@router.delete("/{artifact_id}")
def delete(request: Request, artifact_id: str, caller: ArtifactsWriter) -> Deleted:
    """Delete an artifact. Refused while it is pinned or needed; the answer has the reason."""
    platform = platform_of(request)
    with platform.database.write() as session:
        gone = delete_artifact(session, caller.tenant_id, artifact_id, platform.clock.now())
        detail = f"{gone.row.kind} {gone.row.name!r}, {gone.row.bytes} bytes, sha256 {gone.row.digest}"
        record(session, entry_of(request, caller, Act.DELETE_ARTIFACT, gone.row.id, detail=detail))
        return Deleted(id=gone.row.id, bytes=gone.row.bytes, same_content=list(gone.same_content))


@router.put("/{artifact_id}/pin")
def pin(request: Request, artifact_id: str, caller: ArtifactsWriter) -> Artifact:
    """Pin an artifact: it cannot be deleted and does not expire."""
    platform = platform_of(request)
    with platform.database.write() as session:
        row = pin_artifact(session, caller.tenant_id, artifact_id, platform.clock.now())
        record(session, entry_of(request, caller, Act.PIN_ARTIFACT, row.id))
        return show_artifact(row)


@router.delete("/{artifact_id}/pin")
def unpin(request: Request, artifact_id: str, caller: ArtifactsWriter) -> Artifact:
    """Unpin an artifact."""
    platform = platform_of(request)
    with platform.database.write() as session:
        row = unpin_artifact(session, caller.tenant_id, artifact_id)
        record(session, entry_of(request, caller, Act.UNPIN_ARTIFACT, row.id))
        return show_artifact(row)


@router.get("/{artifact_id}")
def show(request: Request, artifact_id: str, caller: ArtifactsReader) -> Artifact:
    """Show one artifact; a folder with its files."""
    platform = platform_of(request)
    with platform.database.read() as session:
        row = get_artifact(session, caller.tenant_id, artifact_id)
    return show_artifact(row, platform.store.manifest(row.digest) if row.is_folder else None)


@router.get("/{artifact_id}/content", response_class=StreamingResponse)
@reads_content
def read(
    request: Request,
    artifact_id: str,
    caller: ArtifactsReader,
    path: Annotated[str | None, Query(description="Which file of a folder.")] = None,
    wanted: Annotated[str | None, Header(alias="range", description="Such as `bytes=1000-`.")] = None,
    if_match: Annotated[str | None, Header(description="Expected digest of the content, in quotes.")] = None,
) -> StreamingResponse:
    """Return the bytes of a file, or of one file of a folder; a range of them continues a broken transfer."""
    platform = platform_of(request)
    with platform.database.read() as session:
        row = get_artifact(session, caller.tenant_id, artifact_id)
    entry = find_file(platform.store, row, path)
    # This precedes the answer: later, damage could only be reported by breaking it off.
    platform.store.check(entry.digest)
    check_match(if_match, entry.digest)
    headers = {"Content-Length": str(entry.bytes), "ETag": f'"{entry.digest}"', "Accept-Ranges": "bytes"}
    found = read_range(wanted, entry.bytes)
    if found is None:
        content = platform.store.read(entry.digest)
        return StreamingResponse(content, media_type="application/octet-stream", headers=headers)
    start, length = found
    headers |= {"Content-Length": str(length), "Content-Range": f"bytes {start}-{start + length - 1}/{entry.bytes}"}
    content = platform.store.read_range(entry.digest, start, length)
    return StreamingResponse(
        content, status.HTTP_206_PARTIAL_CONTENT, media_type="application/octet-stream", headers=headers
    )


@router.post("/{artifact_id}/verify")
@reads_content
def verify(request: Request, artifact_id: str, caller: ArtifactsReader) -> VerifiedArtifact:
    """Read all content of an artifact and compare it with its digests."""
    platform = platform_of(request)
    with platform.database.read() as session:
        row = get_artifact(session, caller.tenant_id, artifact_id)
    return verify_artifact(platform.store, row)


@router.get("/{artifact_id}/lineage")
def lineage(request: Request, artifact_id: str, caller: ArtifactsReader) -> Lineage:
    """Show the artifact's origins, and the artifacts made from it."""
    with platform_of(request).database.read() as session:
        rows, links = walk_lineage(session, caller.tenant_id, artifact_id)
        with_words = allows(caller.scopes, JOBS_READ)
        jobs = read_lineage_jobs(session, caller.tenant_id, rows, links, with_words=with_words)
    return Lineage(
        jobs=jobs,
        artifacts=[show_artifact(row) for row in rows],
        links=[Link(child=x.child, parent=x.parent, slot=x.slot, job_id=x.job_id) for x in links],
    )


def read_range(text: str | None, size: int) -> tuple[int, int] | None:
    """Return the begin and length of the range in a ``Range`` header; ``None``: the complete file (pure).

    Other values than one range of bytes are ignored, as in RFC 9110.

    Raises:
        RangeNotSatisfiable: it begins behind the end.
    """
    found = re.fullmatch(r"bytes=(\d{0,18})-(\d{0,18})", (text or "").replace(" ", ""))
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        start, end = max(size - int(found[2]), 0), size - 1
    else:
        start, end = int(found[1]), min(int(found[2]), size - 1) if found[2] else size - 1
    if start >= size:
        raise RangeNotSatisfiable(
            f"the range {text!r} is beyond the end of the content; expected a range within {size} bytes"
        )
    return (start, end - start + 1) if end >= start else None


def check_match(text: str | None, digest: str) -> None:
    """Refuse where an ``If-Match`` header names other content (pure).

    Raises:
        PreconditionFailed: it does.
    """
    known = {each.strip().strip('"') for each in (text or "*").split(",")}
    if not known & {"*", digest}:
        raise PreconditionFailed(f"the content has digest {digest}, not {text}; fetch it from the beginning")


def show_artifact(row: ArtifactRow, manifest: FolderManifest | None = None) -> Artifact:
    """Return a row as the API shows it; a folder also with its files, if they are given."""
    found = Artifact.model_validate(row, from_attributes=True)
    if manifest is None:
        return found
    files = [FileView.model_validate(file, from_attributes=True) for file in manifest.files]
    return found.model_copy(update={"files": files, "empty_folders": list(manifest.folders)})


def _store_folder(store: BlobStore, files: list[UploadFile]) -> Content:
    entries = []
    for file in files:
        content = store.add_stream(file.file)
        entries.append(FolderEntry(file.filename or "", content.digest, content.bytes))
    return store.add_manifest(entries)

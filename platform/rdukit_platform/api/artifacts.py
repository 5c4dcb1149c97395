"""Routes of artifacts."""

from typing import Annotated

from fastapi import APIRouter, File, Form, Query, Request, UploadFile, status
from fastapi.responses import StreamingResponse

from rdukit.errors import InvalidArgument
from rdukit_platform.api.dependencies import ArtifactsReader, ArtifactsWriter, platform_of
from rdukit_platform.artifacts.service import (
    Artifact,
    ArtifactPage,
    Lineage,
    Link,
    find_file,
    get_artifact,
    list_artifacts,
    plain_name,
    record_artifact,
    walk_lineage,
)
from rdukit_platform.artifacts.service import File as FileView
from rdukit_platform.artifacts.store import BlobStore, Content, FolderEntry
from rdukit_platform.db.models import ArtifactRow

router = APIRouter(prefix="/v1/artifacts", tags=["artifacts"])


@router.get("")
def list_(
    request: Request,
    caller: ArtifactsReader,
    kind: str | None = None,
    job: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> ArtifactPage:
    """Return the tenant's artifacts, newest first."""
    with platform_of(request).database.read() as session:
        rows, following = list_artifacts(session, caller.tenant_id, kind, job, limit, cursor)
    return ArtifactPage(artifacts=[show_artifact(row) for row in rows], next_cursor=following)


@router.post("", status_code=status.HTTP_201_CREATED)
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
        raise InvalidArgument(f"{len(files)} files were sent; legal: exactly one, or any number with folder=true")
    content = _store_folder(platform.store, files) if folder else platform.store.add_stream(files[0].file)
    with platform.database.write() as session:
        title = name or files[0].filename or kind
        file_name = None if folder else plain_name(files[0].filename)
        now = platform.clock.now()
        return show_artifact(record_artifact(session, caller.tenant_id, title, kind, content, now, file_name))


@router.get("/{artifact_id}")
def show(request: Request, artifact_id: str, caller: ArtifactsReader) -> Artifact:
    """Show one artifact; a folder with its files."""
    platform = platform_of(request)
    with platform.database.read() as session:
        row = get_artifact(session, caller.tenant_id, artifact_id)
    return show_artifact(row, platform.store.entries(row.digest) if row.is_folder else None)


@router.get("/{artifact_id}/content", response_class=StreamingResponse)
def read(
    request: Request,
    artifact_id: str,
    caller: ArtifactsReader,
    path: Annotated[str | None, Query(description="Which file of a folder.")] = None,
) -> StreamingResponse:
    """Return the bytes of a file, or of one file of a folder."""
    platform = platform_of(request)
    with platform.database.read() as session:
        row = get_artifact(session, caller.tenant_id, artifact_id)
    entry = find_file(platform.store, row, path)
    # Before the answer begins: afterwards damage could only be told by breaking it off.
    platform.store.check(entry.digest)
    headers = {"Content-Length": str(entry.bytes), "ETag": f'"{entry.digest}"'}
    return StreamingResponse(platform.store.read(entry.digest), media_type="application/octet-stream", headers=headers)


@router.get("/{artifact_id}/lineage")
def lineage(request: Request, artifact_id: str, caller: ArtifactsReader) -> Lineage:
    """Show what the artifact comes from and what came from it."""
    with platform_of(request).database.read() as session:
        rows, links = walk_lineage(session, caller.tenant_id, artifact_id)
    return Lineage(
        artifacts=[show_artifact(row) for row in rows],
        links=[Link(child=x.child, parent=x.parent, slot=x.slot, job_id=x.job_id) for x in links],
    )


def show_artifact(row: ArtifactRow, entries: list[FolderEntry] | None = None) -> Artifact:
    """Return a row as the API shows it."""
    files = None if entries is None else [FileView(path=e.path, digest=e.digest, bytes=e.bytes) for e in entries]
    values = {name: getattr(row, name) for name in Artifact.model_fields if name != "files"}
    return Artifact.model_validate({**values, "files": files})


def _store_folder(store: BlobStore, files: list[UploadFile]) -> Content:
    entries = []
    for file in files:
        content = store.add_stream(file.file)
        entries.append(FolderEntry(file.filename or "", content.digest, content.bytes))
    return store.add_manifest(entries)

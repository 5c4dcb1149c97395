"""Routes of uploads in pieces, which continue after a broken connection, program or gateway."""

from typing import Annotated, Final

from anyio import to_thread
from fastapi import APIRouter, Query, Request, status
from pydantic import BaseModel, Field

from rdukit.errors import RdukitError
from rdukit.settings import resolve
from rdukit_platform.api.artifacts import show_artifact
from rdukit_platform.api.content_threads import reads_content
from rdukit_platform.api.dependencies import ArtifactsWriter, StrictJsonRoute, platform_of
from rdukit_platform.artifacts.manifest import MAX_FILES, FolderEntry
from rdukit_platform.artifacts.quota import check_quota
from rdukit_platform.artifacts.service import Artifact, plain_name, record_artifact
from rdukit_platform.artifacts.store import BlobStore
from rdukit_platform.artifacts.uploads import Upload, Uploads
from rdukit_platform.db.models import ArtifactRow
from rdukit_platform.jobs.schemas import RequestBody
from rdukit_platform.settings import MAX_BODY_BYTES


class ListingRoute(StrictJsonRoute):
    """A route whose body lists files, up to ``gateway.max_body_bytes``."""

    max_values = 250_000


router = APIRouter(prefix="/v1/uploads", tags=["artifacts"], route_class=ListingRoute)

#: Bytes of a piece, unless the limit of bodies is lower.
PIECE_BYTES: Final = 4 << 20


class UploadFile(RequestBody):
    """A file that is to come. ``path``: in the folder, or the file's name."""

    path: Annotated[str, Field(min_length=1, max_length=4096)]
    bytes: Annotated[int, Field(ge=0, lt=1 << 53)]
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256.")]
    executable: Annotated[bool, Field(description="For a folder's file: whether readers may execute it.")] = False


class UploadRequest(RequestBody):
    """Body of ``POST /v1/uploads``."""

    kind: Annotated[str, Field(min_length=1, max_length=32)]
    name: Annotated[str, Field(min_length=1, max_length=256)]
    folder: bool = False
    files: Annotated[list[UploadFile], Field(min_length=1, max_length=MAX_FILES)]
    empty_folders: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=4096)]],
        Field(max_length=MAX_FILES, description="Empty folders in the folder."),
    ] = []


class FileState(BaseModel):
    """A file, and the number of its received bytes."""

    path: str
    bytes: int
    digest: str
    offset: int


class UploadState(BaseModel):
    """An upload: its files in the order of their numbers; the largest piece has ``piece_bytes``."""

    id: str
    files: list[FileState]
    piece_bytes: int


class Came(BaseModel):
    """State of a file's upload: the bytes that have come."""

    offset: int


class FilesCame(BaseModel):
    """Result of sending complete files: the number of the file that follows them."""

    next: int


class Forgotten(BaseModel):
    """The upload that was discarded."""

    id: str


@router.post("", status_code=status.HTTP_201_CREATED)
def begin(request: Request, caller: ArtifactsWriter, body: UploadRequest) -> UploadState:
    """Begin an upload; an equal request continues it."""
    platform = platform_of(request)
    uploads = Uploads(platform.store)
    files = [FolderEntry(file.path, file.digest, file.bytes, file.executable) for file in body.files]

    def ask() -> Upload:
        return uploads.begin(
            caller.tenant_id, body.name, body.kind, files, is_folder=body.folder, empty_folders=body.empty_folders
        )

    upload = ask()
    with platform.database.read() as session:
        if session.get(ArtifactRow, upload.artifact_id) is not None:  # done before: this is another artifact
            uploads.remove(upload)
            upload = ask()
        try:
            check_quota(session, caller.tenant_id, upload.bytes + uploads.pending_bytes(caller.tenant_id, upload.id))
        except RdukitError:
            uploads.remove(upload)
            raise
    return _show(platform.store, upload)


@router.get("/{upload_id}")
def show(request: Request, upload_id: str, caller: ArtifactsWriter) -> UploadState:
    """Show the progress of an upload."""
    store = platform_of(request).store
    return _show(store, Uploads(store).get(caller.tenant_id, upload_id))


@router.put("/{upload_id}/files/{number}")
async def put(
    request: Request,
    upload_id: str,
    number: int,
    caller: ArtifactsWriter,
    offset: Annotated[int, Query(ge=0, description="Offset in the file at which the body begins.")] = 0,
) -> Came:
    """Add the body to a file. Refused (409) unless it begins at the file's end; ``detail.offset`` is that end."""
    piece = await request.body()

    def append() -> int:
        uploads = Uploads(platform_of(request).store)
        return uploads.append(uploads.get(caller.tenant_id, upload_id), number, offset, piece)

    return Came(offset=await to_thread.run_sync(append))


@router.put("/{upload_id}/files")
async def put_files(
    request: Request,
    upload_id: str,
    caller: ArtifactsWriter,
    first: Annotated[int, Query(ge=0, description="Number of the first file in the body.")] = 0,
) -> FilesCame:
    """Add several whole files, whose bytes follow each other in the body in the order of their numbers."""
    data = await request.body()

    def append() -> int:
        uploads = Uploads(platform_of(request).store)
        return uploads.append_files(uploads.get(caller.tenant_id, upload_id), first, data)

    return FilesCame(next=await to_thread.run_sync(append))


@router.post("/{upload_id}/finish", status_code=status.HTTP_201_CREATED)
@reads_content
def finish(request: Request, upload_id: str, caller: ArtifactsWriter) -> Artifact:
    """Create an artifact from a complete upload whose files have the announced digests."""
    platform = platform_of(request)
    uploads = Uploads(platform.store)
    upload = uploads.get(caller.tenant_id, upload_id)
    with platform.database.read() as session:
        known = session.get(ArtifactRow, upload.artifact_id)
    if known is not None:  # the answer was lost
        return show_artifact(known)
    with platform.store.holding():
        content = uploads.store(upload)
        with platform.database.write() as session:
            file_name = None if upload.is_folder else plain_name(upload.files[0].path)
            row = record_artifact(
                session, caller.tenant_id, upload.name, upload.kind, content, platform.clock.now(), file_name,
                upload.artifact_id,
            )  # fmt: skip
    uploads.empty(upload)
    return show_artifact(row)


@router.delete("/{upload_id}")
def forget(request: Request, upload_id: str, caller: ArtifactsWriter) -> Forgotten:
    """Discard an upload and its received files."""
    uploads = Uploads(platform_of(request).store)
    upload = uploads.get(caller.tenant_id, upload_id)
    uploads.remove(upload)
    return Forgotten(id=upload.id)


def _show(store: BlobStore, upload: Upload) -> UploadState:
    uploads = Uploads(store)
    files = [
        FileState(path=file.path, bytes=file.bytes, digest=file.digest, offset=uploads.offset(upload, number))
        for number, file in enumerate(upload.files)
    ]
    return UploadState(id=upload.id, files=files, piece_bytes=min(PIECE_BYTES, resolve(MAX_BODY_BYTES)))

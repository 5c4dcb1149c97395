"""Routes of the catalog, and of the boxes that tenants install."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final

from fastapi import APIRouter, File, Form, Request, Response, UploadFile, status
from pydantic import BaseModel, JsonValue, TypeAdapter
from sqlalchemy.orm import Session

from rdukit.errors import InvalidArgument, NotFound
from rdukit_platform.api.audit_requests import entry_of
from rdukit_platform.api.content_threads import reads_content
from rdukit_platform.api.context import Platform
from rdukit_platform.api.dependencies import BoxesReader, BoxesWriter, Cursor, Limit, platform_of
from rdukit_platform.artifacts.manifest import check_paths, check_relative
from rdukit_platform.artifacts.store import BLOCK, Content
from rdukit_platform.audit.service import Act, record
from rdukit_platform.backends.job_boxes import open_backend
from rdukit_platform.catalog.catalog import incoming_folder
from rdukit_platform.catalog.model import MAX_PICTURE_BYTES, PICTURE, Boxes, check_files, check_picture
from rdukit_platform.catalog.own import (
    check_may_own,
    get_own,
    install_box,
    list_own,
    newest_own,
    uninstall_box,
    versions_of,
)
from rdukit_platform.db.models import BoxRow

router = APIRouter(prefix="/v1", tags=["catalog"])

PICTURE_TYPES: Final[dict[str, dict[str, str]]] = {"image/svg+xml": {}, "image/png": {}}
#: Headers of a picture: it runs and loads nothing, even if it is opened directly.
PICTURE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, max-age=3600",
}


class BoxList(BaseModel):
    """ModelBoxes with their verbs and parameters; the tenant's own have the key ``installed``."""

    boxes: list[dict[str, JsonValue]]


class InstalledBox(BaseModel):
    """A version of a box that the tenant installed."""

    #: Box as a job names it: ``name:version``.
    box: str
    name: str
    version: int
    title: str
    #: SHA-256 of the folder's manifest, or ``sha256:…`` of the image.
    digest: str
    artifact: str | None
    image: str | None
    installed_at: float
    #: Whether this request created it; otherwise the newest version had this content already.
    is_new: bool = False


class InstalledPage(BaseModel):
    """Installed versions, newest first; ``next_cursor`` asks for the rest."""

    boxes: list[InstalledBox]
    next_cursor: str | None


class Uninstalled(BaseModel):
    """Uninstalled versions, in the form in which jobs name them."""

    boxes: list[str]


@router.get("/catalog")
def list_(request: Request, caller: BoxesReader) -> BoxList:
    """List all boxes: rdukit's own, and the newest version of each that the tenant installed."""
    platform = platform_of(request)
    boxes = platform.catalog.boxes()
    with platform.database.read() as session:
        own = own_descriptions(session, boxes, caller.tenant_id)
    shipped = {name: dict(box.raw) for name, box in boxes.boxes.items()}
    return BoxList.model_validate({"boxes": [described for _, described in sorted((own | shipped).items())]})


@router.get("/catalog/{box}")
def show(request: Request, box: str, caller: BoxesReader) -> dict[str, JsonValue]:
    """Show a box's own description. ``NAME:VERSION`` is a version of a tenant's own box."""
    platform = platform_of(request)
    boxes = platform.catalog.boxes()
    if box in boxes.boxes:
        return _as_json(dict(boxes.boxes[box].raw))
    with platform.database.read() as session:
        return _as_json(_describe(session, get_own(session, boxes, caller.tenant_id, box)))


@router.get("/catalog/{box}/picture", response_class=Response, responses={200: {"content": PICTURE_TYPES}})
def picture(request: Request, box: str, caller: BoxesReader) -> Response:
    """Return the picture of a box: SVG for rdukit's boxes, PNG for the tenant's own."""
    return picture_of(platform_of(request), caller.tenant_id, box)


@router.get("/boxes")
def list_installed(request: Request, caller: BoxesReader, limit: Limit = 50, cursor: Cursor = None) -> InstalledPage:
    """Return the versions of boxes that the tenant installed, newest first."""
    with platform_of(request).database.read() as session:
        rows, following = list_own(session, caller.tenant_id, limit, cursor)
    return InstalledPage(boxes=[show_installed(row) for row in rows], next_cursor=following)


@router.post("/boxes", status_code=status.HTTP_201_CREATED, responses={200: {"model": InstalledBox}})
@reads_content
def install(
    request: Request,
    response: Response,
    caller: BoxesWriter,
    files: Annotated[
        list[UploadFile] | None, File(description="The files of the box's folder, named by their paths in it.")
    ] = None,
    image: Annotated[
        str | None,
        Form(
            min_length=1,
            max_length=512,
            description="Alternative to files: an image of the engine that runs job boxes.",
        ),
    ] = None,
) -> InstalledBox:
    """Install a box (form): 201 with a new version, or 200 with the newest if it has this content already."""
    platform = platform_of(request)
    if bool(files) == bool(image):
        raise InvalidArgument("a box is installed from files or from an image; expected one of the two")
    boxes = platform.catalog.boxes()
    with platform.database.read() as session:
        check_may_own(session, caller.tenant_id)
    with platform.store.holding(), incoming_folder(platform.home.installing) as folder:
        digest = None
        if image:
            with closing(open_backend(platform.home)[0]) as backend:
                digest = backend.read_image(image, folder)
        write_files(files or [], folder)
        description = platform.catalog.describe_folder(folder, caller.tenant_id)
        if (folder / PICTURE).is_file() and not image:
            with (folder / PICTURE).open("rb") as stream:
                check_picture(stream.read(MAX_PICTURE_BYTES + 1))
            description = {**description, "picture": PICTURE}
        content = Content(digest, 0, is_folder=False) if digest else platform.store.add_path(folder)
        with platform.database.write() as session:
            now = platform.clock.now()
            installed = install_box(session, boxes, caller.tenant_id, description, content, now, image)
            shown = show_installed(installed.row, is_new=installed.is_new)
            if installed.is_new:
                record(session, entry_of(request, caller, Act.INSTALL_BOX, shown.box))
            else:
                response.status_code = status.HTTP_200_OK
            return shown


@router.delete("/boxes/{box}")
def uninstall(request: Request, box: str, caller: BoxesWriter) -> Uninstalled:
    """Uninstall a version (``NAME:VERSION``), or all of a box (``NAME``). Refused while open jobs use it."""
    platform = platform_of(request)
    boxes = platform.catalog.boxes()
    with platform.database.write() as session:
        rows = uninstall_box(session, boxes, caller.tenant_id, box, platform.clock.now())
        gone = [show_installed(row).box for row in rows]
        record(session, entry_of(request, caller, Act.UNINSTALL_BOX, " ".join(gone)))
        return Uninstalled(boxes=gone)


def picture_of(platform: Platform, tenant_id: str, box: str) -> Response:
    """Return the picture of a box of rdukit, or of one that the tenant installed. Its type is fixed.

    Raises:
        NotFound: the tenant has no such box, or it has no picture.
    """
    shipped = platform.catalog.boxes()
    if box in shipped.boxes:
        svg = shipped.boxes[box].svg
        if svg is None:
            raise NotFound(f"box {box!r} has no picture")
        return Response(svg, media_type="image/svg+xml", headers=PICTURE_HEADERS)
    with platform.database.read() as session:
        row = get_own(session, shipped, tenant_id, box)
        digest = row.digest if "picture" in row.description else None
    entries = platform.store.entries(digest) if digest and platform.store.has(digest) else []
    found = next((entry for entry in entries if entry.path == PICTURE), None)
    if found is None or found.bytes > MAX_PICTURE_BYTES:
        raise NotFound(f"box {box!r} has no picture; give it one: {PICTURE} in its folder, and install it again")
    content = b"".join(platform.store.read(found.digest))
    check_picture(content)
    return Response(content, media_type="image/png", headers=PICTURE_HEADERS)


def own_descriptions(session: Session, boxes: Boxes, tenant_id: str) -> dict[str, dict[str, object]]:
    """Return the newest version of each of the tenant's boxes by its name, as the catalog shows them."""
    rows = [row for row in newest_own(session, tenant_id) if row.name not in boxes.boxes]
    return {row.name: _describe(session, row) for row in rows}


def show_installed(row: BoxRow, *, is_new: bool = False) -> InstalledBox:
    """Return the API's view of an installed box."""
    return InstalledBox(
        box=f"{row.name}:{row.version}",
        name=row.name,
        version=row.version,
        title=str(row.description.get("title") or row.name),
        digest=row.digest,
        artifact=row.artifact_id,
        image=row.image,
        installed_at=row.created_at,
        is_new=is_new,
    )


def write_files(files: Sequence[UploadFile], folder: Path) -> None:
    """Write a box's uploaded files.

    Raises:
        InvalidArgument: a path leaves the folder, or they are too many or too large.
    """
    paths = [check_relative(file.filename or "") for file in files]
    check_paths(paths)
    check_files({path: file.size or 0 for path, file in zip(paths, files, strict=True)})
    for path, file in zip(paths, files, strict=True):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as out:
            while block := file.file.read(BLOCK):
                out.write(block)


def _describe(session: Session, row: BoxRow) -> dict[str, object]:
    installed = show_installed(row).model_dump(exclude={"is_new", "name", "title"})
    return {**row.description, "installed": {**installed, "versions": versions_of(session, row.tenant_id, row.name)}}


def _as_json(description: dict[str, object]) -> dict[str, JsonValue]:
    return TypeAdapter(dict[str, JsonValue]).validate_python(description)

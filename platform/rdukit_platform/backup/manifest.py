"""Layout of a backup: a folder or a tar with a manifest, the database, the store's content and files of the home
folder.

``manifest.json`` is written last: a backup without one is incomplete, and is refused. It names each file with its
SHA-256; nothing else of a backup is read.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit_platform.artifacts.manifest import check_relative

#: Version of this layout. A reader refuses newer ones.
FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
DATABASE: Final = "database.sqlite"
#: Folders of a backup: the store's content, its uploads, files of the home folder.
BLOBS, UPLOADS, FILES = "blobs", "uploads", "files"
#: Files of the home folder in a backup, if they exist.
HOME_FILES: Final = ("config.yaml", "kernels/trust.key", "sambanova_exporter.conf")
#: The node's database, by its name in a backup; it lies below the setting snd.state.
NODE_DATABASE: Final = "snfm/snfm.db"
_SHA256: Final = re.compile(r"[0-9a-f]{64}\Z")
_ID: Final = re.compile(r"bak-[0-9a-z]{1,26}\Z")
#: Description of an upload.
UPLOAD: Final = "upload.json"
_UPLOAD: Final = re.compile(r"uploads/upl-[0-9a-f]{32}/(upload\.json|[0-9]{1,9})\Z")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a backup. ``path`` is relative, with forward slashes."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """Content of a backup."""

    id: str
    created_at: float
    #: Version of rdukit that wrote it.
    rdukit: str
    #: Revision of the database's schema.
    schema: str
    #: Kind of the original database: sqlite or postgresql. The backup's own is always SQLite.
    database: str
    #: Number of rows of each table.
    rows: Mapping[str, int]
    files: Sequence[FileEntry]
    #: Digests of content that rows refer to, but that was missing or damaged in the store.
    damaged: Sequence[str] = ()
    format: int = FORMAT

    @property
    def bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(file.bytes for file in self.files)


def blob_path(digest: str) -> str:
    """Return the path of a blob in a backup (pure)."""
    return f"{BLOBS}/{digest[:2]}/{digest}"


def place_in_backup(backup_id: str, path: str) -> str:
    """Return the path of a file in a backup (pure): content by its digest, everything else below the backup's id.

    So a backup into the folder of an earlier one keeps its files unchanged until the new manifest is complete.
    """
    return path if path.startswith(f"{BLOBS}/") else f"{backup_id}/{path}"


def is_upload(id: str) -> bool:
    """Return whether a backup may have an upload of this id (pure)."""
    return _UPLOAD.match(f"{UPLOADS}/{id}/{UPLOAD}") is not None


def write_manifest(manifest: BackupManifest) -> bytes:
    """Return the manifest as JSON, with a digest of itself (pure)."""
    body = asdict(manifest)
    return json.dumps({**body, "digest": _digest(body)}, indent=1, sort_keys=True).encode() + b"\n"


def read_manifest(data: bytes) -> BackupManifest:
    """Read a manifest (pure).

    Raises:
        InvalidArgument: it is damaged, of a newer format, or names files that no backup has.
    """
    try:
        body: dict[str, Any] = json.loads(data)
        found = body["format"]
    except (ValueError, KeyError, TypeError) as cause:
        raise InvalidArgument(f"{MANIFEST} of the backup cannot be read ({cause}): the backup is damaged") from cause
    if not isinstance(found, int) or found > FORMAT:
        raise InvalidArgument(
            f"the backup has format {found}, written by rdukit {body.get('rdukit')}; this rdukit reads formats up to "
            f"{FORMAT}: restore it with that version or a newer one"
        )
    if body.pop("digest", None) != _digest(body):
        raise InvalidArgument(f"{MANIFEST} of the backup does not match its own digest: the backup is damaged")
    try:
        files = tuple(FileEntry(**file) for file in body.pop("files"))
        manifest = BackupManifest(files=files, **body)
    except TypeError as cause:
        raise InvalidArgument(f"{MANIFEST} of the backup has unknown or missing fields: {cause}") from cause
    if not _ID.match(manifest.id):
        raise InvalidArgument(f"{MANIFEST} of the backup has the id {manifest.id!r}, which is not valid")
    for file in files:
        _check(file)
    if DATABASE not in {file.path for file in files}:
        raise InvalidArgument(f"{MANIFEST} of the backup names no {DATABASE}")
    return manifest


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _check(file: FileEntry) -> None:
    """Refuse a file whose path is outside of a backup's layout."""
    check_relative(file.path)
    is_known = (
        file.path == DATABASE
        or file.path in {f"{FILES}/{name}" for name in (*HOME_FILES, NODE_DATABASE)}
        or _UPLOAD.match(file.path) is not None
        or (file.path == blob_path(file.sha256))
    )
    if not is_known or not _SHA256.match(file.sha256) or file.bytes < 0:
        raise InvalidArgument(f"{MANIFEST} of the backup names {file.path!r}, which is not valid in a backup")

"""Uploads in pieces: the received part of an artifact's files, in the store's storage of pieces.

An upload has a description of the expected files, and a part for each file that has begun. Its id is derived from
tenant and description, so the same request continues it after any interruption. It becomes content of the store only
when complete and verified. A digest alone gives no access to content: the bytes must be sent.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Final

from rdukit.errors import Conflict, InvalidArgument, NotFound
from rdukit_platform.artifacts.manifest import FolderEntry, check_lengths, make_manifest
from rdukit_platform.artifacts.store import (
    BlobStore,
    Content,
    ContentDiffers,
    PendingContent,
)
from rdukit_platform.db.rows import new_id

#: Seconds without a piece after which an upload is deleted.
UPLOAD_KEEP_S: Final = 86400.0
_ID: Final = re.compile(r"upl-[0-9a-f]{32}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Upload:
    """Description of an upload. ``artifact_id`` is its future artifact; a single file's ``path`` is its name."""

    id: str
    tenant_id: str
    artifact_id: str
    name: str
    kind: str
    is_folder: bool
    files: tuple[FolderEntry, ...]
    #: Empty folders inside a folder.
    empty_folders: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of all its files."""
        return sum(file.bytes for file in self.files)


class Uploads:
    """Uploads of one store. Safe for concurrent processes."""

    def __init__(self, store: BlobStore) -> None:
        self._store, self._pieces = store, store.pieces

    def begin(
        self, tenant_id: str, name: str, kind: str, files: Sequence[FolderEntry], *,
        is_folder: bool, empty_folders: Sequence[str] = (),
    ) -> Upload:  # fmt: skip
        """Begin an upload, or continue the tenant's upload with the same description.

        Raises:
            InvalidArgument: the description of the files is invalid.
        """
        _check(files, empty_folders, is_folder=is_folder)
        told = sorted((f.path, f.digest, f.bytes, f.executable) for f in files)
        described = [tenant_id, name, kind, is_folder, told, sorted(empty_folders)]
        id = "upl-" + hashlib.sha256(json.dumps(described).encode()).hexdigest()[:32]
        with suppress(NotFound):
            return self.get(tenant_id, id)
        ordered = tuple(sorted(files, key=lambda file: file.path))
        upload = Upload(id, tenant_id, new_id("art"), name, kind, is_folder, ordered, tuple(sorted(empty_folders)))
        self._pieces.describe(id, json.dumps(asdict(upload)).encode())
        return upload

    def get(self, tenant_id: str, upload_id: str) -> Upload:
        """Return one of the tenant's uploads.

        Raises:
            NotFound: the tenant has no upload of this id.
        """
        found = self._read(upload_id) if _ID.fullmatch(upload_id) else None
        if found is None or found.tenant_id != tenant_id:
            raise NotFound(f"there is no upload {upload_id!r}; begin it again with: rdukit artifact add")
        return found

    def pending_bytes(self, tenant_id: str, but: str = "") -> int:
        """Return the received bytes of the tenant's uploads, except ``but``."""
        own = [each for each in self._all() if each.tenant_id == tenant_id and each.id != but]
        return sum(self.offset(each, number) for each in own for number in range(len(each.files)))

    def offset(self, upload: Upload, number: int) -> int:
        """Return the number of received bytes of a file."""
        return self._pieces.size(upload.id, number)

    def append(self, upload: Upload, number: int, offset: int, piece: bytes) -> int:
        """Append a piece to a file. Returns the number of its received bytes.

        Raises:
            NotFound: the upload has no such file.
            Conflict: the piece does not begin at the file's end, ``detail["offset"]``.
            InvalidArgument: the file would become longer than announced.
        """
        if not 0 <= number < len(upload.files):
            raise NotFound(f"upload {upload.id} has no file {number}; expected 0 to {len(upload.files) - 1}")
        most = upload.files[number].bytes

        def check(size: int) -> None:
            if offset != size:
                raise Conflict(
                    f"file {number} of {upload.id} already has {size} bytes; send the bytes after them", offset=size
                )
            if size + len(piece) > most:
                raise InvalidArgument(f"file {number} of {upload.id} was announced with {most} bytes; more were sent")

        return self._pieces.append(upload.id, number, offset, piece, check)

    def append_files(self, upload: Upload, first: int, data: bytes) -> int:
        """Add several successive complete files. Returns the number of the next file.

        Bytes received earlier are not added again.

        Raises:
            NotFound: the upload has no such file.
            InvalidArgument: the bytes end within a file, or behind the last.
        """
        number, start = first, 0
        while start < len(data):
            if not 0 <= number < len(upload.files):
                raise NotFound(f"upload {upload.id} has no file {number}; expected 0 to {len(upload.files) - 1}")
            end = start + upload.files[number].bytes
            if end > len(data):
                raise InvalidArgument(
                    f"the body ends within file {number} of {upload.id}; send whole files, or that one in pieces"
                )
            have = self.offset(upload, number)
            if have < upload.files[number].bytes:
                self.append(upload, number, have, data[start + have : end])
            number, start = number + 1, end
        return number

    def store(self, upload: Upload) -> Content:
        """Move all files into the store; within ``BlobStore.holding``.

        Raises:
            Conflict: a file is incomplete, or has another digest than announced, and must be sent again.
        """
        with self._store.adding() as added:
            entries = [self._add(added, upload, number) for number in range(len(upload.files))]
            if upload.is_folder:
                return added.add_manifest(entries, upload.empty_folders)
        return Content(entries[0].digest, entries[0].bytes, is_folder=False)

    def empty(self, upload: Upload) -> None:
        """Delete the received bytes of an upload that has become an artifact; its description stays for a while."""
        self._pieces.drop(upload.id, range(len(upload.files)))

    def remove(self, upload: Upload) -> None:
        """Delete an upload and its received bytes."""
        self._pieces.remove(upload.id)

    def expire(self, now: float, keep_s: float = UPLOAD_KEEP_S) -> int:
        """Delete uploads that received nothing for ``keep_s`` seconds. Returns how many."""
        old = [id for id in self._pieces.ids() if self._pieces.written_at(id) < now - keep_s]
        for id in old:
            self._pieces.remove(id)
        return len(old)

    def _add(self, added: PendingContent, upload: Upload, number: int) -> FolderEntry:
        file, have = upload.files[number], self.offset(upload, number)
        if have != file.bytes:
            raise Conflict(f"file {number} of {upload.id} has {have} of {file.bytes} bytes", file=number, offset=have)
        try:
            with self._pieces.open(upload.id, number) as stream:
                content = added.add_stream(stream, file.digest)
        except ContentDiffers as differs:
            self._pieces.drop(upload.id, [number])
            raise Conflict(
                f"file {number} of {upload.id} has the SHA-256 {differs.found}, not {file.digest}; send it again",
                file=number, offset=0,
            ) from differs  # fmt: skip
        return replace(file, digest=content.digest, bytes=content.bytes)

    def _all(self) -> Iterator[Upload]:
        for id in self._pieces.ids():
            if (found := self._read(id)) is not None:
                yield found

    def _read(self, id: str) -> Upload | None:
        data = self._pieces.description(id)
        if data is None:
            return None
        found = json.loads(data)
        files = tuple(FolderEntry(**file) for file in found.pop("files"))
        return Upload(**found | {"files": files, "empty_folders": tuple(found.get("empty_folders", ()))})


def _check(files: Sequence[FolderEntry], empty_folders: Sequence[str], *, is_folder: bool) -> None:
    if not files or (not is_folder and len(files) != 1):
        raise InvalidArgument(f"{len(files)} files are announced; expected exactly one, or several of a folder")
    if not is_folder and (empty_folders or files[0].executable):
        raise InvalidArgument("a file alone has neither folders nor permissions; send them as a folder")
    for file in files:
        if not _DIGEST.fullmatch(file.digest):
            raise InvalidArgument(f"{file.digest!r} is not a SHA-256 in hexadecimal")
    check_lengths([*(file.path for file in files), *empty_folders])
    if is_folder:
        make_manifest(files, empty_folders)

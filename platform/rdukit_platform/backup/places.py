"""Folder or tar file that a backup is written to and read from."""

import hashlib
import io
import os
import secrets
import shutil
import stat
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, Self

from rdukit.errors import DiskFull, InvalidArgument, NotFound
from rdukit.files.atomic import atomic_target, write_atomic
from rdukit_platform.artifacts.store import BLOCK
from rdukit_platform.backup.manifest import BLOBS, MANIFEST, BackupManifest, FileEntry, place_in_backup, read_manifest

TAR: Final = ".tar"
_PRIVATE: Final = 0o600


class BackupTarget(Protocol):
    """Target of a backup; it becomes a valid backup only by ``finish``."""

    def has(self, path: str, size: int) -> bool:
        """Return whether the file exists from an interrupted or earlier backup."""

    def add(self, path: str, size: int, blocks: Iterable[bytes]) -> None:
        """Write a file of exactly ``size`` bytes; an error in ``blocks`` leaves no file."""

    def finish(self, manifest: BackupManifest, data: bytes) -> None:
        """Write the manifest, which completes the backup, and remove files that it does not name."""

    def close(self) -> None:
        """Close it; an unfinished backup stays if it can be continued."""


class FolderTarget:
    """A folder. Existing content is not copied again, neither after a kill nor by the next backup."""

    def __init__(self, folder: Path, backup_id: str) -> None:
        """Open the folder.

        Raises:
            InvalidArgument: the folder has files that are not a backup's.
        """
        self._folder, self._id = folder, backup_id
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = {path.name for path in folder.iterdir()}
        if names and not names & {MANIFEST, "begun"}:
            raise InvalidArgument(f"{folder} is neither empty nor a backup; name a new folder, or a file {TAR}")
        write_atomic(folder / "begun", b"")

    def has(self, path: str, size: int) -> bool:
        """Return whether a blob exists; files appear only when complete, and a blob's name is its digest."""
        if not path.startswith(f"{BLOBS}/"):
            return False
        try:
            return (self._folder / path).stat().st_size == size
        except FileNotFoundError:
            return False

    def add(self, path: str, size: int, blocks: Iterable[bytes]) -> None:
        """Write a file, which appears in its place when complete."""
        place = self._folder / place_in_backup(self._id, path)
        with atomic_target(place) as temporary, _create(temporary) as out:
            out.writelines(blocks)

    def finish(self, manifest: BackupManifest, data: bytes) -> None:
        """Write the manifest, and remove files of an earlier backup."""
        write_atomic(self._folder / MANIFEST, data, _PRIVATE)
        named = {self._folder / place_in_backup(manifest.id, file.path) for file in manifest.files}
        # Files in a folder come before it.
        for path in sorted(self._folder.rglob("*"), reverse=True):
            if path.is_dir() and not path.is_symlink():
                with suppress(OSError):
                    path.rmdir()
            elif path not in named and path != self._folder / MANIFEST:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Keep the files: the next backup continues with them."""


class TarTarget:
    """A tar file, which gets its name when it is complete."""

    def __init__(self, file: Path, backup_id: str) -> None:
        """Begin the file under a temporary name.

        Raises:
            InvalidArgument: a folder has this name.
        """
        if file.is_dir():
            raise InvalidArgument(f"{file} is a folder; name a file, or a folder without {TAR}")
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._id = file, backup_id
        self._temporary = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
        self._stream = _create(self._temporary)
        self._tar = tarfile.TarFile(fileobj=self._stream, mode="w", format=tarfile.PAX_FORMAT, copybufsize=BLOCK)

    def has(self, path: str, size: int) -> bool:
        """Return False: a tar file is always written from the beginning."""
        return False

    def add(self, path: str, size: int, blocks: Iterable[bytes]) -> None:
        """Append a file; a failed one leaves nothing."""
        before = self._stream.tell()
        info = tarfile.TarInfo(path if path == MANIFEST else place_in_backup(self._id, path))
        info.size, info.mode = size, _PRIVATE
        try:
            self._tar.addfile(info, _Blocks(blocks))
        except BaseException:
            self._stream.seek(before)
            self._stream.truncate()
            self._tar.offset = before
            raise

    def finish(self, manifest: BackupManifest, data: bytes) -> None:
        """Write the manifest, and rename the file."""
        self.add(MANIFEST, len(data), [data])
        self._tar.close()
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        self._temporary.replace(self._file)

    def close(self) -> None:
        """Remove an unfinished file."""
        self._stream.close()
        self._temporary.unlink(missing_ok=True)


class _Blocks(io.RawIOBase):
    """Blocks as a stream to read."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks, self._rest = iter(blocks), b""

    def read(self, size: int = -1) -> bytes:
        while len(self._rest) < size:
            block = next(self._blocks, b"")
            if not block:
                break
            self._rest += block
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken


class Source:
    """A backup to read from, closed at the end of ``with``."""

    def __init__(self, place: Path) -> None:
        """Open it and read its manifest.

        Raises:
            NotFound: the place does not exist.
            InvalidArgument: the folder or file is not a backup, or is unfinished or damaged.
        """
        self._place, self._tar = place, None
        if not place.exists():
            raise NotFound(f"there is no backup {place}; make one with: rdukit backup {place}")
        if not place.is_dir():
            try:
                self._tar = tarfile.open(place, "r:")  # noqa: SIM115 - closed by __exit__
                self._members = {member.name: member for member in self._tar.getmembers()}
            except (tarfile.TarError, EOFError) as cause:
                raise InvalidArgument(f"{place} is not a backup, or is damaged: {cause}") from cause
        try:
            data = b"".join(self._open(MANIFEST))
        except NotFound as cause:
            raise InvalidArgument(
                f"{place} has no {MANIFEST}: it is not a backup, or an incomplete one; run rdukit backup again"
            ) from cause
        self.manifest = read_manifest(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        if self._tar is not None:
            self._tar.close()

    def read(self, file: FileEntry) -> Iterator[bytes]:
        """Yield a file's bytes, in blocks.

        Raises:
            InvalidArgument: it is missing; or, after the last block, its bytes do not match the manifest.
        """
        found, size = hashlib.sha256(), 0
        try:
            for block in self._open(place_in_backup(self.manifest.id, file.path)):
                found.update(block)
                size += len(block)
                yield block
        except (NotFound, tarfile.TarError, OSError) as cause:
            raise InvalidArgument(f"the backup is damaged: {file.path} cannot be read: {cause}") from cause
        if (found.hexdigest(), size) != (file.sha256, file.bytes):
            raise InvalidArgument(f"the backup is damaged: {file.path} does not match its digest {file.sha256}")

    def _open(self, path: str) -> Iterator[bytes]:
        if self._tar is None:
            yield from read_regular(self._place / path)
            return
        member = self._members.get(path)
        stream = self._tar.extractfile(member) if member is not None and member.isreg() else None
        if stream is None:
            raise NotFound(f"there is no file {path}")
        with stream:
            while block := stream.read(BLOCK):
                yield block


def read_regular(path: Path) -> Iterator[bytes]:
    """Yield a file's bytes, in blocks.

    Raises:
        NotFound: there is no regular file; links are refused.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as cause:
        raise NotFound(f"there is no file {path}: {cause.strerror}") from cause
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise NotFound(f"{path} is not a file")
        while block := stream.read(BLOCK):
            yield block


def open_target(place: Path, backup_id: str) -> BackupTarget:
    """Return the target of a backup of this name: a file if it ends in ``.tar``, otherwise a folder."""
    return TarTarget(place, backup_id) if place.suffix == TAR else FolderTarget(place, backup_id)


def check_room(folder: Path, needed: int) -> None:
    """Refuse a copy that does not fit on the disk.

    Raises:
        DiskFull: the disk has too little space.
    """
    with suppress(OSError):
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise DiskFull(f"{folder} needs {needed} bytes, but has {free} free; make room and run the command again")


def _create(path: Path) -> io.BufferedWriter:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE), "wb")

"""Store in a bucket of S3, which all nodes of a platform reach.

``blobs/ab/abcdef…/UNIQUE`` holds the bytes whose SHA-256 is the folder's name. No object is written twice: content
added again becomes another object of the same digest, and the youngest is read. So a sweep needs no lock to spare
content that is added at the same time, and adding the right bytes repairs damage. A sweep removes the older objects of
a digest.

Processes announce their activity by objects below ``holds`` and ``alone``, which they renew; those of dead processes
run out. Times are compared by the server's clock.
"""

import hashlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from rdukit.errors import (
    Conflict,
    ContentDamaged,
    DiskFull,
    NotFound,
    RdukitError,
    StoreUnavailable,
    find_system_error,
)
from rdukit_platform.artifacts.manifest import FolderManifest
from rdukit_platform.artifacts.store import (
    BLOCK,
    BlobStore,
    ContentDiffers,
    PendingContent,
    StoredBlob,
    check_digest,
)
from rdukit_platform.artifacts.stores.bucket import PART_BYTES, Bucket, ObjectEntry, read_part
from rdukit_platform.artifacts.stores.cache import TRIES, ContentCache
from rdukit_platform.artifacts.stores.s3_pieces import S3Pieces

logger = logging.getLogger(__name__)

#: Seconds between renewals of a process's marks, and seconds without renewal after which it counts as dead.
RENEW_S: Final = 30.0
GONE_S: Final = 600.0
#: Seconds to wait for a renewal that is under way at the end of its block.
LAST_WORD_S: Final = 5.0
_HOLDS, _ALONE = "holds/", "alone/"


class S3Store(BlobStore):
    """A content-addressed store in a bucket, with copies of read blobs in a folder."""

    #: Times of objects and of answers are whole seconds.
    slack_s = 5.0

    def __init__(self, bucket: Bucket, cache: ContentCache) -> None:
        super().__init__()
        self.bucket, self.cache = bucket, cache
        self._pieces = S3Pieces(bucket)

    @property
    def where(self) -> str:
        """``BlobStore.where``."""
        return self.bucket.address

    @property
    def pieces(self) -> S3Pieces:
        """``BlobStore.pieces``."""
        return self._pieces

    def read_kept(self, digest: str) -> Iterator[bytes]:
        """``BlobStore.read_kept``."""
        yield from self._checked(digest, self.bucket.read(self._find(digest).key))

    def read_range(self, digest: str, start: int, length: int) -> Iterator[bytes]:
        """``BlobStore.read_range``."""
        copy = self.cache.find(digest)
        if copy is None:
            yield from self.bucket.read(self._find(digest).key, start, length)
            return
        with copy.open("rb") as stream:
            stream.seek(start)
            while length > 0 and (block := stream.read(min(BLOCK, length))):
                length -= len(block)
                yield block

    def state(self, digest: str) -> tuple[object, ...]:
        """``BlobStore.state``: what S3 says of the youngest object."""
        found = self._find(digest)
        return found.key, found.etag, found.bytes, found.written_at

    def size(self, digest: str) -> int:
        """``BlobStore.size``."""
        return self._find(digest).bytes

    def has(self, digest: str) -> bool:
        """``BlobStore.has``."""
        try:
            self._find(digest)
        except NotFound:
            return False
        return True

    @contextmanager
    def local(self, digest: str) -> Iterator[Path]:
        """``BlobStore.local``: the copy, or a temporary file while the block lasts."""
        copy = self._bring(digest)
        if copy is not None:
            yield copy
            return
        with self.cache.once(self.read_kept(digest)) as path:
            yield path

    @contextmanager
    def holding(self) -> Iterator[None]:
        """``BlobStore.holding``: a renewed object marks the block."""
        with self._mark(_HOLDS):
            yield

    def held_since(self) -> float | None:
        """``BlobStore.held_since``."""
        began = [at for at, _ in self._marks(_HOLDS)]
        return min(began) - self.bucket.clock_offset_s if began else None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """``BlobStore.alone``. Two processes that begin at the same moment may both be refused."""
        with self._mark(_ALONE) as own:
            if any(name != own for _, name in self._marks(_ALONE)):
                raise Conflict("another collection or backup of content is running; try again when it has ended")
            yield

    def blobs(self) -> Iterator[StoredBlob]:
        """``BlobStore.blobs``: all objects of a digest follow each other."""
        together: list[ObjectEntry] = []
        for entry in self.bucket.list("blobs/"):
            if together and _digest_of(entry.key) != _digest_of(together[0].key):
                yield from self._as_blobs(together)
                together = []
            together.append(entry)
        yield from self._as_blobs(together)

    def discard(self, blob: StoredBlob, before: float) -> bool:
        """``BlobStore.discard``: content that is added again is another object."""
        self.bucket.delete([blob.place])
        return True

    def begin(self) -> PendingContent:
        """``BlobStore.begin``: content is sent to the bucket while it is added."""
        return _SentContent(self._add, self._publish)

    def keep(self, added: PendingContent) -> None:
        """``BlobStore.keep``."""

    def clear_incoming(self, before: float, on_step: Callable[[str], None]) -> None:
        """``BlobStore.clear_incoming``: abandoned multipart uploads."""
        for key, upload_id, began in list(self.bucket.unfinished("")):
            if began - self.bucket.clock_offset_s < before:
                on_step(key)
                self.bucket.abort(key, upload_id)

    def probe(self) -> float:
        """Write, list, read and remove an object. Returns the seconds by which the server's clock is ahead.

        Raises:
            StoreUnavailable: one of these operations fails; the message says what to do.
        """
        key, data = f"probe/{os.urandom(8).hex()}", os.urandom(16)
        self.bucket.put(key, data)
        listed = [entry.key for entry in self.bucket.list("probe/")]
        read = b"".join(self.bucket.read(key))
        list(self.bucket.unfinished("probe/"))
        self.bucket.delete([key])
        if key not in listed or read != data:
            raise StoreUnavailable(
                f"{self.where} returned other bytes than were written; it may be a cache instead of an S3 server"
            )
        return self.bucket.clock_offset_s

    def _as_blobs(self, together: list[ObjectEntry]) -> Iterator[StoredBlob]:
        youngest = max(together, key=_age_key, default=None)
        for entry in together:
            at = entry.written_at - self.bucket.clock_offset_s
            yield StoredBlob(_digest_of(entry.key), entry.key, entry.bytes, at, entry is not youngest)

    def _find(self, digest: str) -> ObjectEntry:
        found = max(self.bucket.list(_folder_of(digest)), key=_age_key, default=None)
        if found is None:
            raise NotFound(f"the store has no content {digest}")
        return found

    def _bring(self, digest: str) -> Path | None:
        """Return the copy of a blob, fetched if necessary; ``None``: the disk is full."""
        if (copy := self.cache.find(digest)) is not None:
            return copy
        entry = self._find(digest)
        if not self.cache.fits(entry.bytes):
            return None
        try:
            return self.cache.bring(digest, entry.bytes, lambda start: self.bucket.read(entry.key, start))
        except ContentDamaged:
            logger.error("object damaged key=%s where=%s", entry.key, self.where)
            raise
        except OSError as error:
            if isinstance(find_system_error(error), DiskFull):
                self.cache.clear()
            raise

    def _open(self, digest: str) -> Iterator[bytes]:
        for _ in range(TRIES):
            copy = self._bring(digest)
            if copy is None:
                yield from self.bucket.read(self._find(digest).key)
                return
            with suppress(FileNotFoundError), copy.open("rb") as stream:  # it was evicted just now
                while block := stream.read(BLOCK):
                    yield block
                return
        raise StoreUnavailable(
            f"copies of content in {self.cache.folder} are evicted before they can be read; raise their space limit"
        )

    def read(self, digest: str) -> Iterator[bytes]:
        """``BlobStore.read``: a damaged copy is removed."""
        try:
            yield from super().read(digest)
        except ContentDamaged:
            self.cache.forget(digest)
            raise

    def check(self, digest: str) -> None:
        """``BlobStore.check``: a damaged copy is fetched again."""
        try:
            super().check(digest)
        except ContentDamaged:
            super().check(digest)

    def manifest(self, digest: str) -> FolderManifest:
        """``BlobStore.manifest``, from a verified copy."""
        try:
            return super().manifest(digest)
        except ContentDamaged:
            return super().manifest(digest)

    def _place(self, digest: str, target: Path) -> None:
        try:
            super()._place(digest, target)
        except ContentDamaged:  # the copy may have been damaged, and is removed now
            target.unlink()
            super()._place(digest, target)

    def _add(self, stream: BinaryIO, digest: str | None) -> tuple[str, int]:
        first = read_part(stream, PART_BYTES)
        if len(first) < PART_BYTES:
            found = hashlib.sha256(first).hexdigest()
            if digest is not None and found != digest:
                raise ContentDiffers(found, digest)
            self._publish(found, first)
            return found, len(first)
        if digest is not None:
            return digest, self._send(digest, first, stream, None)
        if not stream.seekable():
            with tempfile.TemporaryFile(dir=self.cache.folder) as file:
                file.write(first)
                while block := stream.read(BLOCK):
                    file.write(block)
                file.seek(0)
                return self._add(file, None)
        # An object's name is needed before its first byte is sent, so the file is read twice.
        begin, read = stream.tell() - len(first), hashlib.sha256(first)
        while block := stream.read(BLOCK):
            read.update(block)
        size = stream.tell() - begin
        stream.seek(begin)
        return read.hexdigest(), self._send(read.hexdigest(), b"", stream, size)

    def _send(self, digest: str, first: bytes, stream: BinaryIO, size: int | None) -> int:
        """Send a large object under a digest. Returns its number of bytes; an object with another digest is deleted."""
        parts = self.bucket.open_parts(_new_key(digest), size)
        read, sent = hashlib.sha256(), 0
        try:
            part = first + read_part(stream, parts.part_bytes - len(first))
            while part:
                read.update(part)
                parts.add(part)
                sent += len(part)
                part = read_part(stream, parts.part_bytes)
            if read.hexdigest() != digest:
                raise ContentDiffers(read.hexdigest(), digest)
            parts.finish()
        except BaseException:
            parts.give_up()
            raise
        return sent

    def _publish(self, digest: str, data: bytes) -> None:
        self.bucket.put(_new_key(digest), data)

    @contextmanager
    def _mark(self, folder: str) -> Iterator[str]:
        """Keep a renewed object as a mark while the block lasts. Yields its name."""
        name, is_over = os.urandom(8).hex(), threading.Event()
        self.bucket.put(f"{folder}{name}/begun", b"")

        def renew() -> None:
            while not is_over.wait(RENEW_S):
                try:
                    self.bucket.put(f"{folder}{name}/alive", b"")
                except RdukitError as error:
                    logger.warning("mark not renewed mark=%s%s error=%s", folder, name, error)

        thread = threading.Thread(target=renew, name="renew-mark", daemon=True)
        thread.start()
        try:
            yield name
        finally:
            is_over.set()
            thread.join(LAST_WORD_S)
            with suppress(StoreUnavailable):  # the mark then runs out
                self.bucket.delete([f"{folder}{name}/begun", f"{folder}{name}/alive"])

    def _marks(self, folder: str) -> Iterable[tuple[float, str]]:
        """Return begin, by the server's clock, and name of each live mark; remove expired ones."""
        found: dict[str, list[ObjectEntry]] = {}
        for entry in self.bucket.list(folder):
            found.setdefault(entry.key.removeprefix(folder).partition("/")[0], []).append(entry)
        now = time.time() + self.bucket.clock_offset_s
        alive = []
        for name, entries in found.items():
            times = [entry.written_at for entry in entries]
            if max(times) < now - GONE_S:
                self.bucket.delete([entry.key for entry in entries])
            else:
                alive.append((min(times), name))
        return alive


class _SentContent(PendingContent):
    """Container of content that is sent while it is added."""

    def __init__(
        self, add: Callable[[BinaryIO, str | None], tuple[str, int]], publish: Callable[[str, bytes], None]
    ) -> None:  # fmt: skip
        self._send, self._put = add, publish

    def _add(self, stream: BinaryIO, digest: str | None) -> tuple[str, int]:
        return self._send(stream, digest)

    def _publish(self, digest: str, data: bytes) -> None:
        self._put(digest, data)

    def drop(self) -> None:
        """``PendingContent.drop``: objects without a row are swept later."""


def _folder_of(digest: str) -> str:
    return f"blobs/{check_digest(digest)[:2]}/{digest}/"


def _new_key(digest: str) -> str:
    return f"{_folder_of(digest)}{os.urandom(8).hex()}"


def _digest_of(key: str) -> str:
    parts = key.split("/")
    return parts[2] if len(parts) == 4 else key


def _age_key(entry: ObjectEntry) -> tuple[float, str]:
    return entry.written_at, entry.key

"""Write a backup of a platform, which may be running.

A snapshot of the database is copied first, then the content that its rows refer to. Content exists before its row,
never changes, and is not removed while the backup has the store's lock. The manifest is last.
"""

import hashlib
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rdukit import __version__
from rdukit.errors import Conflict, ContentDamaged, InvalidArgument, NotFound
from rdukit.settings import CONFIG, SND_STATE, resolve
from rdukit_platform.artifacts.store import BLOCK, BlobStore, PiecePlace
from rdukit_platform.artifacts.stores.opening import open_store
from rdukit_platform.artifacts.sweep import read_roots
from rdukit_platform.backup.database import Copied, bring_to_head, copy_out, copy_sqlite
from rdukit_platform.backup.manifest import (
    DATABASE,
    FILES,
    HOME_FILES,
    NODE_DATABASE,
    UPLOAD,
    UPLOADS,
    BackupManifest,
    FileEntry,
    blob_path,
    is_upload,
    write_manifest,
)
from rdukit_platform.backup.places import BackupTarget, Source, open_target, read_regular
from rdukit_platform.db.engine import Database
from rdukit_platform.db.rows import new_id
from rdukit_platform.settings import Home

logger = logging.getLogger(__name__)

#: Seconds to wait for a running collection of content.
WAIT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Step:
    """Progress of a backup: the present step, bytes so far and in total (0: not known yet)."""

    what: str
    done: int = 0
    total: int = 0


OnStep = Callable[[Step], None]


def write_backup(home: Home, place: Path, now: float, on_step: OnStep = lambda step: None) -> BackupManifest:
    """Back up the platform of a home folder and its database.

    Args:
        place: file that ends in ``.tar``, or folder. A folder keeps content over backups and kills, so existing content
            is not copied again.
    Raises:
        InvalidArgument: the place is invalid, or no platform has run in the home folder.
        Conflict: another backup is running, or a collection of content takes too long.
    """
    if home.folder == place.absolute() or home.folder in place.absolute().parents:
        raise InvalidArgument(f"{place} is inside the home folder to back up; name a place outside it")
    database = Database.of_home(home)
    store = open_store(home)
    with ExitStack() as stack:
        stack.callback(database.close)
        stack.enter_context(_nothing_removed(store))
        backup_id = new_id("bak")
        target = open_target(place, backup_id)
        stack.callback(target.close)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".rdukit-backup-", dir=place.parent)))
        copy = scratch / DATABASE
        on_step(Step("database"))
        found = copy_out(database, copy, lambda rows: on_step(Step(f"database, {rows} rows")))
        files = [_add_file(target, DATABASE, copy)]
        files += _add_home(target, home, scratch)
        digests, damaged = find_content(store, copy, scratch)
        files += _add_blobs(target, store, digests, damaged, on_step)
        files += _add_uploads(target, store.pieces)
        manifest = _describe(backup_id, database, now, found, files, damaged)
        target.finish(manifest, write_manifest(manifest))
    logger.info("backup written backup=%s files=%d bytes=%d place=%s", manifest.id, len(files), manifest.bytes, place)
    return manifest


def verify_backup(place: Path, on_step: OnStep = lambda step: None) -> BackupManifest:
    """Verify a backup: compare every file with its digest.

    Raises:
        InvalidArgument: it is damaged; the message names the first damaged file.
    """
    with Source(place) as source:
        done, total = 0, source.manifest.bytes
        for file in source.manifest.files:
            for block in source.read(file):
                done += len(block)
                on_step(Step("verify", done, total))
        return source.manifest


def find_content(store: BlobStore, copy: Path, scratch: Path) -> tuple[dict[str, int], list[str]]:
    """Return the blobs that a copy of the database refers to, with their bytes, and the digests of missing or damaged
    ones.

    Args:
        copy: a copy of any schema; ``scratch``: folder for a migrated copy.
    """
    newest = scratch / "newest.sqlite"
    copy_sqlite(copy, newest)
    bring_to_head(newest)
    with closing(Database(f"sqlite:///{newest}")) as database, database.read() as session:
        files, folders = read_roots(session)
    wanted, damaged = files | set(folders), set()
    for digest in folders:
        try:
            wanted.update(entry.digest for entry in store.entries(digest))
        except (NotFound, ContentDamaged):
            damaged.add(digest)
    sizes: dict[str, int] = {}
    for digest in wanted - damaged:
        try:
            sizes[digest] = store.size(digest)
        except NotFound:
            damaged.add(digest)
    return dict(sorted(sizes.items())), sorted(damaged)


def _add_blobs(
    target: BackupTarget, store: BlobStore, sizes: dict[str, int], damaged: list[str], on_step: OnStep
) -> Iterator[FileEntry]:
    done, total = 0, sum(sizes.values())
    for digest, size in sizes.items():
        on_step(Step("content", done, total))
        try:
            if not target.has(blob_path(digest), size):
                target.add(blob_path(digest), size, store.read(digest))
            yield FileEntry(blob_path(digest), size, digest)
        except (NotFound, ContentDamaged):
            damaged.append(digest)
        done += size
    on_step(Step("content", total, total))


def _add_uploads(target: BackupTarget, pieces: PiecePlace) -> Iterator[FileEntry]:
    """Add the received parts of uploads, in the state of this moment."""
    for id in pieces.ids():
        description = pieces.description(id)
        if description is None or not is_upload(id):
            continue
        for number in range(len(json.loads(description)["files"])):
            if size := pieces.size(id, number):
                with suppress(NotFound, FileNotFoundError), pieces.open(id, number) as stream:
                    blocks = iter(lambda: stream.read(BLOCK), b"")
                    yield _add_blocks(target, f"{UPLOADS}/{id}/{number}", size, blocks)
        yield _add_blocks(target, f"{UPLOADS}/{id}/{UPLOAD}", len(description), [description])


def _add_home(target: BackupTarget, home: Home, scratch: Path) -> Iterator[FileEntry]:
    for name in HOME_FILES:
        path = Path(resolve(CONFIG)).expanduser() if name == "config.yaml" and resolve(CONFIG) else home.folder / name
        if path.is_file():
            yield _add_file(target, f"{FILES}/{name}", path)
    node = Path(resolve(SND_STATE) or home.folder) / NODE_DATABASE
    if node.is_file():
        copy = scratch / "node.sqlite"
        copy_sqlite(node, copy)
        yield _add_file(target, f"{FILES}/{NODE_DATABASE}", copy)


def _add_file(target: BackupTarget, path: str, source: Path) -> FileEntry:
    """Add a file with its present size."""
    return _add_blocks(target, path, source.stat().st_size, read_regular(source))


def _add_blocks(target: BackupTarget, path: str, size: int, blocks: Iterable[bytes]) -> FileEntry:
    """Add ``size`` bytes of blocks."""
    digest = hashlib.sha256()

    def taken() -> Iterator[bytes]:
        left = size
        for block in blocks:
            some = block[:left]
            left -= len(some)
            digest.update(some)
            yield some
            if not left:
                return
        if left:
            raise NotFound(f"{path} ended {left} bytes early")

    target.add(path, size, taken())
    return FileEntry(path, size, digest.hexdigest())


def _describe(
    id: str, database: Database, now: float, found: Copied, files: Sequence[FileEntry], damaged: Sequence[str]
) -> BackupManifest:
    kind = database.url.get_backend_name()
    return BackupManifest(id, now, __version__, found.schema, kind, found.rows, tuple(files), tuple(damaged))


@contextmanager
def _nothing_removed(store: BlobStore) -> Iterator[None]:
    deadline = time.monotonic() + WAIT_S
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(store.alone())
                break
            except Conflict:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)
        yield

"""Restore a backup: stage it in a folder, then move it into place.

Files in ``HOME/restoring`` are verified. While that folder exists nothing starts in the home folder, so a killed
restore is never used: the same command continues it.
"""

import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml
from sqlalchemy import make_url

from rdukit.errors import Conflict, InvalidArgument
from rdukit.files.atomic import atomic_target, remove_tree, write_atomic
from rdukit.files.home import PRIVATE, private_home
from rdukit.settings import CONFIG, SND_STATE, resolve
from rdukit_platform.artifacts.store import BLOCK, BlobStore
from rdukit_platform.artifacts.stores.opening import open_bucket
from rdukit_platform.backup.database import bring_to_head, check_free, check_schema, copy_in, describe
from rdukit_platform.backup.manifest import (
    BLOBS,
    DATABASE,
    FILES,
    NODE_DATABASE,
    UPLOAD,
    UPLOADS,
    BackupManifest,
    FileEntry,
)
from rdukit_platform.backup.places import Source, check_room
from rdukit_platform.backup.write import OnStep, Step
from rdukit_platform.db.engine import Database
from rdukit_platform.setting_texts import parse_store
from rdukit_platform.settings import DATABASE_URL, Home

logger = logging.getLogger(__name__)

#: Files that an unused home folder may have.
HARMLESS: Final = frozenset({"config.yaml", "restoring", "logs", "run", "sections", "machine", "cache"})
#: Folders of the replaced state: running jobs, their messages, tenants' caches.
STALE: Final = ("work", "pools", "broker", "tenants", "installing")
_CONFIG: Final = f"{FILES}/config.yaml"


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore."""

    manifest: BackupManifest
    #: Whether the backup had an older schema and was migrated.
    is_migrated: bool
    #: Notes for the user.
    notes: list[str] = field(default_factory=list)


def restore_backup(
    home: Home,
    place: Path,
    now: float,
    *,
    database_url: str = "",
    is_forced: bool = False,
    on_step: OnStep = lambda step: None,
) -> Restored:
    """Bring a home folder and its database to the state of a backup.

    Args:
        database_url: the database to write, as for ``choose_database``.
        is_forced: replace existing state.
    Raises:
        InvalidArgument: the backup is damaged, not whole, or of a newer version.
        Conflict: a platform runs there, or the home folder or database is not empty.
        DiskFull: the disk lacks space.
    """
    with Source(place) as source, _home_alone(home):
        manifest = source.manifest
        check_schema(manifest.schema, manifest.rdukit)
        mark = home.restoring / "backup"
        goes_on = mark.is_file() and mark.read_text() == manifest.id
        is_forced = is_forced or goes_on
        _check_empty(home, is_forced=is_forced)
        settings = _settings_in(source)
        in_backup = value_in(settings, "database", "url")
        url = choose_database(database_url, resolve(DATABASE_URL), in_backup, home)
        file = _file_of(url)
        if file is None or file.exists():  # opening a missing file would create it
            with closing(Database(url)) as database:
                check_free(database, now, is_forced=is_forced)
        if not goes_on:
            remove_tree(home.restoring)  # left from an abandoned restore of another backup
        home.restoring.mkdir(mode=PRIVATE, exist_ok=True)
        check_room(home.folder, manifest.bytes)
        write_atomic(mark, manifest.id.encode())
        _stage(source, home.restoring, on_step)
        copy = home.restoring / DATABASE
        describe(copy)
        is_migrated = bring_to_head(copy)
        if file is None:
            with closing(Database(url)) as database:
                copy_in(copy, database, lambda rows: on_step(Step(f"database, {rows} rows")))
        is_config_placed = not resolve(CONFIG) and in_backup in {"", url}
        bucket = home.bucket or (value_in(settings, "artifacts", "store") if is_config_placed else "")
        if "://" in bucket:
            _fill(open_bucket(home, parse_store(bucket)), home.restoring / "artifacts", on_step)
        notes = _put_in_place(home, url, is_config_placed=is_config_placed)
        remove_tree(home.restoring)
    logger.info("backup restored backup=%s home=%s", manifest.id, home.folder)
    return Restored(manifest, is_migrated, notes)


def _check_empty(home: Home, *, is_forced: bool) -> None:
    names = sorted({path.name for path in home.folder.iterdir()} - HARMLESS)
    if names and not is_forced:
        raise Conflict(
            f"home folder {home.folder} is not empty, it has {', '.join(names[:5])}; --force replaces the state in it, "
            "or set RDUKIT_HOME to a new folder"
        )


@contextmanager
def _home_alone(home: Home) -> Iterator[None]:
    """Exclude ``rdukit up`` and other restores from the home folder while the block lasts."""
    private_home()
    home.run.mkdir(mode=PRIVATE, exist_ok=True)
    descriptor = os.open(home.up_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as cause:
        raise Conflict(f"a platform runs in {home.folder}, or a restore; stop it first") from cause
    finally:
        os.close(descriptor)


def choose_database(wanted: str, configured: str, in_backup: str, home: Home) -> str:
    """Choose the URL of the database that is written (pure).

    Args:
        wanted: the caller's choice; ``sqlite`` means a file in the home folder; empty: none.
        configured: the URL in the present settings. in_backup: the URL in the backup's own settings file.
    Raises:
        InvalidArgument: only the backup's own settings name one, which may be in use.
    """
    file = f"sqlite:///{home.folder / 'db.sqlite'}"
    if wanted or configured:
        return file if wanted == "sqlite" else wanted or configured
    if in_backup and in_backup != file:
        raise InvalidArgument(
            "the settings file in the backup names a database server, which may be in use; choose the database to "
            "write: --database URL, or --database sqlite for a file in the home folder"
        )
    return file


def value_in(settings: bytes, part: str, name: str) -> str:
    """Return the text of a setting in a settings file, such as the database's URL; empty: none (pure).

    Raises:
        InvalidArgument: it is not YAML.
    """
    try:
        found = yaml.safe_load(settings)
    except yaml.YAMLError as cause:
        raise InvalidArgument(f"the settings file in the backup is not valid YAML: {cause}") from cause
    values = found.get(part) if isinstance(found, dict) else None
    return str(values.get(name) or "") if isinstance(values, dict) else ""


def _settings_in(source: Source) -> bytes:
    found = [file for file in source.manifest.files if file.path == _CONFIG]
    return b"".join(source.read(found[0])) if found else b""


def _stage(source: Source, folder: Path, on_step: OnStep) -> None:
    """Copy all files to a folder and verify them; existing ones stay."""
    done, total = 0, source.manifest.bytes
    for file in source.manifest.files:
        on_step(Step("files", done, total))
        path = folder / staged_path(file)
        if file.path == DATABASE or not path.exists():
            with atomic_target(path) as temporary:
                temporary.touch(0o600)
                with temporary.open("wb") as out:
                    out.writelines(source.read(file))
                if file.path.startswith(f"{BLOBS}/"):
                    temporary.chmod(0o444)
        done += file.bytes
    (folder / "artifacts" / BLOBS).mkdir(parents=True, exist_ok=True)
    on_step(Step("files", total, total))


def staged_path(file: FileEntry) -> str:
    """Return the path of a backup's file below ``HOME/restoring`` (pure)."""
    return f"artifacts/{file.path}" if file.path.startswith((f"{BLOBS}/", f"{UPLOADS}/")) else file.path


def _file_of(url: str) -> Path | None:
    """Return the file of a SQLite database; ``None``: the database is a server's."""
    found = make_url(url)
    return Path(found.database or "") if found.get_backend_name() == "sqlite" else None


def _fill(store: BlobStore, staged: Path, on_step: OnStep) -> None:
    """Move staged content to a bucket; existing content stays. Repeatable."""
    blobs = sorted((staged / BLOBS).glob("*/*"))
    done, total = 0, sum(path.stat().st_size for path in blobs)
    with store.holding():
        for path in blobs:
            on_step(Step("content to the bucket", done, total))
            if not store.has(path.name):
                with path.open("rb") as stream:
                    store.add_stream(stream, path.name)
            done += path.stat().st_size
        for part in sorted((staged / UPLOADS).glob("*/*")):
            if part.name == UPLOAD:
                store.pieces.describe(part.parent.name, part.read_bytes())
                continue
            with part.open("rb") as stream:
                stream.seek(store.pieces.size(part.parent.name, int(part.name)))
                while piece := stream.read(BLOCK):
                    store.pieces.append(
                        part.parent.name, int(part.name), stream.tell() - len(piece), piece, lambda size: None
                    )
    remove_tree(staged)


def _put_in_place(home: Home, url: str, *, is_config_placed: bool) -> list[str]:
    """Move staged files into place. All steps are repeatable. Returns the user's notes."""
    staged, notes = home.restoring, []
    if (staged / "artifacts").exists():
        if home.artifacts.exists():
            home.artifacts.rename(staged / f"old-{os.urandom(4).hex()}")
        (staged / "artifacts").rename(home.artifacts)
    for name in STALE:
        remove_tree(home.folder / name)
    file = _file_of(url)
    if file is not None:
        _place_database(staged / DATABASE, file)
    for path in sorted((staged / FILES).rglob("*")):
        name = path.relative_to(staged / FILES).as_posix()
        if not path.is_file():
            continue
        if name == NODE_DATABASE:
            _place(path, Path(resolve(SND_STATE) or home.folder) / NODE_DATABASE)
        elif name != "config.yaml":
            _place(path, home.folder / name)
        elif not is_config_placed:
            _place(path, home.folder / "config.yaml.restored")
            notes.append(
                f"the backup's settings file is {home.folder}/config.yaml.restored; copy the settings that you need"
            )
        else:
            _place(path, home.folder / "config.yaml")
    if url != home.database_url():
        notes.append(f"start it with {DATABASE_URL.variable} set to the restored database")
    return notes


def _place_database(staged: Path, file: Path) -> None:
    for ending in ("-wal", "-shm"):
        file.with_name(file.name + ending).unlink(missing_ok=True)
    _place(staged, file)


def _place(staged: Path, path: Path) -> None:
    """Copy a file to its place atomically; the place may be on another disk."""
    with atomic_target(path) as temporary:
        temporary.touch(0o600)
        with staged.open("rb") as source, temporary.open("wb") as out:
            shutil.copyfileobj(source, out, BLOCK)

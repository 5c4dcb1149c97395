"""Fetched artifacts of one box, by content: complete or absent, and fetched once for concurrent callers.

``content/SHA256/NAME`` has files, and ``folders/SHA256/`` the contents of archives and prefixes; both are immutable.
``by-uri/KEY`` links to a reference's newest content; ``by-uri/KEY.json`` has the server's identifier of it.
"""

import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import sha256_of, sha256_of_file, write_json_atomic
from rdukit.files.disk_cache import choose_evicted, list_cached, remove_cached
from rdukit.files.locks import sole_lock
from rdukit.http.addresses import parse_networks
from rdukit.interfaces import Clock, SystemClock
from rdukit.settings import resolve
from rdukit_modelbox.artifacts import settings
from rdukit_modelbox.artifacts.download import ByteSource, Watch, download
from rdukit_modelbox.artifacts.http_source import HttpSource
from rdukit_modelbox.artifacts.reference import Reference
from rdukit_modelbox.artifacts.s3_source import S3Source, list_objects, make_client
from rdukit_modelbox.artifacts.unpack import ARCHIVE_SUFFIXES, UnpackLimits, find_kind, unpack

logger = logging.getLogger(__name__)

#: Seconds since an artifact's last use during which it is not evicted, because it may be in use.
_IN_USE_S: Final = 3600.0
_WAIT_S: Final = 0.5


def current_limits() -> UnpackLimits:
    """Return the limits of archives from the settings."""
    return UnpackLimits(resolve(settings.MAX_UNPACKED_BYTES), resolve(settings.MAX_RATIO))


class ArtifactStore:
    """The cache in one folder; processes may share it."""

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self.folder = folder
        self._clock = clock or SystemClock()
        self._s3: Any = None

    def link_of(self, reference: Reference) -> Path:
        """Return the path of the newest content of ``reference``, once it is fetched."""
        return self.folder / "by-uri" / reference.key

    def fetch(self, reference: Reference, kind: str, watch: Watch = lambda done, size: None) -> Path:
        """Return the artifact as a ``file`` or ``folder`` on this disk; ``any``: a folder for prefixes and archives.

        Content is not fetched again if its digest is given, or if the server reports it as unchanged. ``watch`` is
        called with the progress and may raise to abort; a later fetch continues from there.

        Raises:
            NotFound, PermissionDenied: by the server, or a refused address.
            InvalidArgument: the content has another digest than the reference, is too large, or is not an archive
            although
                a folder is needed.
            NoResources: the disk is full.
            Unavailable: the server was cut off too often, or boto3 is missing.
        """
        lock = self.folder / "partial" / f"{reference.key}.lock"
        while True:
            with sole_lock(lock, _WAIT_S) as is_mine:
                if is_mine:
                    return self._fetch(reference, kind, watch)
            watch(0, 0)

    def _fetch(self, reference: Reference, kind: str, watch: Watch) -> Path:
        self._make_room()
        if reference.is_folder:
            if kind == "file":
                raise InvalidArgument(f"{reference.uri} is a prefix; expected one object")
            found = self._fetch_prefix(reference, watch)
        else:
            source = self._source(reference, reference.path)
            found = self._fetch_file(reference, source, watch)
            if kind == "folder" or (kind == "any" and reference.name.lower().endswith(ARCHIVE_SUFFIXES)):
                found = self._unpacked(found, watch)
        self._link(reference, found)
        return found

    def _fetch_file(self, reference: Reference, source: ByteSource, watch: Watch) -> Path:
        known = self._find_known(reference, source)
        if known is not None:
            os.utime(known.parent)
            return known
        partial = self.folder / "partial" / reference.key
        partial.parent.mkdir(parents=True, exist_ok=True)
        try:
            validator = download(
                source, reference.uri, partial, resolve(settings.MAX_BYTES), resolve(settings.ATTEMPTS), self._clock,
                watch,
            )  # fmt: skip
            digest = sha256_of_file(partial)
            if reference.sha256 is not None and digest != reference.sha256:
                raise InvalidArgument(f"{reference.uri} has sha256 {digest}; expected {reference.sha256}")
        except InvalidArgument:
            partial.unlink(missing_ok=True)
            raise
        path = self._keep(partial, digest, reference.name)
        write_json_atomic(
            self.folder / "by-uri" / f"{reference.key}.json",
            {"uri": reference.uri, "validator": validator, "sha256": digest},
        )
        logger.info("artifact fetched uri=%s sha256=%s bytes=%d", reference.uri, digest, path.stat().st_size)
        return path

    def _find_known(self, reference: Reference, source: ByteSource) -> Path | None:
        """Return the content if it is here already and still current."""
        if reference.sha256 is not None:
            return self._find_content(reference.sha256, reference.name)
        try:
            entry = json.loads((self.folder / "by-uri" / f"{reference.key}.json").read_bytes())
            validator, digest = entry["validator"], str(entry["sha256"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if validator is None or source.find_validator() != validator:
            return None
        return self._find_content(digest, reference.name)

    def _find_content(self, digest: str, name: str) -> Path | None:
        folder = self.folder / "content" / digest
        if (folder / name).is_file():
            return folder / name
        other = next(folder.glob("*"), None) if folder.is_dir() else None
        if other is None:
            return None
        os.link(other, folder / name)
        return folder / name

    def _keep(self, partial: Path, digest: str, name: str) -> Path:
        found = self._find_content(digest, name)
        if found is not None:
            partial.unlink()
            return found
        path = self.folder / "content" / digest / name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.chmod(0o444)
        partial.replace(path)
        return path

    def _unpacked(self, archive: Path, watch: Watch) -> Path:
        if find_kind(archive) is None:
            raise InvalidArgument(
                f"{archive.name} is not a folder; expected a .zip, a .tar.gz, or an s3:// prefix that ends with /"
            )
        target = self.folder / "folders" / archive.parent.name
        if not target.is_dir():
            self._publish(target, lambda new: unpack(archive, new, current_limits(), lambda: watch(0, 0)))
        os.utime(target)
        # An archive with a single folder means that folder.
        inside = list(target.iterdir())
        return inside[0] if len(inside) == 1 and inside[0].is_dir() else target

    def _fetch_prefix(self, reference: Reference, watch: Watch) -> Path:
        objects = list_objects(self._client(), reference.host, reference.path)
        total, limit = sum(size for size, _ in objects.values()), resolve(settings.MAX_BYTES)
        if total > limit:
            raise InvalidArgument(f"{reference.uri} has {total} bytes; expected up to {limit} (artifacts.max_bytes)")
        if reference.sha256 is not None:
            raise InvalidArgument(f"{reference.uri}: a digest is for one object, not for a prefix")
        for name in objects:
            if name.startswith("/") or {"", ".", ".."} & set(name.split("/")):
                raise InvalidArgument(f"{reference.uri}: key {name!r} is not a path below it, which is refused")
        # ETags identify contents: an equal listing means an equal folder.
        digest = sha256_of(json.dumps([reference.uri, sorted(objects.items())]).encode())
        target = self.folder / "folders" / digest
        if not target.is_dir():
            self._publish(target, lambda new: self._fetch_all(reference, sorted(objects), total, new, watch))
        os.utime(target)
        return target

    def _fetch_all(self, reference: Reference, names: Sequence[str], total: int, folder: Path, watch: Watch) -> None:
        done = 0
        for name in names:
            key = reference.path + name
            one = Reference("s3", f"s3://{reference.host}/{key}", reference.host, key)
            before = done
            path = self._fetch_file(one, self._source(one, key), lambda there, _, b=before: watch(b + there, total))  # type: ignore[misc]
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, target)
            done += path.stat().st_size

    def _publish(self, target: Path, fill: Callable[[Path], None]) -> None:
        """Create a folder atomically."""
        new = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.new")
        new.parent.mkdir(parents=True, exist_ok=True)
        try:
            fill(new)
            new.rename(target)
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def _link(self, reference: Reference, found: Path) -> None:
        link = self.link_of(reference)
        link.parent.mkdir(parents=True, exist_ok=True)
        temporary = link.with_name(f".{link.name}.{secrets.token_hex(4)}.link")
        temporary.symlink_to(os.path.relpath(found, link.parent))
        temporary.replace(link)

    def _make_room(self) -> None:
        measured = list_cached(
            path for part in ("content", "folders") for path in (self.folder / part).glob("[0-9a-f]*")
        )
        # A use is recorded in the folder's time; its files keep their own.
        kept = [replace(file, used_s=file.path.stat().st_mtime) for file in measured if file.path.exists()]
        now = time.time()
        going = choose_evicted(kept, resolve(settings.CACHE_BYTES))
        remove_cached(file for file in going if now - file.used_s > _IN_USE_S)

    def _source(self, reference: Reference, path: str) -> ByteSource:
        timeout_s = resolve(settings.TIMEOUT_S)
        if reference.scheme == "s3":
            return S3Source(self._client(), reference.host, path)
        refused = parse_networks(resolve(settings.REFUSED_NETWORKS))
        return HttpSource(reference, timeout_s, refused, parse_networks(resolve(settings.ALLOWED_NETWORKS)))

    def _client(self) -> Any:
        if self._s3 is None:
            self._s3 = make_client(resolve(settings.TIMEOUT_S))
        return self._s3

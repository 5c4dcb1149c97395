"""Installation of a node's files below a prefix, and their removal. The shell around ``plan``.

A manifest lists the installed files. A second run only changes differing files, removal only deletes unchanged ones,
and foreign files are never overwritten.
"""

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from rdukit import __version__
from rdukit.errors import Conflict, InvalidArgument, NotFound, PermissionDenied
from rdukit.files.atomic import sha256_of, sha256_of_file, write_atomic, write_json_atomic
from rdukit_node.install.plan import InstallPlan

MANIFEST: Final = "opt/sambaflow/etc/rdukit-manifest.json"
_MANIFEST_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of an installation: files with their digests, folders in the order of their creation."""

    files: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()


@dataclass(slots=True)
class InstallChanges:
    """Paths relative to the prefix; ``kept``: they belong to others now and were not changed."""

    written: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, list[str]]:
        return {name: list(getattr(self, name)) for name in ("written", "unchanged", "removed", "kept")}


def install(root: Path, plan: InstallPlan) -> InstallChanges:
    """Make the places. All conflicts are found before the first write.

    Raises:
        Conflict: files are there that this command did not make; the message lists them.
        PermissionDenied: the prefix cannot be written.
        InvalidArgument: the prefix is not usable, or its manifest is damaged.
    """
    former = read_manifest(root) or Manifest()
    foreign = [path for path, wanted in plan.files.items() if _is_foreign(root, path, wanted.content, former)]
    foreign = [path for path in foreign if not (plan.files[path].is_kept and (root / path).is_file())]
    if foreign:
        raise Conflict(
            f"{root} contains files that this command did not create, or that were changed since: "
            f"{', '.join(sorted(foreign))}; move them away, or choose another --root",
            files=sorted(foreign),
        )
    changes = InstallChanges()
    folders = list(former.folders)
    files: dict[str, str] = {}
    try:
        for path, mode in plan.folders.items():
            _make_folder(root, path, folders, mode)
        _make_folder(root, str(PurePosixPath(MANIFEST).parent), folders)
        for path, wanted in plan.files.items():
            _make_folder(root, str(PurePosixPath(path).parent), folders)
            # Written before the file: a crash in between leaves a manifest with one entry too many, never too few.
            files[path] = (
                former.files.get(path, sha256_of(wanted.content)) if wanted.is_kept else sha256_of(wanted.content)
            )
        _write_manifest(root, Manifest({**former.files, **files}, tuple(folders)))
        for path, wanted in plan.files.items():
            target = root / path
            if _is_same(target, wanted.content, wanted.mode):
                changes.unchanged.append(path)
            elif target.is_file() and wanted.is_kept:
                changes.kept.append(path)
            else:
                write_atomic(target, wanted.content, wanted.mode)
                target.chmod(wanted.mode)  # whatever the umask
                changes.written.append(path)
        for path in sorted(set(former.files) - set(plan.files)):
            _remove_file(root, path, former.files[path], changes)
        _write_manifest(root, Manifest(files, tuple(folders)))
    except OSError as cause:
        raise _refused(root, cause) from cause
    return changes


def uninstall(root: Path) -> InstallChanges:
    """Remove the files of ``install`` that are unchanged, and folders that are then empty.

    Raises:
        NotFound: there is no installation.
        PermissionDenied: the prefix cannot be written.
    """
    manifest = read_manifest(root)
    if manifest is None:
        raise NotFound(f"there is no installation under {root}: it has no {MANIFEST}")
    changes = InstallChanges()
    try:
        for path, digest in manifest.files.items():
            _remove_file(root, path, digest, changes)
        (root / MANIFEST).unlink()
        for path in reversed(manifest.folders):
            folder = root / path
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:  # somebody's files are in it, such as logs and the fault database
                changes.kept.append(path)
                continue
            changes.removed.append(path)
    except OSError as cause:
        raise _refused(root, cause) from cause
    return changes


def read_manifest(root: Path) -> Manifest | None:
    """Return the manifest of an installation, ``None`` if there is none.

    Raises:
        InvalidArgument: the manifest is damaged.
    """
    path = root / MANIFEST
    try:
        value = json.loads(path.read_text())
        files, folders = dict(value["files"]), tuple(value["folders"])
        is_legal = value["manifest"] == _MANIFEST_VERSION and all(_is_inside(name) for name in (*files, *folders))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise InvalidArgument(f"the manifest {path} cannot be read: {cause}; remove it as a last resort") from cause
    if not is_legal:
        raise InvalidArgument(
            f"the manifest {path} has another version or names paths outside its root, so it is not followed"
        )
    return Manifest(files, folders)


def _is_inside(name: object) -> bool:
    if not isinstance(name, str) or not name:
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _is_foreign(root: Path, path: str, content: bytes, former: Manifest) -> bool:
    target = root / path
    try:
        mode = target.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISREG(mode):
        return True
    try:
        digest = sha256_of_file(target)
    except OSError:
        return True
    return digest not in {former.files.get(path), sha256_of(content)}


def _is_same(target: Path, content: bytes, mode: int) -> bool:
    try:
        status = target.stat()
    except FileNotFoundError:
        return False
    return stat.S_IMODE(status.st_mode) == mode and sha256_of_file(target) == sha256_of(content)


def _make_folder(root: Path, path: str, made: list[str], mode: int = 0o755) -> None:
    """Create a folder and its missing parents, and record each new one."""
    parts = PurePosixPath(path).parts
    for count in range(1, len(parts) + 1):
        name = str(PurePosixPath(*parts[:count]))
        folder = root / name
        if folder.is_dir():
            continue
        folder.mkdir(parents=True)
        folder.chmod(mode if count == len(parts) else 0o755)
        made.append(name)


def _remove_file(root: Path, path: str, digest: str, changes: InstallChanges) -> None:
    target = root / path
    try:
        if not stat.S_ISREG(target.lstat().st_mode) or sha256_of_file(target) != digest:
            changes.kept.append(path)
            return
        target.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return
    changes.removed.append(path)


def _write_manifest(root: Path, manifest: Manifest) -> None:
    write_json_atomic(
        root / MANIFEST,
        {
            "manifest": _MANIFEST_VERSION,
            "version": __version__,
            "files": dict(manifest.files),
            "folders": list(manifest.folders),
        },
    )


def _refused(root: Path, cause: OSError) -> PermissionDenied | InvalidArgument:
    if isinstance(cause, PermissionError):
        return PermissionDenied(
            f"cannot write {cause.filename or root}: {cause.strerror}; run as root, or choose --root"
        )
    return InvalidArgument(f"cannot install under {root}: {cause}; choose another --root")

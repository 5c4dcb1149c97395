"""Artifacts of a platform, for programs, and their files on the way there and back."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rdukit.errors import Conflict, InvalidArgument, NotFound
from rdukit.files.tree import TreeFile, check_kind, make_executable, read_tree
from rdukit_platform.artifacts.manifest import MAX_FILES, check_relative
from rdukit_platform.client.http import ApiClient, name_part
from rdukit_platform.client.values import ArtifactInfo

#: Size in bytes from which on an artifact is sent in pieces.
IN_PIECES_BYTES: Final = 8 << 20


class Artifact:
    """An artifact by its id; its description is read on first use."""

    def __init__(self, api: ApiClient, artifact_id: str, info: ArtifactInfo | None = None) -> None:
        self._api, self._info = api, info
        self.id = artifact_id

    @property
    def info(self) -> ArtifactInfo:
        """Return the artifact's description, read from the API on first use."""
        if self._info is None:
            self._info = ArtifactInfo.of(self._api.get(f"/v1/artifacts/{self.id}"))
        return self._info

    def download(self, path: str | Path) -> Path:
        """Fetch the content to ``path``, a new file or folder, which appears only when complete. Returns the path.

        The same call continues an interrupted download. Digests are compared.

        Raises:
            Conflict: ``path`` exists already.
            Unavailable: the gateway stays unreachable, or other bytes came.
        """
        fetch_artifact(self._api, self.id, Path(path))
        return Path(path)

    def pin(self) -> None:
        """Pin the artifact, so that it neither expires nor can be deleted."""
        self._api.put(f"/v1/artifacts/{self.id}/pin")
        self._info = None

    def unpin(self) -> None:
        """Remove the pin."""
        self._api.delete(f"/v1/artifacts/{self.id}/pin")
        self._info = None

    def delete(self) -> None:
        """Delete the artifact.

        Raises:
            Conflict: it is pinned, or a job that has not ended, an expert or a box needs it.
        """
        self._api.delete(f"/v1/artifacts/{self.id}")

    def __repr__(self) -> str:
        what = f" {self._info.kind} {self._info.name!r}" if self._info else ""
        return f"<Artifact {self.id}{what}>"


class Artifacts:
    """The tenant's artifacts: ``platform.artifacts``."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    def add(self, path: str | Path, kind: str, name: str | None = None) -> Artifact:
        """Add a file or a folder. An interrupted upload of a large one is continued.

        Raises:
            NotFound: there is nothing at ``path``.
            QuotaExceeded: it exceeds the tenant's quota.
        """
        info = ArtifactInfo.of(add_artifact(self._api, Path(path), kind, name))
        return Artifact(self._api, info.id, info)

    def get(self, artifact_id: str) -> Artifact:
        """Return one of the tenant's artifacts.

        Raises:
            NotFound: there is no artifact of this id.
        """
        return Artifact(self._api, artifact_id, ArtifactInfo.of(self._api.get(f"/v1/artifacts/{artifact_id}")))

    def list(self, kind: str | None = None, job: str | None = None) -> Iterator[Artifact]:
        """Yield artifacts, newest first; pages are fetched on demand."""
        for each in self._api.pages("/v1/artifacts", "artifacts", kind=kind, job=job, limit=200):
            info = ArtifactInfo.of(each)
            yield Artifact(self._api, info.id, info)


def fetch_artifact(client: ApiClient, artifact_id: str, output: Path) -> dict[str, Any]:
    """Fetch an artifact's content to a new file or folder, which appears only when complete. Returns the artifact's
    description.

    The same call continues an interrupted download.

    Raises:
        Conflict: ``output`` exists.
        Unavailable: the gateway stays unreachable, or other bytes came than the artifact's.
    """
    if output.exists():
        raise Conflict(f"{output} exists already; name a path that does not")
    found = client.get(f"/v1/artifacts/{artifact_id}")
    if found["is_folder"]:
        _fetch_folder(client, found, output)
    else:
        client.fetch_file(f"/v1/artifacts/{artifact_id}/content", output.absolute(), found["digest"])
    return found


def add_artifact(client: ApiClient, path: Path, kind: str, name: str | None = None) -> dict[str, Any]:
    """Add a file or a folder as an artifact. The same call continues an interrupted upload.

    A folder keeps its empty folders and its files' execute permission; a single file is only its bytes.

    Raises:
        InvalidArgument: the folder has other things than files and folders, no file, or too many.
        NotFound: there is nothing at ``path``.
    """
    if not path.exists():
        raise NotFound(f"{path} does not exist; name a file or folder of this machine")
    title = name or path.absolute().name
    if path.is_dir():
        tree = read_tree(path)
        if not 0 < len(tree.files) <= MAX_FILES:
            raise InvalidArgument(
                f"{path} has {len(tree.files)} files; expected 1 to {MAX_FILES:,}; pack them into an archive or a table"
            )
        return client.upload_pieces(tree.files, kind, title, tree.empty_folders, is_folder=True)
    mode = path.stat().st_mode
    check_kind(path, mode)
    if path.stat().st_size >= IN_PIECES_BYTES:
        return client.upload_pieces([TreeFile(path, path.name)], kind, title, is_folder=False)
    with path.open("rb") as stream:
        return client.upload([(path.name, stream)], {"kind": kind, "name": title, "folder": "false"})


def _fetch_folder(client: ApiClient, found: Mapping[str, Any], output: Path) -> None:
    # The folder gets its name when all its files are there; until then the next call continues.
    coming = name_part(output.absolute(), found["digest"])
    # A partial file lies outside of the folder, in which files may have any name.
    content, fetched = coming / "content", coming / "file"
    content.mkdir(parents=True, exist_ok=True)
    for folder in found.get("empty_folders") or ():
        (content / check_relative(folder)).mkdir(parents=True, exist_ok=True)
    for file in found["files"]:
        target = content / check_relative(file["path"])
        if target.exists():
            continue
        client.fetch_file(f"/v1/artifacts/{found['id']}/content", fetched, file["digest"], path=file["path"])
        if file.get("executable"):
            make_executable(fetched)
        target.parent.mkdir(parents=True, exist_ok=True)
        fetched.replace(target)
    content.rename(output)
    coming.rmdir()

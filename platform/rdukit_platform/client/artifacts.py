"""Artifacts of a platform, for programs, and their files on the way there and back."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from rdukit.errors import Conflict, NotFound
from rdukit_platform.client.http import ApiClient, read_folder
from rdukit_platform.client.values import ArtifactInfo

#: From this size on an artifact goes in pieces.
IN_PIECES_BYTES: Final = 8 << 20


class Artifact:
    """An artifact by its id; what it is is read when it is first asked for."""

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
        """Fetch the content to ``path``, a new file or folder, which appears whole. Returns the path.

        Where it broke off before, the same call goes on. Digests are compared.

        Raises:
            Conflict: there is something at ``path``.
            Unavailable: the gateway stays away, or other bytes came.
        """
        fetch_artifact(self._api, self.id, Path(path))
        return Path(path)

    def pin(self) -> None:
        """Keep the artifact: whatever its age, and from being deleted."""
        self._api.put(f"/v1/artifacts/{self.id}/pin")
        self._info = None

    def unpin(self) -> None:
        """Take the pin away."""
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
        """Add a file or a folder. Of a large one that broke off, what has come is not sent again.

        Raises:
            NotFound: there is nothing at ``path``.
            QuotaExceeded: the tenant has as much as it may.
        """
        info = ArtifactInfo.of(add_artifact(self._api, Path(path), kind, name))
        return Artifact(self._api, info.id, info)

    def get(self, artifact_id: str) -> Artifact:
        """Return one of the tenant's artifacts.

        Raises:
            NotFound: there is none of this id.
        """
        return Artifact(self._api, artifact_id, ArtifactInfo.of(self._api.get(f"/v1/artifacts/{artifact_id}")))

    def list(self, kind: str | None = None, job: str | None = None) -> Iterator[Artifact]:
        """Yield artifacts, newest first; pages are fetched as they are needed."""
        for each in self._api.pages("/v1/artifacts", "artifacts", kind=kind, job=job, limit=200):
            info = ArtifactInfo.of(each)
            yield Artifact(self._api, info.id, info)


def fetch_artifact(client: ApiClient, artifact_id: str, output: Path) -> dict[str, Any]:
    """Fetch an artifact's content to a new file or folder, which appears whole. Returns what the artifact is.

    Where it broke off before, the same call goes on.

    Raises:
        Conflict: ``output`` exists.
        Unavailable: the gateway stays away, or other bytes came than the artifact's.
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
    """Add a file or a folder as an artifact. Of a large one that broke off, what has come is not sent again.

    Raises:
        NotFound: there is nothing at ``path``.
    """
    if not path.exists():
        raise NotFound(f"there is nothing at {path}; name a file or folder of this machine")
    files = read_folder(path) if path.is_dir() else [(path.name, path)]
    title = name or path.absolute().name
    if files and sum(file.stat().st_size for _, file in files) >= IN_PIECES_BYTES:
        return client.upload_pieces(files, kind, title, is_folder=path.is_dir())
    form = {"kind": kind, "name": title, "folder": str(path.is_dir()).lower()}
    with ExitStack() as stack:
        return client.upload([(title, stack.enter_context(file.open("rb"))) for title, file in files], form)


def _fetch_folder(client: ApiClient, found: Mapping[str, Any], output: Path) -> None:
    # The folder gets its name when all its files are there; until then the next call goes on with them.
    incoming = output.absolute().with_name(f".{output.name}.{found['digest'][:16]}.part")
    incoming.mkdir(parents=True, exist_ok=True)
    for file in found["files"]:
        target = incoming / file["path"]
        if not target.exists():
            client.fetch_file(f"/v1/artifacts/{found['id']}/content", target, file["digest"], path=file["path"])
    incoming.rename(output)

"""Artifacts of a platform, for programs."""

from collections.abc import Iterator
from pathlib import Path

from rdukit_platform.client.http import ApiClient
from rdukit_platform.client.transfers import add_artifact, fetch_artifact
from rdukit_platform.client.values import ArtifactInfo


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

"""Whole artifacts to and from a platform: files and folders, large ones in pieces that go on where they broke off."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from rdukit.errors import Conflict, NotFound
from rdukit_platform.client.http import ApiClient, read_folder

#: From this size on an artifact goes in pieces.
IN_PIECES_BYTES: Final = 8 << 20


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
        raise NotFound(f"there is nothing at {path}")
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

"""Fetch an artifact in a separate process, so that a model server neither blocks nor grows.

``python -m rdukit_modelbox.artifacts.fetch`` reads ``{"uri", "what", "store", "parent"}`` from stdin and writes
``{"path"}`` or an error's body to stdout.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from rdukit.errors import RdukitError, Unavailable, error_from_body
from rdukit_modelbox.artifacts.mounts import Mounts
from rdukit_modelbox.artifacts.reference import is_remote, parse_reference


async def bring_file(mounts: Mounts, text: str, what: str) -> Path:
    """Return the path for ``text``; a remote URI is first fetched into the mounts' cache and screened.

    Raises:
        InvalidArgument: outside the mounts, or refused.
        NotFound, PermissionDenied, NoResources, Unavailable: it cannot be fetched.
    """
    if not is_remote(text):
        return mounts.resolve(text, what)
    reference = parse_reference(text, what)
    asked = {"uri": reference.text, "what": what, "store": str(mounts.artifacts), "parent": os.getpid()}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        output, _ = await process.communicate(json.dumps(asked).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        answer = json.loads(output)
    except ValueError as cause:
        raise Unavailable(f"{what}: fetching {reference.uri} ended with status {process.returncode}") from cause
    if "path" not in answer:
        raise error_from_body(answer)
    return Path(answer["path"])


def main() -> None:
    """Fetch the artifact that stdin names."""
    asked = json.loads(sys.stdin.readline())
    from rdukit.system.process import die_with_parent
    from rdukit_modelbox.artifacts.screen import screen
    from rdukit_modelbox.artifacts.store import ArtifactStore, current_limits

    die_with_parent(int(asked["parent"]))
    try:
        store = ArtifactStore(Path(asked["store"]))
        path = store.fetch(parse_reference(asked["uri"], asked["what"]), "any")
        screen(path, asked["what"], [store.folder.resolve()], current_limits())
        answer: dict[str, object] = {"path": str(path)}
    except RdukitError as error:
        answer = error.body()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()

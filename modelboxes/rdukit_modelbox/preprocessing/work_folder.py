"""What a preprocess has done so far, so that an attempt that was killed goes on where it was."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rdukit.files.atomic import sha256_of, write_json_atomic

IDENTITY: Final = "identity.json"
VERSION: Final = 1


class WorkFolder:
    """A folder beside the output, thrown away when it belongs to another request.

    Steps write their files first and ``finish`` last, so a step without its note is done again from the start.
    """

    def __init__(self, folder: Path, request: Mapping[str, object]) -> None:
        """``request``: all that the result depends on; only things that JSON holds."""
        self.folder = folder
        self.identity = identity_of(request)
        if self._note(IDENTITY) != {"identity": self.identity}:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            write_json_atomic(folder / IDENTITY, {"identity": self.identity})

    def find(self, step: str) -> dict[str, Any] | None:
        """What the finished ``step`` left; None if it is not finished."""
        return self._note(f"{step}.json")

    def finish(self, step: str, note: Mapping[str, object]) -> None:
        """Say that ``step`` is finished."""
        write_json_atomic(self.folder / f"{step}.json", note)

    def fresh(self, name: str) -> Path:
        """A path below the folder at which nothing is."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        return path

    def hand_over(self, name: str, target: Path) -> None:
        """What is at ``name`` becomes ``target``, whatever was there; then this folder is gone."""
        if target.exists():
            target.rename(self.fresh("replaced"))
        (self.folder / name).rename(target)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _note(self, name: str) -> dict[str, Any] | None:
        try:
            value = json.loads((self.folder / name).read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return value if isinstance(value, dict) else None


def identity_of(request: Mapping[str, object]) -> str:
    """SHA-256 that stands for a request."""
    return sha256_of(json.dumps({"version": VERSION, **request}, sort_keys=True).encode())

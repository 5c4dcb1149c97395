"""The folder in which a box keeps logs, outputs and fetched artifacts; one box at a time has it."""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rdukit.errors import Conflict, InvalidArgument
from rdukit.files.home import make_folder
from rdukit.files.locks import sole_lock
from rdukit_modelbox.artifacts.mounts import Mounts

#: Seconds to wait for another box to release the folder: a killed box may still be ending.
_LOCK_WAIT_S: Final = 1.0
_MIN_FREE_BYTES: Final = 16 << 20


class StateFolder:
    """A state folder that is this box's until ``close``, or until the process ends."""

    def __init__(self, folder: Path) -> None:
        """Create the folder.

        Raises:
            Conflict: another box has it.
            InvalidArgument: the folder cannot be created.
        """
        try:
            make_folder(folder)
        except OSError as cause:
            raise InvalidArgument(
                f"the state folder {folder} cannot be made: {cause.strerror}; pass another --state"
            ) from cause
        #: Path with links resolved.
        self.path = folder.resolve()
        #: Folder of the children's output.
        self.logs = self.path / "logs"
        self._held = ExitStack()
        if not self._held.enter_context(sole_lock(self.path / "lock", _LOCK_WAIT_S)):
            raise Conflict(
                f"another box has the state folder {self.path}; stop that box, or give this one other --state and ports"
            )

    def why_not_usable(self) -> str:
        """Return why operations cannot write there; empty if they can."""
        if not os.access(self.path, os.W_OK):
            return f"the state folder {self.path} is not writable"
        if shutil.disk_usage(self.path).free < _MIN_FREE_BYTES:
            return f"less than {_MIN_FREE_BYTES >> 20} MiB are free under {self.path}"
        return ""

    def make_output(self, mounts: Mounts, text: str, operation_id: str) -> Path:
        """Create the folder for an operation's outputs: ``text``, or a new one in the state folder.

        Raises:
            InvalidArgument: the folder is outside ``mounts``, or cannot be created.
        """
        folder = mounts.resolve_output(text) if text else self.path / "operations" / operation_id
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise InvalidArgument(f"output: {folder} cannot be made a folder: {cause.strerror}") from cause
        return folder

    def close(self) -> None:
        """Release the folder for other boxes."""
        self._held.close()

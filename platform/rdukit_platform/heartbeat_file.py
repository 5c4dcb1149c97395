"""A file that scheduler and worker touch while their loops turn; container engines probe it, since there is no port.

``python -m rdukit_platform.heartbeat_file worker`` ends with 0 if this host's or container's worker has touched its
file recently, otherwise with ``hang_guard.STUCK``. The file shows nothing about broker or database, whose absence a
restart would not mend; the gateway's health does.
"""

import logging
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rdukit.settings import home_folder
from rdukit.system.hang_guard import STUCK

logger = logging.getLogger(__name__)

#: A process that has not touched its file for these seconds counts as stuck. It waits for the database up to 15 s.
STUCK_S: Final = 30.0
KINDS: Final = ("scheduler", "worker")


class HeartbeatFile:
    """The file of one process of ``kind``; processes of a kind on one host share it."""

    def __init__(self, run_folder: Path, kind: str) -> None:
        self.path = run_folder / f"{kind}@{socket.gethostname()}.beat"

    def touch(self) -> None:
        """Touch the file: the loop works. A full disk does not stop the work."""
        try:
            self.path.touch(mode=0o600)
        except OSError as error:
            logger.warning("beat not written file=%s error=%s", self.path, error)

    def remove(self) -> None:
        """Report that the process ends."""
        self.path.unlink(missing_ok=True)

    def why_not(self, now: float) -> str | None:
        """Return the problem at ``now`` (seconds since the epoch); ``None``: there is no problem."""
        try:
            age = now - self.path.stat().st_mtime
        except FileNotFoundError:
            return f"{self.path} does not exist, because the service has not started"
        return f"{self.path} was touched {age:.0f} s ago; expected at most {STUCK_S:g}" if age > STUCK_S else None


def main(arguments: Sequence[str]) -> int:
    """Exit status of the probe."""
    if len(arguments) != 1 or arguments[0] not in KINDS:
        print(f"usage: python -m rdukit_platform.heartbeat_file {'|'.join(KINDS)}", file=sys.stderr)
        return 2
    found = HeartbeatFile(home_folder() / "run", arguments[0])
    why = found.why_not(time.time())
    if why is None:
        return 0
    print(why, file=sys.stderr)
    return STUCK if found.path.exists() else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

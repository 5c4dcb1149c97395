"""Settings of the node: its daemon, its leases, its places."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit.settings import SND_SOCKET, Setting, home_folder, resolve

NODE: Final = Setting(
    "node",
    "auto",
    "Which node programs run on: the daemon's, a private one inside the process, or auto: the daemon's if it answers.",
    str,
    legal=("auto", "private", "daemon"),
)
PLATFORM: Final = Setting("platform", "SN30-8", "Platform of emulated nodes when nothing else says which.", str)
LEASE: Final = Setting("lease", "", "<id>:<token> of a lease to attach to instead of acquiring one.", str)
SND_NAME: Final = Setting("snd.name", "", "Name of the daemon's node; default: the host's name.", str)
SND_MAX_APPLICATIONS: Final = Setting(
    "snd.max_applications", 0, "Applications at once on the daemon's node; 0: the platform's own limit.", int
)
SND_SOCKET_MODE: Final = Setting(
    "snd.socket_mode",
    "600",
    "Octal mode of the daemon's socket: 600 for one user, 666 for all users of the machine.",
    str,
)
SND_RDU_RESET_S: Final = Setting(
    "snd.rdu_reset_s", 0.0, "Seconds that the reset of an emulated RDU takes; it is PENDING meanwhile.", float
)
ROOT: Final = Setting(
    "root",
    "",
    "Prefix of the vendor's fixed places (/var/log/sambaflow …); default: none, all is in the home folder.",
    str,
)
ACQUIRE_WAIT_S: Final = Setting(
    "acquire.wait_s",
    0.0,
    "Seconds that a program waits in the daemon's queue for its tiles; 0: refused at once.",
    float,
)
#: The vendor's variable for the affinity hint. Source: runtime reference 3.2, 3.3.
TILE_AFFINITY_VARIABLE: Final = "SF_RNT_TILE_AFFINITY"


def socket_path(argument: Path | None = None) -> Path:
    """Where the daemon listens: the argument, ``$RDUKIT_SND_SOCKET``, the settings file, ``run/snd.sock``."""
    text = resolve(SND_SOCKET, None if argument is None else str(argument))
    return Path(text).expanduser().absolute() if text else default_socket_path()


def socket_mode() -> int:
    """Mode of the daemon's socket file.

    Raises:
        InvalidArgument: it is not an octal mode.
    """
    text = resolve(SND_SOCKET_MODE)
    try:
        mode = int(text, 8)
    except ValueError as cause:
        raise InvalidArgument(f"{SND_SOCKET_MODE.name} is {text!r}; legal: an octal mode such as 600 or 666") from cause
    if mode & ~0o666 or mode & 0o600 != 0o600:
        raise InvalidArgument(f"{SND_SOCKET_MODE.name} is {text!r}; legal: 600, 660 or 666")
    return mode


def default_socket_path() -> Path:
    """Where the daemon listens when nothing names another place."""
    root = resolve(ROOT)
    return Path(root).expanduser().absolute() / "run/sambaflow/snd.sock" if root else home_folder() / "run/snd.sock"


def tile_affinity(environ: Mapping[str, str] | None = None) -> int | None:
    """The mask in ``$SF_RNT_TILE_AFFINITY``, or ``None`` if it is not set.

    Raises:
        InvalidArgument: it is not a number.
    """
    text = (os.environ if environ is None else environ).get(TILE_AFFINITY_VARIABLE, "").strip()
    if not text:
        return None
    try:
        return int(text, 0)
    except ValueError as cause:
        raise InvalidArgument(
            f"${TILE_AFFINITY_VARIABLE} is {text!r}; legal: a number such as 0xf, one bit a tile"
        ) from cause

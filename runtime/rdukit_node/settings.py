"""Settings of the node (daemon, leases, isolation, SNML), and the places of its files that follow from them.

Source: runtime reference 2.1, 4.4, 7.1 (logs, SNML's socket); the places of the database and of the daemon's own socket
are ours. Without a root nothing needs an administrator.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from rdukit.errors import InvalidArgument
from rdukit.settings import SND_SOCKET, SND_STATE, Setting, home_folder, parse_bool, resolve

NODE: Final = Setting(
    "node",
    "auto",
    "Node that programs use: the daemon's, a private one inside the process, or auto (the daemon's if it answers).",
    str,
    legal=("auto", "private", "daemon"),
)
PLATFORM: Final = Setting("platform", "SN30-8", "Default platform of emulated nodes.", str)
SND_NAME: Final = Setting("snd.name", "", "Name of the daemon's node; default: the host's name.", str)
SND_MAX_APPLICATIONS: Final = Setting(
    "snd.max_applications", 0, "Concurrent applications on the daemon's node; 0: the platform's own limit.", int
)
SND_USER_CONNECTIONS: Final = Setting(
    "snd.user_connections",
    128,
    "Connections to the daemon per user, except root and the daemon's user.",
    int,
)
SND_USER_TILES: Final = Setting(
    "snd.user_tiles",
    0,
    "Tiles that one user may hold or wait for, except root and the daemon's user; 0: no limit.",
    int,
)
SND_USER_APPLICATIONS: Final = Setting(
    "snd.user_applications",
    0,
    "Concurrent applications per user, except root and the daemon's user; 0: no limit.",
    int,
)
SND_SOCKET_MODE: Final = Setting(
    "snd.socket_mode",
    "600",
    "Octal mode of the daemon's socket: 600 for one user, 666 for all users of the machine.",
    str,
)
SND_RDU_RESET_S: Final = Setting(
    "snd.rdu_reset_s", 0.0, "Seconds that a reset of an emulated RDU takes, during which the RDU is PENDING.", float
)
ROOT: Final = Setting(
    "root",
    "",
    "Prefix of the vendor's fixed paths (/var/log/sambaflow …); default: none, as all files are in the home folder.",
    str,
)
ACQUIRE_WAIT_S: Final = Setting(
    "acquire.wait_s",
    0.0,
    "Seconds that a program waits in the daemon's queue for its tiles; 0: no waiting.",
    float,
)
#: The vendor's variable for the affinity hint. Source: runtime reference 3.2, 3.3.
TILE_AFFINITY_VARIABLE: Final = "SF_RNT_TILE_AFFINITY"


def socket_path(argument: Path | None = None) -> Path:
    """Return the daemon's socket: the argument, ``$RDUKIT_SND_SOCKET``, the settings file, ``run/snd.sock``."""
    text = resolve(SND_SOCKET, None if argument is None else str(argument))
    return Path(text).expanduser().absolute() if text else default_socket_path()


def socket_mode() -> int:
    """Mode of the daemon's socket file.

    Raises:
        InvalidArgument: the text is not an octal mode.
    """
    text = resolve(SND_SOCKET_MODE)
    try:
        mode = int(text, 8)
    except ValueError as cause:
        raise InvalidArgument(
            f"{SND_SOCKET_MODE.name} is {text!r}; expected an octal mode such as 600 or 666"
        ) from cause
    if mode & ~0o666 or mode & 0o600 != 0o600:
        raise InvalidArgument(f"{SND_SOCKET_MODE.name} is {text!r}; expected 600, 660 or 666")
    return mode


def default_socket_path() -> Path:
    """Return the daemon's socket where nothing names another place."""
    root = resolve(ROOT)
    return Path(root).expanduser().absolute() / "run/sambaflow/snd.sock" if root else home_folder() / "run/snd.sock"


def tile_affinity(environ: Mapping[str, str] | None = None) -> int | None:
    """Return the mask in ``$SF_RNT_TILE_AFFINITY``, or ``None`` if it is not set.

    Raises:
        InvalidArgument: the text is not a number.
    """
    text = (os.environ if environ is None else environ).get(TILE_AFFINITY_VARIABLE, "").strip()
    if not text:
        return None
    try:
        return int(text, 0)
    except ValueError as cause:
        raise InvalidArgument(
            f"${TILE_AFFINITY_VARIABLE} is {text!r}; expected a number such as 0xf, with one bit per tile"
        ) from cause


SSH: Final = Setting("tools.ssh", "ssh", "Command with options by which --host runs tools on another machine.", str)

MODE: Final = Setting(
    "isolation.mode",
    "auto",
    "Isolation of programs that lease from the daemon: auto applies all available parts, strict refuses to run "
    "without one, off applies none.",
    str,
    legal=("auto", "off", "strict"),
)
CORES: Final = Setting("isolation.cores", False, "Bind a program to its tiles' share of the host's cores.", parse_bool)
DEBUGGABLE: Final = Setting(
    "isolation.debuggable",
    True,
    "Whether the same user's processes outside any lease may inspect a program (debuggers, profilers).",
    parse_bool,
)
WRITABLE: Final = Setting(
    "isolation.writable",
    "",
    "Colon-separated folders to which a program may write, besides the home folder, the temporary folder and devices; "
    "empty: no such limit.",
    str,
)
CGROUP: Final = Setting(
    "isolation.cgroup",
    "auto",
    "Control groups for applications: auto (where the daemon may create them), or off.",
    str,
    legal=("auto", "off"),
)
PIDS: Final = Setting(
    "isolation.pids", 4096, "Processes and threads per application, limited by its control group; 0: no limit.", int
)
MEMORY_BYTES: Final = Setting(
    "isolation.memory_bytes", 0, "Host memory per application, limited by its control group; 0: no limit.", int
)

ISOLATION_SETTINGS: Final = (MODE, CORES, DEBUGGABLE, WRITABLE, CGROUP, PIDS, MEMORY_BYTES)


#: Source: runtime reference 7.1.
DEFAULT_PORT: Final = 50053

SNML_PORT: Final = Setting(
    "snml.port",
    DEFAULT_PORT,
    "TCP port of SNML on the loopback address; 0: any free one; -1: only the UNIX socket.",
    int,
)

SNML_TLS_CERTIFICATE: Final = Setting(
    "snml.tls_certificate", "", "File with the certificate of SNML's TCP port; empty: no TLS.", str
)
SNML_TLS_KEY: Final = Setting("snml.tls_key", "", "File with the key of `snml.tls_certificate`.", str)
SNML_TLS_CA: Final = Setting(
    "snml.tls_ca",
    "",
    "File with the certificate authority for callers of SNML's TCP port; empty: callers need no certificate.",
    str,
)

#: Variable that names the server for clients: ``unix:PATH``, ``HOST:PORT`` or a path.
SERVER_VARIABLE: Final = "SNML_SERVER"


def server_address(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the address in ``$SNML_SERVER``, or ``None`` if it is not set."""
    return (os.environ if environ is None else environ).get(SERVER_VARIABLE, "").strip() or None


class NodePaths(NamedTuple):
    """Paths of one node's files, which need not exist."""

    socket: Path
    snml_socket: Path
    database: Path
    #: The shared log of all applications, and the daemon's own.
    sn_log: Path
    snd_log: Path
    #: Its readers may change the node: mode 0600.
    admin_token: Path

    @property
    def leases(self) -> Path:
        """File of active leases, for the next daemon: mode 0600."""
        return self.admin_token.with_name("leases.json")

    @property
    def lease_sockets(self) -> Path:
        """Sockets of leases' own, each in a folder of its lease's name."""
        return self.admin_token.with_name("leases")


def node_paths(socket: Path | None = None, state: Path | None = None) -> NodePaths:
    """Return the places in force: arguments, then settings, then ``$RDUKIT_ROOT``, then the home folder.

    With another socket and no state folder, the state is in ``<socket>.d``: two nodes on one machine must not share a
    database.
    """
    listening = socket_path(socket)
    root = resolve(ROOT)
    text = resolve(SND_STATE, None if state is None else str(state))
    folder: Path | None = Path(text).expanduser().absolute() if text else None
    if folder is None and listening != default_socket_path():
        folder = listening.with_name(listening.name + ".d")
    if folder is None and root:
        prefix = Path(root).expanduser().absolute()
        logs = prefix / "var/log/sambaflow/runtime"
        return NodePaths(
            socket=listening,
            snml_socket=prefix / "var/snml.sock",
            database=prefix / "var/lib/sambaflow/snfm/snfm.db",
            sn_log=logs / "sn.log",
            snd_log=logs / "snd.log",
            admin_token=prefix / "run/sambaflow/admin.token",
        )
    run = home_folder() / "run" if folder is None else folder
    folder = folder or home_folder()
    return NodePaths(
        socket=listening,
        snml_socket=run / "snml.sock",
        database=folder / "snfm/snfm.db",
        sn_log=folder / "logs/sn.log",
        snd_log=folder / "logs/snd.log",
        admin_token=run / "admin.token",
    )

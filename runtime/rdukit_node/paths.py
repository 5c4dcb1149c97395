"""Where a node keeps its things: the vendor's places under a root prefix, or the home folder.

Source: runtime reference 2.1, 4.4, 7.1 (logs, SNML's socket); the database's and the daemon's own socket's places are
ours. Without a root nothing needs an administrator.
"""

from pathlib import Path
from typing import NamedTuple

from rdukit.settings import SND_STATE, home_folder, resolve
from rdukit_node.settings import ROOT, default_socket_path, socket_path


class NodePaths(NamedTuple):
    """Files of one node; none need exist."""

    socket: Path
    snml_socket: Path
    database: Path
    #: The shared log of all applications, and the daemon's own.
    sn_log: Path
    snd_log: Path
    #: Whoever can read it may change the node: mode 0600.
    admin_token: Path

    @property
    def leases(self) -> Path:
        """Who holds what, for the next daemon: mode 0600."""
        return self.admin_token.with_name("leases.json")

    @property
    def lease_sockets(self) -> Path:
        """Sockets of leases' own, each in a folder of its lease's name."""
        return self.admin_token.with_name("leases")


def node_paths(socket: Path | None = None, state: Path | None = None) -> NodePaths:
    """The places in force: arguments, then settings, then ``$RDUKIT_ROOT``, then the home folder.

    A socket elsewhere than by default, without a state folder, has its node's state in ``<socket>.d``: two nodes on one
    machine must not share a database.
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

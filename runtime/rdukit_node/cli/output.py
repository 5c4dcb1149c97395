"""Common parts of the admin tools: aligned tables, JSON and CSV, times, and queries of a node or its database.

Listings are stable and without colour, so that two snapshots can be compared; only the result is printed to stdout.
Only light imports: job scripts run these tools before and after every step.

Source: runtime reference 4.3, 10.4, 11 (JSON for every view, also an empty one), 12 (reads while the daemon is down).
"""

import csv
import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import click

from rdukit.errors import InvalidArgument, PermissionDenied, RdukitError, Unavailable
from rdukit.hardware import NODES
from rdukit.interfaces import SystemClock
from rdukit.settings import resolve
from rdukit.snd import SndClient
from rdukit_node.inventory import ComponentKind, components
from rdukit_node.settings import SSH, NodePaths, node_paths

#: Text for a missing value of a component.
NOT_AVAILABLE: Final = "N/A"
#: Minor version of the socket's protocol that the tools need.
MINOR_VERSION: Final = 1
_TIMEOUT_S: Final = 5.0
#: Key of ``--state`` in the context of a command.
_STATE: Final = "rdukit_node.state"
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
csv_option = click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values with a header.")


@dataclass(frozen=True, slots=True)
class NodeReply:
    """A node's reply. ``age_s``: ``None`` if the daemon gave it just now, else the database's age."""

    values: Mapping[str, Any]
    age_s: float | None = None


Command = TypeVar("Command", bound=Callable[..., Any])
#: Function that reads the answer to an operation from the database of a node without a running daemon.
ReadStored = Callable[[NodePaths, str, Mapping[str, object]], NodeReply]


# -- which node ----------------------------------------------------------------------------------------------------


socket_option = click.option(
    "--socket",
    "socket_file",
    type=click.Path(path_type=Path),
    default=None,
    help="The daemon's UNIX socket (default: run/snd.sock in the home folder).",
)


def node_options(command: Command) -> Command:
    """Add the options that select the node: ``--socket`` for this machine, with ``--state`` for another state folder;
    ``--host`` for another machine.
    """
    return socket_option(_state_option(host_option(command)))


def _state_option(command: Command) -> Command:
    add = click.option(
        "--state", type=click.Path(path_type=Path), expose_value=False, callback=_remember_state,
        help="Folder of the node's database and token, if the daemon was started with --state.",
    )  # fmt: skip
    return add(command)


def _remember_state(context: click.Context, parameter: click.Parameter, state: Path | None) -> None:
    if state is not None:
        context.find_root().meta[_STATE] = state


def _paths(socket: Path | None) -> NodePaths:
    """Return the files of the node that ``node_options`` name."""
    context = click.get_current_context(silent=True)
    return node_paths(socket, None if context is None else context.find_root().meta.get(_STATE))


def host_option(command: Command) -> Command:
    """Add the option ``--host``, which runs the tool on another machine."""
    add = click.option(
        "--host", metavar="[USER@]HOST", expose_value=False, is_eager=True, callback=_run_there,
        help="Run the tool on this remote machine over ssh.",
    )  # fmt: skip
    return add(command)


def command_there(ssh: str, host: str, tool: str, arguments: Sequence[str], is_terminal: bool) -> list[str]:
    """Return the command line that runs a tool on another machine (pure).

    Args:
        ssh: the program with its options. arguments: of this call of the tool, ``--host`` among them.
    Raises:
        InvalidArgument: the host's name would be an option of ssh.
    """
    if not re.fullmatch(r"[\w.@:%\[\]][\w.@:%\[\]-]*", host):
        raise InvalidArgument(f"--host {host!r} is not a machine's name; expected HOST, USER@HOST or an address")
    kept: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--host":
            next(remaining, None)
        elif not argument.startswith("--host="):
            kept.append(argument)
    return [*shlex.split(ssh), *(["-t"] if is_terminal else []), host, "--", shlex.join([tool, *kept])]


def _run_there(context: click.Context, parameter: click.Parameter, host: str | None) -> None:
    if host is None:
        return
    line = command_there(resolve(SSH), host, context.command_path.split()[0], sys.argv[1:], is_terminal())
    try:
        os.execvp(line[0], line)  # its output, status and Ctrl-C are this command's
    except OSError as cause:
        raise Unavailable(f"{line[0]} cannot be run ({cause.strerror}); install it, or set {SSH.name}") from cause


# -- text ------------------------------------------------------------------------------------------------------------


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = (), gap: str = "  ") -> list[str]:
    """Return lines of a table whose columns line up; ``right``: the positions of columns that are
    aligned to the right.
    """
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        gap.join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def json_text(value: object) -> str:
    """Return one JSON document, keys in order."""
    return json.dumps(value, indent=2, sort_keys=True, default=str)


def json_line(value: object) -> str:
    """Return one JSON document on one line, for tools that print continuously."""
    return json.dumps(value, sort_keys=True, default=str)


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]], has_header: bool = True) -> str:
    """Comma-separated lines without the last newline; lists are joined by a semicolon, absent values are empty."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    if has_header:
        writer.writerow(columns)
    for row in rows:
        writer.writerow([_csv_cell(row.get(name)) for name in columns])
    return stream.getvalue().removesuffix("\n")


def _csv_cell(value: object) -> object:
    match value:
        case None:
            return ""
        case list() | tuple():
            return ";".join(map(str, value))
        case dict():
            return json.dumps(value, sort_keys=True)
    return value


# -- times -----------------------------------------------------------------------------------------------------------


def time_text(time_ns: int | None) -> str:
    """Return ``2024-06-11T02:14:55Z`` of nanoseconds since the epoch; ``-`` if there is no time."""
    if time_ns is None:
        return "-"
    try:
        return datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, OSError, ValueError):
        return str(time_ns)


def parse_time(text: str, now: float) -> int:
    """Return nanoseconds since the epoch of an ISO time (UTC unless it says otherwise), or of ``90s 10m 2h 1d 1w`` ago.

    Args:
        now: seconds since the epoch.
    Raises:
        InvalidArgument: the text is neither.
    """
    if ago := re.fullmatch(r"(\d{1,9})([smhdw])", text.strip()):
        return int((now - int(ago[1]) * _UNIT_S[ago[2]]) * 1e9)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as cause:
        raise InvalidArgument(
            f"{text!r} is not a time; expected 2024-06-11T02:14:55, 2024-06-11, or an age such as 90s, 10m, 2h, 1d"
        ) from cause
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1e9)


def moment_ns(text: str, now: float) -> int:
    """Return nanoseconds since the epoch of an ISO time, as ``parse_time``, or of a duration ``90s 10m 2h 1d 1w`` from
    now.

    Raises:
        InvalidArgument: the text is neither.
    """
    if ahead := re.fullmatch(r"(\d{1,9})([smhdw])", text.strip()):
        return int((now + int(ahead[1]) * _UNIT_S[ahead[2]]) * 1e9)
    return parse_time(text, now)


# -- asking a node ---------------------------------------------------------------------------------------------------


def connect(socket: Path | None = None, timeout_s: float = _TIMEOUT_S) -> SndClient:
    """Return a connection to the node's daemon that knows the operations of the tools.

    Raises:
        Unavailable: nothing listens there, or a daemon of an earlier version.
    """
    client = SndClient(_paths(socket).socket, timeout_s)
    try:
        minor = client.call("hello").get("minor", 0)
        if not isinstance(minor, int) or minor < MINOR_VERSION:
            raise Unavailable(
                f"the node daemon at {client.path} speaks minor version {minor} of the protocol, but the tools need "
                f"{MINOR_VERSION}; restart it with the installed version"
            )
    except RdukitError:
        client.close()
        raise
    return client


def connect_admin(socket: Path | None = None) -> SndClient:
    """Return a connection that may change the node: as root, as the daemon's user, or with its token.

    Raises:
        Unavailable: no daemon answers. PermissionDenied: this user may only read.
    """
    client = connect(socket)
    try:
        if client.call("hello").get("admin"):
            return client
        token_file = _paths(socket).admin_token
        try:
            token = token_file.read_text().strip()
        except OSError as cause:
            raise PermissionDenied(
                "only root, the node daemon's user and readers of its token may change the node; run this with sudo, "
                f"or ask for access to {token_file} ({cause.strerror})"
            ) from cause
        client.call("authorize", token=token)
    except RdukitError:
        client.close()
        raise
    return client


def unwritten_text(database: Mapping[str, Any]) -> str:
    """Describe rows missing in a daemon's database: the reason, and the numbers of waiting and lost rows; empty if none
    are missing.
    """
    dropped = int(database.get("dropped", 0))
    lost = f"{dropped} rows were lost, because too many waited for the disk" if dropped else ""
    if database.get("is_writable", True):
        return lost
    text = f"are not written down: {database['path']}: {database['reason']}; {database['pending']} rows wait"
    return f"{text}, {lost}" if lost else text


class Reader:
    """Reader of one node: from its daemon or, if the daemon does not answer, from its database, with the age of the
    data.
    """

    def __init__(self, socket: Path | None = None, stored: ReadStored | None = None) -> None:
        """Connect.

        Args:
            stored: reads the database; without it a daemon is required.
        Raises:
            Unavailable: no daemon answers, and there is no database.
        """
        #: Age of the last answer in seconds; ``None`` while a daemon answers.
        self.age_s: float | None = None
        self._paths = _paths(socket)
        self._stored = stored
        self._client: SndClient | None = None
        self._why = ""
        self._unwritten = ""
        self._is_shut = False
        try:
            self._client = connect(socket)
            self._unwritten = unwritten_text(self._client.call("hello").get("database", {}))
        except Unavailable as error:
            self._why = error.message
            self._is_shut = isinstance(error.__cause__, PermissionError)
            if stored is None:
                raise
            if not self._paths.database.exists():
                raise Unavailable(f"{error.message}; nor is there a database at {self._paths.database}") from error

    def ask(self, op: str, **arguments: object) -> dict[str, Any]:
        """Return the answer to one operation, without its ``ok``. Absent arguments (``None``) are left out.

        Raises:
            RdukitError: refused. Unavailable: the daemon ended, or the database cannot answer this.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        if self._client is not None:
            answer = self._client.call(op, **given)
            answer.pop("ok", None)
            return answer
        assert self._stored is not None
        if self._is_shut and op == "status":  # the database would show all tiles as free
            raise Unavailable(f"{self._why}; only the daemon knows the holders of tiles")
        found = self._stored(self._paths, op, given)
        self.age_s = found.age_s
        return dict(found.values)

    def say_age(self, tool: str) -> None:
        """Print a note to stderr if the last answer came from the database, or if the daemon cannot write it."""
        if self._unwritten:
            click.echo(f"{tool}: errors and faults {self._unwritten}", err=True)
        if self.age_s is not None:
            click.echo(f"{tool}: {self._why}; this is its database, last written {self.age_s:.0f} s ago", err=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            self._client.close()


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


def read_stored(paths: NodePaths, op: str, arguments: Mapping[str, object]) -> NodeReply:
    """Return the answer to ``op``. Without a daemon no tile is held, so ``status`` has no leases.

    Raises:
        Unavailable: only a running daemon knows this, or the file cannot be read. InvalidArgument: the file is not a
            database of rdukit.
    """
    from rdukit_node.faults.store import FaultStore  # imports sqlite3, which is not needed with a daemon

    with FaultStore.read_only(paths.database) as reader:
        age_s = reader.age_s(SystemClock().now())
        if op in {"hello", "status"}:
            return NodeReply(stored_status(reader.inventory()), age_s)
        return NodeReply(reader.answer(op, arguments), age_s)


def stored_status(inventory: list[dict[str, object]]) -> dict[str, object]:
    """Derive a node's status from its inventory: the platform and the health of the tiles.

    Raises:
        Unavailable: the database is empty: the node was never started.
    """
    if not inventory:
        raise Unavailable("the node's database has no inventory yet; start the node once with: rdukit node start")
    tiles = [row for row in inventory if row["kind"] == ComponentKind.TILE]
    return {
        "platform": platform_of(inventory),
        "tiles": [{"path": row["comp_name"], "lease": None, "health": row["health"]} for row in tiles],
        "leases": [],
    }


def platform_of(inventory: list[dict[str, object]]) -> str:
    """Return the platform that has exactly these components, else ``unknown``."""
    paths = [str(row["comp_name"]) for row in inventory]
    return next((name for name, node in NODES.items() if [each.path for each in components(node)] == paths), "unknown")

"""Text of ``rdukit node status`` and ``rdukit node events`` (pure), and the node's line of ``rdukit status``."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rdukit.cli.status import PartStatus
from rdukit.cli.tables import Table, format_table
from rdukit.errors import Unavailable
from rdukit.snd import SndClient
from rdukit.units import format_bytes, format_seconds
from rdukit_node.cli.output import time_text, unwritten_text
from rdukit_node.settings import socket_path
from rdukit_node.telemetry.sampling import WORKING

_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwyz0123456789+*"
_FREE: Final = "."
_OUT_OF_SERVICE: Final = "x"
_CORDONED: Final = "-"
#: A tile of a lease that is not shown.
_OTHERS: Final = "o"
#: Seconds that the daemon may take to answer ``rdukit status``.
_REPORT_S: Final = 3.0

Row = Mapping[str, Any]


def status_lines(answer: Mapping[str, Any], now: float, width: int | None = None) -> list[str]:
    """Return the text of a ``status`` answer: a head, the tiles by RDU, their holders, and waiting requests.

    Args:
        now: seconds since the epoch.
        width: columns of the screen; ``None``: unlimited.
    """
    leases: Sequence[Row] = answer["leases"]
    letters = {lease["id"]: _LETTERS[i % len(_LETTERS)] for i, lease in enumerate(leases)}
    return [
        *_head_lines(answer), "", *_rdu_lines(answer, letters), "", *_lease_lines(leases, letters, now, width),
        *_waiting_lines(answer.get("waiting", ()), now, width),
    ]  # fmt: skip


def of_job(answer: Mapping[str, Any], job: str) -> dict[str, Any]:
    """Return a ``status`` answer with the leases and requests of one job; its tiles are those of the node."""
    leases = [lease for lease in answer["leases"] if lease["job"] == job]
    return {**answer, "leases": leases, "waiting": [row for row in answer.get("waiting", ()) if row["job"] == job]}


def _head_lines(answer: Mapping[str, Any]) -> list[str]:
    tiles: Sequence[Row] = answer["tiles"]
    memory = answer["memory"]
    memory_free = memory.get("free", memory["total"] - memory["used"])  # an earlier daemon lacks the key
    free = sum(tile["lease"] is None and _is_allocated(tile) for tile in tiles)
    lost = sum(not _is_working(tile) for tile in tiles)
    cordoned = sum(bool(tile.get("cordon")) for tile in tiles)
    lines = [
        f"{answer['platform']} ({answer['chip']}) on {answer['node']}, up {format_seconds(answer['uptime_s'])}",
        f"tiles   {free} of {len(tiles)} free"
        + (f", {lost} out of service ({_OUT_OF_SERVICE})" if lost else "")
        + (f", {cordoned} cordoned ({_CORDONED} where free)" if cordoned else ""),
        f"memory  {format_bytes(memory_free)} of {format_bytes(memory['total'])} free",
        f"apps    {answer['applications']} of {answer['max_applications']}",
    ]
    for row in answer.get("cordons", ()):
        why, leases = f": {row['reason']}" if row["reason"] else "", len(row["leases"])
        still = f", {leases} {'lease' if leases == 1 else 'leases'} to end" if row["state"] == "draining" else ""
        lines.append(f"cordon  {row['component']} {row['state']}{still}{why}")
    for row in answer.get("windows", ()):
        end = "someone ends it" if row["ends_at"] is None else time_text(row["ends_at"])
        times = f"{time_text(row['starts_at'])} until {end}"
        lines.append(f"upkeep  {row['component']} {row['window']} from {times}: {row['reason']}")
    unwritten = unwritten_text(answer.get("database", {}))
    return lines + ([f"faults  {unwritten}"] if unwritten else [])


def _rdu_lines(answer: Mapping[str, Any], letters: Mapping[str, str]) -> list[str]:
    states = {row["comp_name"]: row for row in answer.get("rdus", ())}
    by_rdu: dict[str, list[str]] = {}
    for tile in answer["tiles"]:
        by_rdu.setdefault(str(tile["path"]).rpartition("/")[0], []).append(_mark(tile, letters))
    return [f"{rdu}  {' '.join(marks)}{_state_text(states.get(rdu))}" for rdu, marks in by_rdu.items()]


def _mark(tile: Row, letters: Mapping[str, str]) -> str:
    if tile["lease"] is not None:
        return letters.get(tile["lease"], _OTHERS)
    if not _is_working(tile):
        return _OUT_OF_SERVICE
    return _CORDONED if tile.get("cordon") else _FREE


def _state_text(row: Row | None) -> str:
    if row is None or row["state"] == "FUNCTIONAL":
        return ""
    return f"  {row['state']}" + (f": {row['reason']}" if row["reason"] else "")


def _lease_lines(leases: Sequence[Row], letters: Mapping[str, str], now: float, width: int | None) -> list[str]:
    if not leases:
        return ["no leases"]
    rows = [
        ["", "LEASE", "APPLICATION", "USER", "TENANT", "JOB", "TILES", "MEMORY", "USED", "PHASE", "PIDS", "AGE"],
        *(
            [
                letters[lease["id"]], lease["id"], lease["application"], lease.get("user") or "-",
                lease["tenant"] or "-", lease["job"] or "-", str(len(lease["tiles"])),
                format_bytes(lease["memory_bytes"]), format_bytes(lease["memory_allocated"]),
                "FAULT" if lease.get("fault") else str(lease["counters"].get("phase", "-")),
                ",".join(map(str, lease["pids"])) or "-", format_seconds(max(0.0, now - lease["granted_at"])),
            ]
            for lease in leases
        ),
    ]  # fmt: skip
    failed = [f"{letters[lease['id']]}  {_message(lease['fault'])}" for lease in leases if lease.get("fault")]
    return [*_table(rows, width), *failed]


def _message(fault: object) -> str:
    return str(fault.get("message", fault)) if isinstance(fault, Mapping) else str(fault)


def _waiting_lines(waiting: Sequence[Row], now: float, width: int | None) -> list[str]:
    """List the queued requests, the next one first."""
    if not waiting:
        return []
    rows = [["WAITING", "TILES", "MEMORY", "SINCE", "REASON"]]
    rows += [
        [str(row["application"]), str(row["tiles"]), format_bytes(row["memory_bytes"]),
         format_seconds(max(0.0, now - row["since"])), str(row["reason"])]
        for row in waiting
    ]  # fmt: skip
    return ["", *_table(rows, width)]


def _table(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    return format_table(Table("", tuple(rows[0]), tuple(map(tuple, rows[1:]))), width).splitlines()


def _is_working(tile: Row) -> bool:
    return tile.get("health", "Online") in WORKING


def _is_allocated(tile: Row) -> bool:
    return _is_working(tile) and not tile.get("cordon")


def event_line(event: Mapping[str, Any]) -> str:
    """Return the text form of one event."""
    stamp = datetime.fromtimestamp(event["time"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    tiles = event["tiles"]
    words = [f"{event['seq']:>5}", stamp, f"{event['kind']:<9}"]
    if event["lease"] or event["application"]:
        words += [event["lease"] or "-", f"application={event['application']}"]
    if tiles:
        words.append(tiles[0] if len(tiles) == 1 else f"{tiles[0]} and {len(tiles) - 1} more")
    if event.get("component"):
        words.append(event["component"])
    words += [f"{name}={event[name]}" for name in ("tenant", "job", "pid", "reason") if event[name]]
    words += [f"{name.removesuffix('_uuid')}={event[name]}" for name in ("error_uuid", "fault_uuid") if event.get(name)]
    return "  ".join(words)


def report_node() -> Iterator[PartStatus]:
    """Report the node daemon in one line of ``rdukit status``."""
    path = socket_path()
    try:
        with SndClient(path, _REPORT_S) as client:
            answer = dict(client.status())
    except Unavailable as error:
        is_away = not path.exists() or isinstance(error.__cause__, ConnectionRefusedError)
        text = "not running; start one: rdukit node start" if is_away else error.message
        yield PartStatus("node", "stopped" if is_away else "unknown", text, {"socket": str(path)})
        return
    tiles: Sequence[Row] = answer["tiles"]
    free = sum(tile["lease"] is None and _is_allocated(tile) for tile in tiles)
    cordoned = sum(bool(tile.get("cordon")) for tile in tiles)
    text = (
        f"{answer['platform']} on {answer['node']}: {free} of {len(tiles)} tiles free, "
        + (f"{cordoned} cordoned, " if cordoned else "")
        + f"{answer['applications']} of {answer['max_applications']} applications"
    )
    figures = {name: answer[name] for name in ("platform", "node", "applications", "max_applications", "uptime_s")}
    yield PartStatus("node", "running", text, {"socket": str(path), "tiles": len(tiles), "free_tiles": free, **figures})

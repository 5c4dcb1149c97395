"""The listings of ``snfadm`` as data, and their rendering as lines, CSV and blocks of text (pure).

Source: runtime reference 4.2 (field names), 4.3 (the inventory's four columns; the other layouts are ours).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit.units import format_seconds
from rdukit_node.cli.output import NOT_AVAILABLE, aligned, csv_text, time_text
from rdukit_node.faults.enums import FaultSeverity
from rdukit_node.inventory import LISTED_KINDS

Row = Mapping[str, Any]

#: Value of ``count`` for policies that do not count errors, such as those of requested errors.
_NO_COUNT: Final = 1_000_000
SEVERITIES: Final = tuple(map(str, FaultSeverity))
_UNHEALTHY_STATES: Final = frozenset({"PENDING", "UNAVAILABLE"})


@dataclass(frozen=True, slots=True)
class View:
    """A listing: the operation that fills it and its columns.

    ``accepted`` are the filters that the daemon applies. ``columns`` are for ``--csv``, ``more`` for ``--csv
    --verbose``, ``cells`` for the short line.
    """

    op: str
    key: str
    columns: tuple[str, ...]
    cells: Callable[[Row], list[str]]
    more: tuple[str, ...] = ()
    accepted: frozenset[str] = frozenset()
    #: Column with the row's time (its begin, if it has an end), for filters that the daemon does not apply.
    time: str | None = None
    #: Column with the row's end, if rows have one; its value is empty until then.
    end: str | None = None
    #: The column with the row's component, or components.
    component: str | None = "comp_name"
    #: Rows per request if the daemon has no pages.
    limit: int | None = None
    separator: str | None = None
    is_paged: bool = False


def _texts(row: Row, *names: str) -> list[str]:
    return ["-" if row.get(name) is None else str(row[name]) for name in names]


#: The daemon has more, but an answer is one line, and long lines are refused.
_MAX_APPLICATIONS: Final = 200
_QUERY: Final = frozenset({"component", "type", "since", "until"})

VIEWS: Final[Mapping[str, View]] = {
    "inventory": View(
        "inventory", "components", ("comp_name", "serial", "presence", "health"),
        lambda row: [row["comp_name"], row["serial"] or NOT_AVAILABLE, row["presence"], row["health"]],
        ("kind", "parent", "part", "size_bytes"), separator=" | ",
    ),
    "error": View(
        "errors", "errors",
        ("err_uuid", "orig_timestamp", "last_timestamp", "err_count", "err_type", "comp_name", "fault_uuid",
         "err_type_desc", "err_data"),
        lambda row: [time_text(row["last_timestamp"]), row["err_uuid"], f"x{row['err_count']}",
                     *_texts(row, "err_type", "comp_name", "fault_uuid")],
        ("recovery_act", "application", "tenant", "job", "lease", "pid"), _QUERY, is_paged=True,
    ),
    "fault": View(
        "faults", "faults",
        ("fault_uuid", "timestamp", "severity", "fault_type", "fault_state", "comp_name", "comp_ser_num", "err_uuid",
         "fault_desc", "recovery_act", "cleared_timestamp"),
        lambda row: [time_text(row["timestamp"]),
                     *_texts(row, "fault_uuid", "severity", "fault_type", "comp_name", "fault_state")],
        ("cleared_by", "action", "suspects", "application", "tenant", "job", "lease", "pid"), _QUERY, is_paged=True,
    ),
    "policy": View(
        "policies", "policies",
        ("error_type", "fault_type", "count", "window_s", "action", "severity", "fault_desc", "fault_detail_desc",
         "recovery_act"),
        lambda row: [str(row["error_type"]), *_texts(row, "fault_type"), _threshold(row),
                     *_texts(row, "action", "severity")],
        component=None,
    ),
    "hang": View(
        "hangs", "hangs", ("timestamp", "rdu", "comp_name", "event", "outcome"),
        lambda row: [time_text(row["timestamp"]), *_texts(row, "comp_name", "event", "outcome")],
        accepted=frozenset({"component"}), time="timestamp",
    ),
    "op-state": View(
        "op_state", "rdus", ("rdu", "comp_name", "state", "available_tiles", "perfect", "since", "reason"),
        lambda row: [*_texts(row, "comp_name", "state"), f"tiles={row['available_tiles']}",
                     f"perfect={'yes' if row['perfect'] else 'no'}", time_text(row["since"]), row["reason"] or ""],
    ),
    "applications": View(
        "applications", "applications",
        ("lease", "application", "user", "pid", "tenant", "job", "granted_at", "ended_at", "elapsed_s", "tiles",
         "memory_bytes", "runs", "sections", "host_seconds", "cycles", "flops", "bytes", "reason", "fault"),
        lambda row: [time_text(row["granted_at"]), _elapsed(row), *_texts(row, "lease", "application", "user"),
                     *(f"{name}={row.get(name) or '-'}" for name in ("tenant", "job")), f"tiles={len(row['tiles'])}",
                     f"runs={row['runs']}", f"host={format_seconds(row['host_seconds'])}", _why(row)],
        ("command",), time="granted_at", end="ended_at", component="tiles", limit=_MAX_APPLICATIONS,
    ),
    "maintenance": View(
        "maintenance", "maintenance",
        ("kind", "component", "state", "window", "since", "starts_at", "ends_at", "deadline", "by", "reason", "leases"),
        lambda row: [*_texts(row, "component", "state"), _when(row), row["reason"] or "-", f"by {row['by']}",
                     f"leases={','.join(row['leases']) or '-'}"],
        component="component",
    ),
    "catalogue": View(
        "catalogue", "classes",
        ("name", "error_type", "part", "component_kind", "severity", "is_uncorrectable", "persists", "action", "cause",
         "signs", "effect", "suggestion"),
        lambda row: [*_texts(row, "name", "error_type", "part", "component_kind", "severity", "cause")],
        component=None,
    ),
}  # fmt: skip


def _threshold(row: Row) -> str:
    count, window = row.get("count") or 0, row.get("window_s")
    if count >= _NO_COUNT:
        return "if the reset fails"
    return f"{count}" if not window else f"{count} in {window:g} s"


def maintenance_rows(answer: Row, now_ns: int) -> list[Row]:
    """Return cordons and windows of the operation ``maintenance`` as rows of one listing."""
    rows: list[Row] = [{**row, "kind": "cordon", "window": None} for row in answer["cordons"]]
    for window in answer["windows"]:
        grace_s, starts_at = window["grace_s"], window["starts_at"]
        deadline = None if grace_s is None else starts_at + int(grace_s * 1e9)
        state = "in maintenance" if starts_at <= now_ns else "planned"
        rows.append({**window, "kind": "window", "state": state, "leases": [], "deadline": deadline})
    return [{"state": "draining" if row.get("is_draining") else "cordoned", **row} for row in rows]


def _when(row: Row) -> str:
    if row["kind"] == "window":
        end = "someone ends it" if row["ends_at"] is None else time_text(row["ends_at"])
        return f"{row['window']} from {time_text(row['starts_at'])} until {end}"
    deadline = row.get("deadline")
    return f"since {time_text(row['since'])}" + ("" if deadline is None else f", deadline {time_text(deadline)}")


def _elapsed(row: Row) -> str:
    return "-" if row["elapsed_s"] is None else format_seconds(row["elapsed_s"])


def _why(row: Row) -> str:
    """Return why an application ended. An application also releases its tiles after a hardware failure; then the fault
    is the reason.
    """
    return f"{row['reason'] or '-'}" + (f", after fault {row['fault']}" if row.get("fault") else "")


def _fault_of(lease: Row) -> object:
    fault = lease.get("fault")
    if not isinstance(fault, Mapping):
        return fault
    return fault.get("detail", {}).get("fault_uuid") or fault.get("message")


def running_rows(leases: Iterable[Row]) -> list[Row]:
    """Return accounting rows of active leases, newest first.

    Args:
        leases: those of ``status``.
    """
    names = ("runs", "sections", "cycles", "flops", "bytes", "host_seconds")
    rows = [
        {
            **{name: lease.get(name) for name in ("application", "tenant", "job", "user", "command", "memory_bytes")},
            "lease": lease["id"],
            "pid": next(iter(lease.get("pids") or ()), None),
            "tiles": list(lease["tiles"]),
            "granted_at": int(lease["granted_at"] * 1e9),
            "ended_at": None,
            "reason": "running",
            **{name: (lease.get("counters") or {}).get(name, 0) for name in names},
            "fault": _fault_of(lease),
        }
        for lease in leases
    ]
    return sorted(rows, key=lambda row: -row["granted_at"])


# -- choosing rows ---------------------------------------------------------------------------------------------------


def with_node_prefix(component: str) -> str:
    """Return the path in snfadm's form: some tools leave out ``/NODE``."""
    path = "/" + component.strip("/")
    return path if path == "/NODE" or path.startswith("/NODE/") else "/NODE" + path.rstrip("/")


def is_within(path: object, component: str) -> bool:
    """Return whether ``path`` is ``component`` or a part of it."""
    return path == component or str(path).startswith(component + "/")


def choose_rows(
    view: View, rows: Iterable[Row], component: str | None = None, since: int | None = None, until: int | None = None
) -> list[Row]:
    """Filter the daemon's rows by the options. Times are in nanoseconds, inclusive."""
    chosen = []
    for row in rows:
        if component is not None and view.component and not _concerns(row.get(view.component), component):
            continue
        if view.time and "since" not in view.accepted:
            begin = row[view.time]
            end = begin if view.end is None else row[view.end]
            if (since is not None and end is not None and end < since) or (until is not None and begin > until):
                continue
        chosen.append(row)
    return chosen


def _concerns(paths: object, component: str) -> bool:
    return any(is_within(path, component) for path in (paths if isinstance(paths, list | tuple) else [paths]))


def with_elapsed(applications: Iterable[Row], now_ns: int) -> list[Row]:
    """Return accounting rows with ``elapsed_s``: seconds from the grant to the end, or until now."""
    return [
        {**row, "elapsed_s": ((row["ended_at"] or now_ns) - row["granted_at"]) / 1e9} for row in applications
    ]  # fmt: skip


def with_advice(errors: Iterable[Row], policies: Iterable[Row]) -> list[Row]:
    """Return errors with ``recovery_act``: the advice of the policy for their type."""
    advice = {policy["error_type"]: policy["recovery_act"] for policy in policies}
    return [{**row, "recovery_act": advice.get(row["err_type"])} for row in errors]


# -- rendering -------------------------------------------------------------------------------------------------------


def view_lines(view: View, rows: Sequence[Row]) -> list[str]:
    """Return the short listing: one line a row; the inventory without the components that only hold others."""
    if view.op == "inventory":
        rows = [row for row in rows if row["kind"] in LISTED_KINDS]
    cells = [view.cells(row) for row in rows]
    return [view.separator.join(row) for row in cells] if view.separator else aligned(cells)


def view_csv(view: View, rows: Sequence[Row], is_verbose: bool = False, has_header: bool = True) -> str:
    """Return a header and one line a row; times in the form of the listing."""
    columns = (*view.columns, *view.more) if is_verbose else view.columns
    if view.op == "inventory" and not is_verbose:
        rows = [row for row in rows if row["kind"] in LISTED_KINDS]
    return csv_text(columns, ({name: _plain_time(name, row.get(name)) for name in columns} for row in rows), has_header)


def view_blocks(view: View, rows: Sequence[Row]) -> list[str]:
    """Return the long form: a block a row, a line a field, an empty line between blocks."""
    lines: list[str] = []
    names = (*view.columns, *(name for name in view.more if name not in view.columns))
    width = max(map(len, names))
    for row in rows:
        lines += [""] if lines else []
        for name in names:
            lines += _field_lines(name, _described(view, name, row), width)
    return lines


def nothing_text(listing: str, has_cleared: bool) -> str:
    """Return the text for an empty listing."""
    if listing == "fault":
        return "no faults" if has_cleared else "no active faults; -a lists cleared ones too"
    return f"nothing to list under {listing}"


def suggestion_blocks(faults: Sequence[Row]) -> list[str]:
    """Advise on the active faults, the gravest first, with their suspects in order."""
    lines: list[str] = []
    for row in sorted(faults, key=lambda each: (-_rank(each.get("severity")), each.get("timestamp") or 0)):
        lines += [""] if lines else []
        lines.append(f"{row['severity']}  {row['fault_type']}  {row['comp_name']}")
        lines.append(f"    fault    {row['fault_uuid']}")
        lines.append(f"    advice   {row.get('recovery_act') or NOT_AVAILABLE}")
        if row.get("action"):
            lines.append(f"    action   {row['action']}")
        lines += [f"    suspect  {n}. {path}" for n, path in enumerate(row.get("suspects") or (), 1)]
    return lines


def _field_lines(name: str, value: object, width: int) -> list[str]:
    if isinstance(value, list | tuple):
        texts = [f"{n}. {each}" for n, each in enumerate(value, 1)] or ["-"]
    elif isinstance(value, Mapping):
        texts = [f"{key}={each}" for key, each in value.items()] or ["-"]
    else:
        texts = ["-" if value is None or value == "" else str(value)]
    return [f"{name if not n else '':<{width}} : {text}".rstrip() for n, text in enumerate(texts)]


def _described(view: View, name: str, row: Row) -> object:
    """Return a field's value; a cleared fault's description says when. Source: runtime reference 4.3 (since 1.15)."""
    value = _plain_time(name, row.get(name))
    is_cleared = view.op == "faults" and row.get("cleared_timestamp") is not None
    if name == "fault_desc" and is_cleared and "cleared" not in str(value).lower():
        by = f" by {row['cleared_by']}" if row.get("cleared_by") else ""
        value = f"{value} (cleared{by} at {time_text(row['cleared_timestamp'])})"
    return value


_TIMES: Final = ("timestamp", "since", "_at", "deadline")


def _plain_time(name: str, value: object) -> object:
    return time_text(value) if isinstance(value, int) and name.endswith(_TIMES) else value


# -- the verdict -----------------------------------------------------------------------------------------------------


def _rank(severity: object) -> int:
    return SEVERITIES.index(str(severity)) if severity in SEVERITIES else len(SEVERITIES)


def find_severity(word: str) -> str:
    """Return a severity in any case.

    Raises:
        InvalidArgument: the severity is unknown.
    """
    for severity in SEVERITIES:
        if severity.lower() == word.lower():
            return severity
    raise InvalidArgument(f"unknown severity {word!r}; expected {', '.join(SEVERITIES)}")


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """The node's health as an exit status: 0 healthy, 1 not, 2 unknown."""

    exit_status: int
    word: str
    faults: tuple[Row, ...]
    rdus: tuple[Row, ...]

    @property
    def line(self) -> str:
        """Return a line for people."""
        reasons = [f"{row['severity']} {row['fault_type']} {row['comp_name']}" for row in self.faults]
        reasons += [f"{row['comp_name']} is {row['state']}" for row in self.rdus]
        return self.word + (": " + "; ".join(reasons) if reasons else "")


def judge(faults: Iterable[Row], rdus: Iterable[Row], severity: str, is_current: bool) -> HealthVerdict:
    """Return the verdict over active faults at or above ``severity`` and RDUs that are recovering or out of service.

    A node is never called healthy while a recovery is pending, or if its daemon does not answer.

    Source: runtime reference 4.3, 11.
    """
    bad = tuple(
        row for row in faults if row.get("fault_state") == "ACTIVE" and _rank(row.get("severity")) >= _rank(severity)
    )
    out = tuple(row for row in rdus if row.get("state") in _UNHEALTHY_STATES)
    if bad or out:
        return HealthVerdict(1, "faulty", bad, out)
    return HealthVerdict(0, "healthy", (), ()) if is_current else HealthVerdict(2, "unknown", (), ())

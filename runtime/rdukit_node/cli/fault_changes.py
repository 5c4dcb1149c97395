"""The changes of ``snfadm``: convert options to one operation, and its answer to lines. It reads scenario files, but
contacts no daemon.

Source: runtime reference 4.3 (a clear for root exists; its spelling and the other changes are ours).
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit_node.cli.fault_views import VIEWS, Row, find_severity, view_lines, with_node_prefix
from rdukit_node.cli.output import moment_ns, time_text
from rdukit_node.daemon.protocol import MAX_REQUEST_BYTES
from rdukit_node.faults.enums import Action

#: Option → its parameter's name.
CHANGES: Final[Mapping[str, str]] = {
    "--clear": "clear_uuid", "--inject": "inject_class", "--scenario": "scenario", "--repair": "repair",
    "--replace": "replace", "--reset-counts": "reset_counts",
    "--reset": "reset", "--set-policy": "set_policy", "--cordon": "cordon", "--uncordon": "uncordon",
    "--drain": "drain", "--release": "release_lease", "--maintain": "maintain",
    "--end-maintenance": "end_maintenance",
}  # fmt: skip
#: Options of ``--set-policy``: parameter → field of a policy.
POLICY_FIELDS: Final[Mapping[str, str]] = {
    "count": "count", "window": "window_s", "action": "action", "severity": "severity", "fault_type": "fault_type",
}  # fmt: skip
#: Largest scenario as JSON, in bytes, within the limit of a request.
_MAX_SCENARIO: Final = MAX_REQUEST_BYTES - 1024


def change_request(change: str, options: Mapping[str, Any], now: float = 0.0) -> tuple[str, dict[str, object]]:
    """Return the operation and arguments of one change, except ``--set-policy``. ``now``: seconds since the epoch.

    Raises:
        InvalidArgument: ``--data`` is not ``KEY=VALUE``, or the scenario cannot be read or is too long.
    """
    match change:
        case "--clear":
            return "clear", {"fault": options["clear_uuid"]}
        case "--repair" | "--replace" | "--reset" | "--reset-counts":
            return CHANGES[change], {"component": with_node_prefix(options[CHANGES[change]])}
        case "--scenario":
            return "scenario", _without_none({"text": _scenario_text(options["scenario"]), "seed": options["seed"]})
        case "--cordon" | "--uncordon" | "--drain":
            op = change.removeprefix("--")
            more = {"reason": options["reason"], "deadline_s": options["deadline"]}
            return op, _without_none({"component": with_node_prefix(options[op]), **more})
        case "--release":
            return "evict", _without_none({"lease": options["release_lease"], "reason": options["reason"]})
        case "--maintain":
            return "plan_maintenance", _window_of(options, now)
        case "--end-maintenance":
            return "end_maintenance", {"window": options["end_maintenance"]}
        case _:
            component = with_node_prefix(options["component"]) if options["component"] else None
            event = {
                "class": options["inject_class"],
                "component": component,
                "count": options["count"],
                "seed": options["seed"],
                "data": dict(map(read_pair, options["data"])) or None,
            }
            return "inject", {"events": [_without_none(event)]}


def policy_request(options: Mapping[str, Any], policies: Iterable[Row]) -> dict[str, object]:
    """Return arguments of ``set_policy``: the policy in force, changed by the options.

    Args:
        policies: policies in force, rows of ``policies``.
    Raises:
        InvalidArgument: no such error type, or an illegal value; the message lists the legal ones.
    """
    error_type = options["set_policy"]
    by_type = {str(row["error_type"]): row for row in policies}
    if error_type not in by_type:
        raise InvalidArgument(f"unknown error type {error_type!r}; expected {', '.join(by_type)}")
    given = {field: options[name] for name, field in POLICY_FIELDS.items() if options[name] is not None}
    if not given:
        legal = ", ".join("--" + name.replace("_", "-") for name in POLICY_FIELDS)
        raise InvalidArgument(f"--set-policy {error_type} needs a change; give one or more of {legal}")
    if "severity" in given:
        given["severity"] = find_severity(given["severity"])
    if "action" in given and given["action"] not in list(Action):
        raise InvalidArgument(f"unknown action {given['action']!r}; expected {', '.join(Action)}")
    now = {field: by_type[error_type][field] for field in POLICY_FIELDS.values()}
    return {"error_type": error_type, **now, **given}


def change_lines(change: str, answer: Mapping[str, Any]) -> list[str]:
    """Render the result of a change, for people."""
    match change:
        case "--clear":
            lines = [f"fault {answer['fault']['fault_uuid']} cleared"]
            if answer.get("returned"):
                lines.append(
                    f"the fault returned as {answer['returned']}, because its cause remains; repair the component first"
                )
            return lines
        case "--replace":
            lines = [f"{path} has a new part: {serial}" for path, serial in answer["serials"].items()]
            return lines + [f"fault {uuid} cleared" for uuid in answer["cleared"]]
        case "--reset-counts":
            return [f"errors whose counts were reset: {answer['rows']}"]
        case "--repair":
            lines = [f"conditions repaired: {answer['repaired']}"]
            return lines + [f"fault {uuid} cleared" for uuid in answer["cleared"]]
        case "--reset":
            return view_lines(VIEWS["hang"], [answer["hang"]])
        case "--set-policy":
            return view_lines(VIEWS["policy"], [answer["policy"]])
        case "--cordon" | "--drain" | "--uncordon" | "--release" | "--maintain" | "--end-maintenance":
            return _maintenance_lines(change, answer)
        case "--scenario":
            return [f"scenario started: {answer['steps']} steps"]
        case _:
            lines = [f"error {uuid}" for uuid in dict.fromkeys(answer["errors"])]
            return lines + [f"fault {uuid}" for uuid in dict.fromkeys(answer["faults"])]


def _maintenance_lines(change: str, answer: Mapping[str, Any]) -> list[str]:
    match change:
        case "--cordon" | "--drain":
            row = answer["cordon"]
            words = f"{row['component']} is {row['state']}"
            if row["deadline"] is not None:
                words += f" until {time_text(row['deadline'])} at the latest"
            return [words, *(f"lease {lease} is still there" for lease in row["leases"])]
        case "--uncordon":
            return [f"{path} is allocated again" for path in answer["uncordoned"]]
        case "--release":
            row = answer["released"]
            return [f"lease {row['lease']} of {row['application']} ended: {len(row['tiles'])} tiles are free"]
        case _:
            row = answer["window"]
            end = "until someone ends it" if row["ends_at"] is None else f"until {time_text(row['ends_at'])}"
            words = f"maintenance window {row['window']} of {row['component']}"
            if change == "--end-maintenance":
                return [f"{words} is over"]
            return [f"{words} from {time_text(row['starts_at'])} {end}"]


def _window_of(options: Mapping[str, Any], now: float) -> dict[str, object]:
    if not options["reason"]:
        raise InvalidArgument("--maintain needs --reason; users with waiting jobs see it")
    return _without_none(
        {
            "component": with_node_prefix(options["maintain"]),
            "starts_at": None if options["start"] is None else moment_ns(options["start"], now),
            "ends_at": None if options["end"] is None else moment_ns(options["end"], now),
            "grace_s": options["deadline"],
            "reason": options["reason"],
        }
    )


def read_pair(text: str) -> tuple[str, object]:
    """Return ``KEY=VALUE``; the value is parsed as JSON if possible, otherwise it is text.

    Raises:
        InvalidArgument: the text has no key.
    """
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise InvalidArgument(f"--data {text!r} is not valid; expected KEY=VALUE, such as address=4096")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _scenario_text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise InvalidArgument(f"the scenario {path} cannot be read: {cause}") from cause
    if len(json.dumps(text)) > _MAX_SCENARIO:
        raise InvalidArgument(f"the scenario {path} is too long; expected at most {_MAX_SCENARIO} bytes")
    return text


def _without_none(values: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}

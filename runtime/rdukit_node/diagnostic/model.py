"""Checks of a diagnostic and their results, and the checks that only query the node (pure).

Levels are like those of ``dcgmi diag``. Level 1 queries the node, without tiles. Level 2 computes on each free tile.
Level 3 takes longer, on more memory and on whole RDUs.

Source: ours; the vendor's documents name no active diagnostic (runtime reference 10.4).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from rdukit.hardware import NODES
from rdukit_node.faults.capacity import is_at_or_below
from rdukit_node.inventory import ComponentHealth, components

#: Description of each level.
LEVELS: Final[Mapping[int, str]] = {
    1: "query the node: daemon, inventory, faults, state of its RDUs, database",
    2: "also run sections, and write and compare memory, on each free tile",
    3: "also run longer, on more memory, in bf16, and on whole RDUs",
}
#: Healths of a tile that may be leased.
_USABLE: Final = frozenset({ComponentHealth.ONLINE, ComponentHealth.DEGRADED})


class CheckVerdict(StrEnum):
    """Result of a check."""

    PASS = "pass"
    WARN = "warn"
    SKIP = "skip"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check. ``component``: a path of the inventory."""

    check: str
    component: str
    verdict: CheckVerdict
    said: str
    #: Advice; empty if there is nothing to do.
    advice: str = ""
    seconds: float = 0.0

    def as_json(self) -> dict[str, object]:
        """Return it as plain values."""
        return {**asdict(self), "verdict": str(self.verdict)}


@dataclass(frozen=True, slots=True)
class TilePlan:
    """Testable tiles, by flat number with their paths, and results for the others."""

    tiles: Mapping[int, str]
    #: Flat numbers of the tiles of each completely free RDU, by its path.
    rdus: Mapping[str, tuple[int, ...]]
    results: tuple[CheckResult, ...]


def check_node(
    status: Mapping[str, Any], inventory: Sequence[Mapping[str, Any]], faults: Iterable[Mapping[str, Any]],
    own_version: str, component: str = "/NODE",
) -> list[CheckResult]:  # fmt: skip
    """Check a node by its own reports: the checks of level 1.

    Args:
        status, inventory, faults: the daemon's answers of these names; ``faults`` has the active ones. own_version:
            version of this tool. component: check only this one with its parts.
    """
    results = [_check_version(str(status.get("version")), own_version), _check_inventory(status, inventory)]
    database = status.get("database") or {}
    results.append(
        CheckResult("database", "/NODE", CheckVerdict.PASS, "the node records its errors and faults")
        if database.get("is_writable", True)
        else CheckResult(
            "database", "/NODE", CheckVerdict.FAIL, f"not written: {database.get('reason') or 'disk full'}",
            "free space on its disk; waiting rows are then written",
        )
    )  # fmt: skip
    for rdu in status.get("rdus") or []:
        path, state = str(rdu.get("comp_name")), str(rdu.get("state"))
        if is_at_or_below(path, component):
            results.append(_check_state(path, state, str(rdu.get("reason") or "")))
    found = [fault for fault in faults if is_at_or_below(str(fault.get("comp_name")), component)]
    results += [
        CheckResult(
            "faults", str(fault.get("comp_name")),
            CheckVerdict.WARN if fault.get("severity") == "Minor" else CheckVerdict.FAIL,
            f"{fault.get('severity')} {fault.get('fault_type')}: {fault.get('fault_desc')}",
            str(fault.get("recovery_act") or ""),
        )
        for fault in found
    ]  # fmt: skip
    if not found:
        results.append(CheckResult("faults", component, CheckVerdict.PASS, "no active fault"))
    return results


def plan_tiles(status: Mapping[str, Any], component: str = "/NODE") -> TilePlan:
    """Choose the tiles to test: healthy, free and uncordoned ones at or below ``component``."""
    tiles: dict[int, str] = {}
    by_rdu: dict[str, list[int | None]] = {}
    results: list[CheckResult] = []
    for index, tile in enumerate(status.get("tiles") or []):
        path, health = str(tile["path"]), str(tile.get("health") or ComponentHealth.ONLINE)
        if not is_at_or_below(path, component):
            continue
        rdu = path.rpartition("/")[0]
        numbers = by_rdu.setdefault(rdu, [])
        if health not in _USABLE:
            results.append(
                CheckResult("tile", path, CheckVerdict.FAIL, f"out of service: {health}", "snfadm --suggestions")
            )
        elif tile.get("lease"):
            results.append(CheckResult("tile", path, CheckVerdict.SKIP, f"in use by {tile.get('application')}"))
        elif tile.get("cordon"):
            results.append(
                CheckResult("tile", path, CheckVerdict.SKIP, f"{tile['cordon']}: tiles there are not allocated")
            )
        else:
            tiles[index] = path
            numbers.append(index)
            continue
        numbers.append(None)
    whole = {rdu: tuple(n for n in numbers if n is not None) for rdu, numbers in by_rdu.items() if None not in numbers}
    return TilePlan(tiles, whole if not _is_tile(component, status) else {}, tuple(results))


def worst(results: Iterable[CheckResult]) -> CheckVerdict:
    """Return the worst verdict; an empty list passes."""
    order = list(CheckVerdict)
    return max((result.verdict for result in results), key=order.index, default=CheckVerdict.PASS)


def _is_tile(component: str, status: Mapping[str, Any]) -> bool:
    return any(tile["path"] == component for tile in status.get("tiles") or [])


def _check_version(version: str, own: str) -> CheckResult:
    if version == own:
        return CheckResult("daemon", "/NODE", CheckVerdict.PASS, f"answers, version {version}")
    return CheckResult(
        "daemon",
        "/NODE",
        CheckVerdict.WARN,
        f"has version {version}, this tool {own}",
        "update and restart the older one",
    )


def _check_inventory(status: Mapping[str, Any], inventory: Sequence[Mapping[str, Any]]) -> CheckResult:
    platform = str(status.get("platform"))
    if platform not in NODES:
        return CheckResult("inventory", "/NODE", CheckVerdict.SKIP, f"this tool does not know the platform {platform}")
    expected = {each.path for each in components(NODES[platform]) if not each.is_empty_slot}
    absent = {str(row["comp_name"]) for row in inventory if row.get("presence") == "Absent"}
    missing = sorted(expected - ({str(row["comp_name"]) for row in inventory} - absent))
    if missing:
        names = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        return CheckResult("inventory", missing[0], CheckVerdict.FAIL, f"not there: {names}", "snfadm -l inventory")
    return CheckResult("inventory", "/NODE", CheckVerdict.PASS, f"all {len(expected)} components of {platform}")


def _check_state(path: str, state: str, reason: str) -> CheckResult:
    if state == "FUNCTIONAL":
        return CheckResult("state", path, CheckVerdict.PASS, "FUNCTIONAL")
    verdict = CheckVerdict.WARN if state in {"PENDING", "DEGRADED"} else CheckVerdict.FAIL
    return CheckResult("state", path, verdict, f"{state}: {reason}".rstrip(": "), "snfadm --suggestions")

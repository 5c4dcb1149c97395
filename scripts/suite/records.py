"""Reads what the cases of a run recorded (``tests/support/recording.py``), and says where its time went."""

import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from suite.plan import CASE_S, CASES_OVER, LAYERS, layer_of

#: Cases that a report lists as the slowest.
SLOWEST = 20


@dataclass(slots=True)
class Case:
    """One case: seconds of its call, seconds with its fixtures, and how it ended."""

    name: str
    call_s: float = 0.0
    seconds: float = 0.0
    core_s: float = 0.0
    outcome: str = "passed"
    why: str = ""

    @property
    def file(self) -> str:
        """File of the case."""
        return self.name.split("::")[0]


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Time of a layer, and its share."""

    name: str
    cases: int
    core_s: float
    share_core_s: int
    outcomes: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Return whether the layer took more than its share."""
        return self.core_s > self.share_core_s


def read_cases(folder: Path) -> list[Case]:
    """Return the cases that any process of a run recorded; the last run of a repeated one counts."""
    cases: dict[str, Case] = {}
    for file in sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime):
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            if entry["phase"] == "setup":
                cases[entry["case"]] = Case(entry["case"])
            case = cases.setdefault(entry["case"], Case(entry["case"]))
            case.seconds += entry["seconds"]
            case.core_s += entry["core_s"]
            if entry["phase"] == "call":
                case.call_s = entry["seconds"]
            if entry["outcome"] != "passed":
                case.outcome, case.why = entry["outcome"], entry["why"]
    return list(cases.values())


def file_times(cases: Iterable[Case]) -> dict[str, float]:
    """Return the core-seconds of each file."""
    times: dict[str, float] = defaultdict(float)
    for case in cases:
        times[case.file] += case.core_s
    return {file: round(core_s, 2) for file, core_s in times.items()}


def sum_layers(cases: Iterable[Case], core_s: Mapping[str, float]) -> list[LayerTime]:
    """Return what each layer took.

    Args:
        core_s: core-seconds of the processes of each layer, imports and services that outlived their case included.
    """
    by_layer: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_layer[layer_of(case.file)].append(case)
    layers = {layer_of(layer.folder + "/"): layer for layer in LAYERS}
    return [
        LayerTime(name, len(by_layer[name]), core_s.get(name, 0.0), layer.share_core_s,
                  Counter(case.outcome for case in by_layer[name]))
        for name, layer in layers.items() if by_layer[name]
    ]  # fmt: skip


def report(cases: list[Case], core_s: Mapping[str, float], is_short: bool) -> list[str]:
    """Return the lines that a run ends with: layers, the slowest cases, what was skipped and why, how to repeat."""
    times = sum_layers(cases, core_s)
    lines = [
        "",
        f"{'layer':<12} {'cases':>6} {'failed':>6} {'skipped':>7} {'core-s':>7}" + ("  share" if is_short else ""),
    ]
    for each in times:
        line = (f"{each.name:<12} {each.cases:>6} {each.outcomes.get('failed', 0):>6} "
                f"{each.outcomes.get('skipped', 0):>7} {each.core_s:>7.0f}")  # fmt: skip
        lines.append(line + (f"  {each.share_core_s:>5}" + (" over" if each.is_over else "") if is_short else ""))
    slow = sorted(cases, key=lambda case: -case.seconds)[:SLOWEST]
    lines += ["", "slowest cases: seconds with fixtures, of those its own"]
    lines += [f"{case.seconds:>7.1f} {case.call_s:>7.1f}  {case.name}" for case in slow]
    skipped = Counter(case.why.removeprefix("Skipped: ") for case in cases if case.outcome == "skipped")
    if skipped:
        lines += ["", "skipped"]
        lines += [f"{count:>7}  {why}" for why, count in skipped.most_common()]
    lines += repeats(cases)
    if is_short:
        lines += warnings(cases, times)
    return lines


def repeats(cases: Iterable[Case]) -> list[str]:
    """Return the command that repeats each failed case alone."""
    failed = [case.name for case in cases if case.outcome == "failed"]
    lines = [f"  .venv/bin/pytest {shlex.quote(name)}" for name in failed]
    return ["", "to repeat a failure alone:", *lines] if lines else []


def warnings(cases: Iterable[Case], times: Iterable[LayerTime]) -> list[str]:
    """Return what has outgrown the short tier; a busy machine makes all of it slower."""
    lines = [
        f"warning: {each.name} took {each.core_s:.0f} core-seconds, its share is {each.share_core_s}: mark cases as "
        "long, or make them share what they start"
        for each in times if each.is_over
    ]  # fmt: skip
    over = [case for case in cases if case.call_s > CASE_S]
    if len(over) > CASES_OVER:
        lines.append(
            f"warning: {len(over)} short cases take over {CASE_S:.0f} s, {CASES_OVER} are expected: a new one is long "
            "or replaces another (CONTRIBUTING.md, Tests)"
        )
    return ["", *lines] if lines else []

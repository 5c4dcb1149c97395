"""Write the page of results from the lines that ``run.py`` left."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

Record = Mapping[str, Any]

SUITES: Final = {
    "transformers": "transformers, one model of each architecture, tiny",
    "timm": "timm, the smallest model of each family",
    "torchvision": "torchvision, models that classify or segment",
}
STAGES: Final = ("inference", "training")
#: Outcome → how it is counted. What eager torch does not run here is no case.
_COUNTED: Final = {
    "right": "right", "random": "right", "refused": "refused", "wrong": "wrong", "crashed": "bare error",
    "died": "bare error", "late": "too slow here",
}  # fmt: skip
#: Of a PEF that a sweep compiled.
_FOLDER: Final = re.compile(r"/\S*/")
_ORDER: Final = ("right", "refused", "wrong", "bare error", "too slow here")


def write_page(records: Sequence[Record], path: Path, versions: Mapping[str, str], totals: Mapping[str, int]) -> None:
    """The table by suite and stage, then each model that is not right with its reason.

    Args:
        totals: models that each library has, tried or not.
    """
    lines = [
        "# Models of public libraries",
        "",
        "<!-- Written by `make conformance MODELS=…`; not by hand. -->",
        "",
        "Each model runs with seeded random weights, and its outputs, its loss and the gradient of every parameter are",
        "compared with the same model in eager PyTorch. No weights are fetched. Right means: no further off than 1e-4",
        "of each tensor's largest element in f32, or as close to double precision as eager is. Rates of dropout and",
        "stochastic depth are 0 in the comparison. A model that cannot be compiled is refused with the reason.",
        "",
        f"With {', '.join(f'{name} {number}' for name, number in versions.items())}; O3, portable kernels, f32.",
        "",
        "| models | stage | tried | " + " | ".join(_ORDER) + " | share right |",
        "| --- | --- | --- | " + " | ".join("---" for _ in _ORDER) + " | --- |",
    ]
    for suite, title in SUITES.items():
        for stage in STAGES:
            counts = Counter(_counted(r) for r in records if r["suite"] == suite and r["stage"] == stage)
            del counts[""]
            if total := counts.total():
                numbers = " | ".join(str(counts[name]) for name in _ORDER)
                lines.append(f"| {title} | {stage} | {total} | {numbers} | {counts['right'] / total:.1%} |")
    lines += ["", *_not_tried(records, totals), *_left_out(records), *_exceptions(records), *_names(records)]
    path.write_text("\n".join(lines) + "\n")


def _counted(record: Record) -> str:
    return _COUNTED.get(record["outcome"], "")


def _not_tried(records: Sequence[Record], totals: Mapping[str, int]) -> list[str]:
    seen = Counter(suite for suite, _ in {(r["suite"], r["name"]) for r in records})
    parts = [f"{seen[suite]} of {total} of {suite}" for suite, total in totals.items() if 0 < seen[suite] < total]
    if not parts:
        return []
    return [f"The sweep was not finished: it came to {', '.join(parts)}.", ""]


def _left_out(records: Sequence[Record]) -> list[str]:
    names = sorted({r["name"] for r in records if r["outcome"] == "not-run"})
    if not names:
        return []
    return [
        f"Left out are {len(names)} of which no tiny configuration or inputs were found that eager PyTorch runs with",
        "here: " + ", ".join(names) + ".",
        "",
    ]


def _exceptions(records: Sequence[Record]) -> list[str]:
    rows = sorted(
        (r["suite"], r["name"], r["stage"], _counted(r), r["reason"])
        for r in records
        if _counted(r) not in {"", "right"}
    )
    if not rows:
        return []
    lines = ["## Not right", "", "| library | model | stage | outcome | reason |", "| --- | --- | --- | --- | --- |"]
    for suite, name, stage, outcome, reason in rows:
        short = _FOLDER.sub("…/", " ".join(reason.split())).replace("|", "\\|")
        lines.append(f"| {suite} | {name} | {stage} | {outcome} | {short[:240]} |")
    return [*lines, ""]


def _names(records: Sequence[Record]) -> list[str]:
    lines = ["## Right", ""]
    for suite in SUITES:
        for stage in STAGES:
            names = sorted(
                r["name"] for r in records if r["suite"] == suite and r["stage"] == stage and _counted(r) == "right"
            )
            if names:
                lines += [f"{suite}, {stage}: {', '.join(names)}.", ""]
    return lines[:-1]

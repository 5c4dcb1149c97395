"""Results of the sweeps, ``docs/models.json``, and the page that is written from them, ``docs/models.md``.

A sweep by portable kernels tries all models, one by native kernels a sample; a model that is tried again in the same
way replaces what stood there of it.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
#: What is kept of a record.
_KEPT: Final = ("suite", "name", "stage", "kernels", "outcome", "reason", "sections", "natives", "check", "quick")
_EMPTY: Final = {"reason": "", "sections": 0, "natives": 0, "check": "on", "quick": False}
#: Characters of a reason that are kept.
_REASON: Final = 240
_INTRODUCTION: Final = """\
Each model runs with seeded random weights, and its outputs, its loss and the gradient of every parameter are
compared with the same model in eager PyTorch. No weights are fetched. Right means: no further off than 1e-4
of each tensor's largest element in f32, or as close to double precision as eager is. Rates of dropout and
stochastic depth are 0 in the comparison. A model that cannot be compiled is refused with the reason."""


@dataclass(frozen=True, slots=True)
class Sweeps:
    """Results of all sweeps.

    By kernels: ``versions`` of the libraries, and ``totals``, models that each library has, tried or not.
    """

    versions: Mapping[str, Mapping[str, str]]
    totals: Mapping[str, Mapping[str, int]]
    records: tuple[Record, ...]

    def of(self, kernels: str) -> list[Record]:
        """Return the results by ``portable`` or ``native`` kernels."""
        return [record for record in self.records if record["kernels"] == kernels]


def merge(former: Sweeps, found: Sequence[Record], versions: Mapping[str, str], totals: Mapping[str, int]) -> Sweeps:
    """Return ``former`` with the results that were ``found`` in f32 O3; one of the same case replaces it."""
    kept = {_key(record): record for record in former.records}
    fresh = [record for record in found if (record["mode"], record["precision"]) == ("o3", "f32")]
    for record in fresh:
        kept[_key(record)] = {
            **_EMPTY,
            **{name: record[name] for name in _KEPT if name in record},
            "reason": _short(record),
        }
    ordered = tuple(kept[key] for key in sorted(kept))
    known, counted = dict(former.versions), dict(former.totals)
    for kernels in {record["kernels"] for record in fresh}:
        known[kernels] = {**known.get(kernels, {}), **versions}
        counted[kernels] = {**counted.get(kernels, {}), **totals}
    return Sweeps(known, counted, ordered)


def _key(record: Record) -> tuple[str, ...]:
    return record["kernels"], record["suite"], record["name"], record["stage"]


def _short(record: Record) -> str:
    return _FOLDER.sub("…/", " ".join(record["reason"].split()))[:_REASON]


def dump(sweeps: Sweeps) -> str:
    """Return the data as JSON, a result a line."""
    head = json.dumps({"versions": sweeps.versions, "totals": sweeps.totals})[:-1]
    records = ({name: record[name] for name in _KEPT if record[name]} for record in sweeps.records)
    lines = (json.dumps(record, ensure_ascii=False) for record in records)
    return f'{head},\n"records": [\n' + ",\n".join(lines) + "\n]}\n"


def load(text: str) -> Sweeps:
    """Read what ``dump`` returned."""
    read = json.loads(text)
    return Sweeps(read["versions"], read["totals"], tuple(_EMPTY | record for record in read["records"]))


def write(sweeps: Sweeps) -> str:
    """Return the page: the table by suite and stage, then each model that is not right with its reason."""
    portable, native = sweeps.of("portable"), sweeps.of("native")
    lines = ["# Models of public libraries", "", "<!-- Written by `make conformance MODELS=…`; not by hand. -->", ""]
    lines += [_INTRODUCTION, "", f"{_with(sweeps, 'portable')}; O3, portable kernels, f32.", ""]
    lines += [*_table(portable), "", *_not_tried(portable, sweeps.totals["portable"]), *_left_out(portable)]
    lines += [*_natively(sweeps, portable, native)] if native else []
    lines += [*_exceptions("## Not right", portable), *_names("## Right", portable)]
    return "\n".join(lines).rstrip() + "\n"


def _with(sweeps: Sweeps, kernels: str) -> str:
    return "With " + ", ".join(f"{name} {number}" for name, number in sweeps.versions[kernels].items())


def _table(records: Sequence[Record]) -> Iterator[str]:
    yield "| models | stage | tried | " + " | ".join(_ORDER) + " | share right |"
    yield "| --- | --- | --- | " + " | ".join("---" for _ in _ORDER) + " | --- |"
    for suite, title in SUITES.items():
        for stage in STAGES:
            counts = Counter(_counted(r) for r in records if r["suite"] == suite and r["stage"] == stage)
            del counts[""]
            if total := counts.total():
                numbers = " | ".join(str(counts[name]) for name in _ORDER)
                yield f"| {title} | {stage} | {total} | {numbers} | {counts['right'] / total:.1%} |"


def _counted(record: Record) -> str:
    return _COUNTED.get(record["outcome"], "")


def _natively(sweeps: Sweeps, portable: Sequence[Record], native: Sequence[Record]) -> Iterator[str]:
    """Yield the part on models that native kernels computed, next to the same models' results by portable ones."""
    models = {(r["suite"], r["name"]) for r in native if _counted(r)}
    sections, used = (sum(r[name] for r in native) for name in ("sections", "natives"))
    unchecked = sum(r["check"] == "off" for r in native)
    quick = sum(r["quick"] for r in native)
    before = {_key(r)[1:]: _counted(r) for r in portable}
    worse = sorted(
        f"{r['name']} ({r['stage']})" for r in native
        if before.get(_key(r)[1:]) == "right" and _counted(r) not in {"right", ""}
    )  # fmt: skip
    yield from ("## With native kernels", "")
    yield f"{_with(sweeps, 'native')}; O3, native kernels, f32: {len(models)} models, drawn from all by a seed."
    yield f"{used} of the {sections} sections that can be native were. The kernel check, which keeps wrong kernels from"
    yield f"use, was off in {unchecked} of {len(native)} results: they show the kernels as they are. For {quick} C++"
    yield "was optimised little (`-O1`), which takes less time."
    yield ""
    yield from (*_table(native), "")
    yield f"Right by portable kernels and not by native ones: {', '.join(worse) or 'none'}."
    yield ""
    yield from _exceptions("### Not right natively", native)
    yield from _names("### Right natively", native)


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


def _exceptions(title: str, records: Sequence[Record]) -> list[str]:
    rows = sorted(
        (r["suite"], r["name"], r["stage"], _counted(r), r["reason"])
        for r in records
        if _counted(r) not in {"", "right"}
    )
    if not rows:
        return []
    lines = [title, "", "| library | model | stage | outcome | reason |", "| --- | --- | --- | --- | --- |"]
    for suite, name, stage, outcome, reason in rows:
        lines.append(f"| {suite} | {name} | {stage} | {outcome} | {reason.replace('|', chr(92) + '|')} |")
    return [*lines, ""]


def _names(title: str, records: Sequence[Record]) -> list[str]:
    lines = [title, ""]
    for suite in SUITES:
        for stage in STAGES:
            names = sorted(
                r["name"] for r in records if r["suite"] == suite and r["stage"] == stage and _counted(r) == "right"
            )
            if names:
                lines += [f"{suite}, {stage}: {', '.join(names)}.", ""]
    return lines

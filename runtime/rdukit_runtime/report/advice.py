"""The verdict on a profiled program, and advice with the exact change and its predicted gain, best first. Pure.

A gain is a factor of speed, predicted from the recorded times: the time of the runs over the time that would remain
after the change. Each piece of advice says what its prediction assumes. ``rdukit profile --try`` measures what can be
applied.

Source: ours. ``sambatune`` defines the limits of "host bound".
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from rdukit.settings import KERNELS
from rdukit.units import format_seconds
from rdukit_runtime.profile.pef import Bound
from rdukit_runtime.profile.step import BreakdownRow
from rdukit_runtime.profile.timeline_files import line_text
from rdukit_runtime.report.facts import ProgramFacts, SectionFacts
from rdukit_runtime.report.trials import LEAST_GAIN, AdviceTrial, ProgramChange, trial_to_dict
from rdukit_runtime.sambatune.reports import MODERATE

#: Percentage of the sections' time from which one section is the verdict.
ONE_SECTION: Final = 50.0
#: Factor of the batch size that is advised.
_BATCH_FACTOR: Final = 4
#: Processes for loading that are advised.
_WORKERS: Final = 2
#: Calls of an operator that a copy, and the loop's Python around a run, take at least, however little they do.
#: Source: measured; copies of 64 elements and an empty loop take 5 µs where an operator takes 1.1 µs.
_LEAST_CALLS: Final = 4
#: Runs between two readings of an output that are advised.
_READ_EVERY: Final = 10
#: Runs below which figures only describe the beginning. Source: sambatune reference 1.6.
FEW_RUNS: Final = 10


class BoundBy(StrEnum):
    """Verdicts on a program."""

    HOST = "host bound"
    SECTION = "section bound"
    MEMORY = "memory bound"
    COMPUTE = "compute bound"
    CALLS = "bound by operator calls"
    NOTHING = "nothing ran"
    UNKNOWN = "bound by its sections"


@dataclass(frozen=True, slots=True)
class ProgramVerdict:
    """The verdict and a sentence that explains it."""

    bound: BoundBy
    words: str


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice. ``change``: text to type or write; ``gain``: factor of speed; ``scope``: the faster part.

    ``apply``: the change, if a trial can apply it; None: the program's text must change. ``trial``: its outcome.
    """

    diagnosis: str
    change: str
    gain: float
    assumes: str
    scope: str = "runs"
    apply: ProgramChange | None = None
    trial: AdviceTrial | None = None
    #: Whether ``gain`` is an upper limit, and ``change`` only the way to a change.
    is_limit: bool = False


def find_verdict(facts: ProgramFacts) -> ProgramVerdict:
    """Return the bottleneck of the runs: the host if over 20 % of their time is outside the sections, else a section
    with half of the sections' time, else the limit of the sections with most time.
    """
    if not facts.total_ns:
        return ProgramVerdict(BoundBy.NOTHING, "The program ended no run.")
    host = facts.host_percent
    if host > MODERATE:
        return ProgramVerdict(BoundBy.HOST, f"{host:.1f} % of the time from first to last run is outside sections.")
    longest = facts.longest
    if longest is not None and len(facts.sections) > 1 and facts.longest_percent >= ONE_SECTION:
        limit = f", bound by {longest.bound.value}" if longest.bound else ""
        words = f"Section {longest.name} takes {facts.longest_percent:.1f} % of the time in sections{limit}."
        return ProgramVerdict(BoundBy.SECTION, words)
    shares = {bound: sum(s.host_ns for s in facts.sections if s.bound is bound) for bound in Bound}
    most = max(shares, key=lambda bound: shares[bound])
    if not shares[most]:
        return ProgramVerdict(BoundBy.UNKNOWN, "Sections take most of the time; their limits are unknown.")
    verdict = {Bound.MEMORY: BoundBy.MEMORY, Bound.COMPUTE: BoundBy.COMPUTE, Bound.CALLS: BoundBy.CALLS}[most]
    share = 100.0 * shares[most] / facts.sections_ns
    return ProgramVerdict(verdict, f"Sections bound by {most.value} take {share:.1f} % of the sections' time.")


def find_advice(facts: ProgramFacts) -> list[Advice]:
    """Return advice, the largest gain first, and then upper limits; empty if no change is known to help by 2 %."""
    found = [each for each in _candidates(facts) if each.gain >= LEAST_GAIN] if facts.total_ns else []
    return sorted(found, key=lambda each: (each.is_limit, -each.gain))


def advice_to_dict(advice: Advice) -> dict[str, Any]:
    """Return plain values, for JSON. ``gain`` is predicted."""
    return {
        "diagnosis": advice.diagnosis,
        "change": advice.change,
        "gain": advice.gain,
        "assumes": advice.assumes,
        "scope": advice.scope,
        "trial": None if advice.trial is None else trial_to_dict(advice.trial),
    }


def _candidates(facts: ProgramFacts) -> Iterator[Advice]:
    yield from _host(facts)
    yield from _mode(facts)
    yield from _precision(facts)
    yield from _longest(facts)
    compiling = facts.phases.get("compile", 0)
    if compiling:
        yield Advice(
            f"The program compiles before it runs: {format_seconds(compiling / 1e9)}.",
            "python PROGRAM compile …   # once, then: python PROGRAM run --pef=FILE.pef …",
            facts.wall_ns / max(facts.wall_ns - compiling, 1),
            "the PEF is kept, and the program has the commands compile and run",
            "whole program",
        )


def _without(facts: ProgramFacts, saved_ns: float) -> float:
    """Return the factor of speed of the runs when ``saved_ns`` of their time is gone."""
    return facts.total_ns / max(facts.total_ns - saved_ns, facts.total_ns * 0.01)


def _host(facts: ProgramFacts) -> Iterator[Advice]:
    spent = facts.breakdown.nanoseconds
    around = max(spent[BreakdownRow.RUN_HW] - facts.sections_ns, 0)
    python = facts.program_ns
    session = spent[BreakdownRow.SAMBA] - python
    fixed = float(session + spent[BreakdownRow.PYTHON_TO_C] + spent[BreakdownRow.RUN_SETUP])
    fixed += spent[BreakdownRow.ARGINS] + around
    per_call = facts.calm_limits.operator_s * 1e9 if facts.calm_limits is not None else 0.0
    loop = min(python, _LEAST_CALLS * per_call * facts.breakdown.runs)
    fixed += loop + min(
        spent[BreakdownRow.XFER] + spent[BreakdownRow.CONV_FUNC], _LEAST_CALLS * per_call * facts.copies
    )
    inside = 0.0
    for s in facts.sections:
        weights = s.host_ns * s.weight_share if s.bound is Bound.MEMORY else 0.0
        inside += min(per_call * _calls(s) * s.runs + weights, s.host_ns)
    batch = facts.batch
    new = f"--batch-size {batch * _BATCH_FACTOR}" if batch else f"--batch-size, {_BATCH_FACTOR} times as large"
    yield Advice(
        f"Starting runs, copies and operators, and reading weights, takes {format_seconds((fixed + inside) / 1e9)}, "
        "whatever the batch.",
        f"{new}   # for compile and run",
        _without(facts, (fixed + inside) * (1 - 1 / _BATCH_FACTOR)),
        "samples per second; all other time grows with the batch; training may need another learning rate",
        apply=ProgramChange({"batch-size": batch * _BATCH_FACTOR}) if batch else None,
    )
    at = f" around {line_text(facts.line)}" if facts.line else ""
    loading = python - loop
    yield Advice(
        f"The loop's own Python{at} takes {format_seconds(python / 1e9)}, data loading included.",
        f"DataLoader(…, num_workers={_WORKERS}, prefetch_factor=2)   # or prepare inputs before the loop",
        facts.total_ns / max(facts.total_ns - loading, loading / _WORKERS, 1),
        f"loading overlaps with the runs, in {_WORKERS} processes on processor cores that are free; inputs prepared "
        f"before the loop: {_without(facts, loading):.2f} times as fast",
    )
    yield Advice(
        f"Reading outputs takes {format_seconds(facts.reads_ns / 1e9)}.",
        f"if step % {_READ_EVERY} == 0: samba.to_torch(loss)",
        _without(facts, facts.reads_ns * (1 - 1 / _READ_EVERY)),
        f"outputs are read at each run now, and at every {_READ_EVERY}th then",
    )
    yield Advice(
        f"Converting dtypes takes {format_seconds(spent[BreakdownRow.CONV_FUNC] / 1e9)}.",
        f"inputs.to({'torch.float32' if facts.precision == 'f32' else 'torch.bfloat16'})   # once, in the data set",
        _without(facts, spent[BreakdownRow.CONV_FUNC]),
        "all conversions are of inputs that can have the PEF's dtype",
    )


def _calls(section: SectionFacts) -> int:
    return section.operators if section.form == "portable" else 1


def _mode(facts: ProgramFacts) -> Iterator[Advice]:
    """Yield advice for portable sections, and for mode o0: a native section of o3 is one call, and fuses operators."""
    portable = [section for section in facts.sections if section.form == "portable" and section.operators > 1]
    is_o0 = facts.mode == "o0"
    if not (portable or is_o0) or facts.calm_limits is None:
        return
    per_call = facts.calm_limits.operator_s * 1e9
    saved = 0.0
    for section in portable:
        limit_ns, call = section.limit_ns or 0, per_call * section.runs
        if section.bound is Bound.COMPUTE:  # its matrix products take as long as now
            saved += min(call * (section.operators - 1), max(section.host_ns - limit_ns, 0))
        elif section.bound is not None:  # as rdukit tune predicts a native section
            saved += max(section.host_ns - max(limit_ns, call) - call, 0)
    if is_o0:
        saved += sum(sum(times) - max(times) for times in _chains(facts.sections))
        diagnosis = f"Mode o0 runs each operator as a section: {len(facts.sections)} sections."
        change, apply = "-o3   # for compile", ProgramChange({"optim-level": "o3"})
        assumes = (
            "sections that follow each other without a matrix product become one that takes as long as the longest"
        )
    else:
        spent = sum(section.host_ns for section in portable)
        diagnosis = f"{len(portable)} sections run operator by operator: {format_seconds(spent / 1e9)}."
        change = f"{KERNELS.variable}=native   # for compile: fails with the reason"
        apply = ProgramChange(variables={KERNELS.variable: "native"})
        assumes = "native sections take their limit and two calls; those with matrix products save calls alone"
    yield Advice(diagnosis, change, _without(facts, saved), assumes, apply=apply)


def _chains(sections: Iterable[SectionFacts]) -> Iterator[list[int]]:
    """Yield the times of consecutive sections without a compute-bound one between them, which o3 may fuse."""
    chain: list[int] = []
    last: tuple[int, str, str, int] | None = None
    for section in sorted(sections, key=lambda each: (each.pef, each.graph, each.type, each.id)):
        place = (section.pef, section.graph, section.type, section.id)
        follows = last is not None and place[:3] == last[:3] and place[3] == last[3] + 1
        if section.bound in {None, Bound.COMPUTE}:
            last = None
            continue
        if chain and not follows:
            yield chain
            chain = []
        chain.append(section.host_ns)
        last = place
    if chain:
        yield chain


def _precision(facts: ProgramFacts) -> Iterator[Advice]:
    limits = facts.calm_limits
    if limits is None or not limits.gemm.get("f32") or not limits.gemm.get("bf16"):
        return
    is_exact = facts.precision == "f32"
    own, other = ("f32", "bf16") if is_exact else ("bf16", "f32")
    ratio = limits.gemm[other] / limits.gemm[own]
    spent = sum(s.host_ns for s in facts.sections if s.bound is Bound.COMPUTE and s.dtype == own) if ratio > 1 else 0
    moved = sum(s.host_ns for s in facts.sections if s.bound is Bound.MEMORY) if is_exact else 0
    copied = _saved_copying(facts, own)
    told = []
    if spent:
        taken = format_seconds(spent / 1e9)
        told.append(f"Matrix products in {own} take {taken}; in {other} this machine is {ratio:.1f} times as fast.")
    if moved:
        told.append(f"Sections bound by memory take {format_seconds(moved / 1e9)}; bf16 has half the bytes of f32.")
    if told:
        yield Advice(
            " ".join(told),
            f"--precision {other}   # for compile",
            _without(facts, spent * (1 - 1 / max(ratio, 1.0)) + moved / 2 + copied),
            "these sections are as far from their limit as now, and the program's tensors keep their dtype; results "
            "round otherwise",
            apply=ProgramChange({"precision": other}),
        )


def _saved_copying(facts: ProgramFacts, own: str) -> float:
    """Return the ns that transfers and conversions would save in the other precision; negative: they take longer.

    The program's tensors keep their dtype, and time goes with the bytes read and written: a copy of an element moves 8
    in f32 and 4 in bf16, a conversion between them 6. Conversions to f32 may be of other dtypes, so they stay as now.
    """
    copied = facts.breakdown.nanoseconds[BreakdownRow.XFER]
    converted = facts.breakdown.nanoseconds[BreakdownRow.CONV_FUNC]
    if own == "f32":
        return 0.0 if converted else -copied / 4  # 8 bytes now; 6 and 4 then
    return converted - copied if converted else -copied * 2.5  # 6 and 4 now, 8 then; or 4 now, 6 and 8 then


def _longest(facts: ProgramFacts) -> Iterator[Advice]:
    section = facts.longest
    if section is None or section.limit_ns is None or section.bound is None:
        return
    share = 100.0 * section.limit_ns / section.host_ns if section.host_ns else 100.0
    if share >= 50 or section.bound is Bound.CALLS:
        return
    yield Advice(
        f"Section {section.name} is at {share:.0f} % of its limit ({section.bound.value}).",
        "rdukit pef profile --operators FILE.pef   # names the operator; then a rule: --optimization-rules my.yaml -o1",
        _without(facts, section.host_ns - section.limit_ns),
        "at most: the section reaches the machine's limit",
        is_limit=True,
    )

"""The profile of a PEF's sections on this machine, and its distance from the machine's limits. Pure.

Two clocks are always distinguished: *measured* is the host's, *projected* the cost model's for the emulated chip. FLOPs
and bytes are the cost model's count; a section moves its inputs, weights and outputs once.

The limit of a section is the roofline: the smaller of the machine's GEMM speed in the section's dtype and of memory
bandwidth times FLOPs per byte. Portable kernels have a third limit, their operator calls; it is named if it binds, and
does not change the share. A section's dtype is that of its matrix products: a kernel's graph has the dtypes of its
inputs, the others follow from conversions and operands.

Source: ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any, Final

from rdukit.pef.kernel import Argument, KernelGraph, KernelNode, Special, parse_operator, references
from rdukit.pef.model import Section
from rdukit_runtime.engine.machine_limits import MachineLimits

#: Version of the JSON document; increased when a field is removed or changes its meaning.
SCHEMA: Final = 1
#: A limit that is exceeded by more was measured too low, or the data were in the cache.
_BEYOND: Final = 1.05


class Bound(StrEnum):
    """Limits that may bind a section."""

    COMPUTE = "compute"
    MEMORY = "memory"
    #: Calling operators takes longer than computing and moving would.
    CALLS = "calls"


@dataclass(frozen=True, slots=True)
class SectionWork:
    """A section and its execution in this process: ``form`` is native or portable, ``operators`` are ATen's calls in
    one run.
    """

    section: Section
    form: str
    dtype: str
    operators: int


@dataclass(frozen=True, slots=True)
class SectionRow:
    """A section, or several that share a kernel, of which ``first`` is the first. Figures are of one step."""

    first: Section
    form: str
    dtype: str
    sections: int
    #: Host seconds: the sum of its sections' medians over runs.
    measured_s: float
    projected_s: float
    flops: int
    bytes: int
    #: Limits by the roofline: GFLOP/s, and the shortest duration of the work in seconds.
    limit_gflop_s: float
    limit_s: float
    bound: Bound

    @property
    def name(self) -> str:
        """The first section's name, and the number of sections."""
        return self.first.name if self.sections == 1 else f"{self.first.name} ×{self.sections}"

    @property
    def gflop_s(self) -> float:
        """Measured GFLOP/s."""
        return self.flops / self.measured_s / 1e9 if self.measured_s else 0.0

    @property
    def gb_s(self) -> float:
        """Measured GB/s."""
        return self.bytes / self.measured_s / 1e9 if self.measured_s else 0.0

    @property
    def intensity(self) -> float:
        """FLOPs per byte; 0 for a section that only moves."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def limit_share(self) -> float:
        """Share of the roofline; above 1 if the data were in the cache."""
        return self.limit_s / self.measured_s if self.measured_s else 0.0

    @property
    def is_beyond(self) -> bool:
        """True if it was clearly faster than its limit."""
        return self.limit_share > _BEYOND


@dataclass(frozen=True, slots=True)
class Measured:
    """Runs of a program: of each the (section id, host seconds) in order, and the seconds of the whole run."""

    sections: tuple[tuple[tuple[int, float], ...], ...]
    run_s: tuple[float, ...]

    @property
    def outside_s(self) -> float:
        """Seconds of a run outside its sections: median over all runs."""
        pairs = zip(self.run_s, self.sections, strict=True)
        return max(median(whole - sum(taken for _, taken in run) for whole, run in pairs), 0.0)


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of a PEF. ``rows`` in schedule order, one a section."""

    path: str
    pef: str
    mode: str
    arch: str
    precision: str
    graphs: tuple[str, ...]
    #: All of the PEF, by id.
    sections: tuple[Section, ...]
    runs: int
    limits: MachineLimits
    rows: tuple[SectionRow, ...]
    #: Host seconds of a step outside its sections.
    outside_s: float
    #: (section id, host seconds) of the last run in order, including sections that were not requested.
    last_run: tuple[tuple[int, float], ...]

    @property
    def measured_s(self) -> float:
        """Host seconds of one step, sections and the rest."""
        return sum(row.measured_s for row in self.rows) + self.outside_s

    @property
    def projected_s(self) -> float:
        """Projected seconds of one step on the emulated chip."""
        return sum(row.projected_s for row in self.rows)

    def share(self, row: SectionRow) -> float:
        """Return a row's share of the step's host time. All rows and ``outside_s`` add up to 1."""
        return row.measured_s / self.measured_s if self.measured_s else 0.0


def section_rows(work: Sequence[SectionWork], measured: Measured, limits: MachineLimits) -> tuple[SectionRow, ...]:
    """Return one row for each of ``work``; sections that did not run are left out."""
    seconds: dict[int, list[float]] = {}
    for run in measured.sections:
        for number, taken in run:
            seconds.setdefault(number, []).append(taken)
    return tuple(_row(each, median(seconds[each.section.id]), limits) for each in work if each.section.id in seconds)


def group_rows(rows: Sequence[SectionRow]) -> tuple[SectionRow, ...]:
    """Add up rows of equal kernel, type and work, in the order of their first; limits' seconds are also added."""
    groups: dict[tuple[object, ...], list[SectionRow]] = {}
    for row in rows:
        key = (row.first.graph, row.first.type, row.first.kernel, row.flops, row.bytes)
        groups.setdefault(key, []).append(row)
    return tuple(_joined(group) for group in groups.values())


def limits_of(work: SectionWork, limits: MachineLimits) -> tuple[float, float, Bound]:
    """Return (GFLOP/s, seconds, the binding limit) that the machine allows for one run of a section."""
    flops, moved = work.section.cost.flops, bytes_of(work.section)
    peak = limits.gemm.get(work.dtype) or limits.gemm["f32"]
    compute_s = flops / (peak * 1e9) if peak else 0.0
    memory_s = moved / (limits.memory_gb_s * 1e9)
    calls_s = limits.operator_s * (work.operators if work.form == "portable" else 1)
    limit_s = max(compute_s, memory_s)
    if calls_s > limit_s:
        bound = Bound.CALLS
    else:
        bound = Bound.COMPUTE if compute_s >= memory_s else Bound.MEMORY
    return (flops / limit_s / 1e9 if limit_s else 0.0), limit_s, bound


def bytes_of(section: Section) -> int:
    """Count the bytes that one run of a section reads and writes."""
    return section.cost.bytes_in + section.cost.bytes_weights + section.cost.bytes_out


def profile_to_dict(profile: Profile, operators: Sequence[Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """Return plain values, for JSON, one entry a section, unrounded."""
    limits = profile.limits
    value: dict[str, Any] = {
        "schema": SCHEMA,
        "path": profile.path,
        "pef": profile.pef,
        "mode": profile.mode,
        "arch": profile.arch,
        "precision": profile.precision,
        "graphs": list(profile.graphs),
        "runs": profile.runs,
        "machine": {
            "processor": limits.processor,
            "threads": limits.threads,
            "read_gb_s": limits.read_gb_s,
            "copy_gb_s": limits.copy_gb_s,
            "gemm_gflop_s": dict(limits.gemm),
            "operator_s": limits.operator_s,
            "others_share": limits.others_share,
        },
        "sections": [_row_to_dict(profile, row) for row in profile.rows],
        "totals": {
            "measured": {"host_s": profile.measured_s, "outside_sections_s": profile.outside_s},
            "projected": {
                "emulated_s": profile.projected_s,
                "flops": sum(row.flops for row in profile.rows),
                "bytes": sum(row.bytes for row in profile.rows),
            },
        },
    }
    if operators is not None:
        value["operators"] = list(operators)
    return value


def exceeds_gemm_limit(rows: Sequence[SectionRow]) -> bool:
    """Return whether a section beats the machine's GEMM limit: that was measured while others used the machine."""
    return any(row.is_beyond and row.bound is Bound.COMPUTE for row in rows)


def _row(work: SectionWork, measured_s: float, limits: MachineLimits) -> SectionRow:
    gflop_s, limit_s, bound = limits_of(work, limits)
    cost = work.section.cost
    return SectionRow(
        work.section, work.form, work.dtype, 1, measured_s, cost.seconds, cost.flops, bytes_of(work.section),
        gflop_s, limit_s, bound,
    )  # fmt: skip


def _joined(rows: Sequence[SectionRow]) -> SectionRow:
    first = rows[0]
    return SectionRow(
        first.first, first.form, first.dtype, len(rows), sum(r.measured_s for r in rows),
        sum(r.projected_s for r in rows), sum(r.flops for r in rows), sum(r.bytes for r in rows),
        first.limit_gflop_s, sum(r.limit_s for r in rows), first.bound,
    )  # fmt: skip


def _row_to_dict(profile: Profile, row: SectionRow) -> dict[str, Any]:
    section = row.first
    return {
        "id": section.id,
        "name": section.name,
        "graph": section.graph,
        "type": section.type.value,
        "kernel": section.kernel,
        "form": row.form,
        "dtype": row.dtype,
        "measured": {
            "host_s": row.measured_s,
            "share": profile.share(row),
            "gflop_s": row.gflop_s,
            "gb_s": row.gb_s,
        },
        "projected": {
            "emulated_s": row.projected_s,
            "cycles": section.cost.cycles,
            "flops": row.flops,
            "bytes": row.bytes,
        },
        "limit": {
            "gflop_s": row.limit_gflop_s,
            "host_s": row.limit_s,
            "share": row.limit_share,
            "bound": row.bound.value,
        },
    }


#: Limits by torch's dtype; other dtypes have the limit of f32.
_LIMIT_OF: Final[Mapping[str, str]] = {"bfloat16": "bf16", "float16": "bf16", "int8": "int8", "uint8": "int8"}
#: Wider wins when operands differ.
_RANK: Final = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
_PRODUCTS: Final = frozenset(
    {"linear", "mm", "addmm", "bmm", "baddbmm", "matmul", "convolution", "convolution_backward", "lstm", "gru"}
)
_PRODUCT_PREFIXES: Final = ("conv", "_scaled_dot_product", "scaled_dot_product", "_int_mm", "linear", "mkldnn_linear")


def limit_dtype(kernel: KernelGraph) -> str:
    """Return ``f32``, ``bf16`` or ``int8``: the dtype of most of the kernel's matrix products, else of its widest
    input.
    """
    dtypes = _value_dtypes(kernel)
    found = [_first_dtype(node, dtypes) for node in kernel.nodes if is_product(node.op)]
    names = [name for name in found if name is not None]
    if not names:
        inputs = [spec.dtype for spec in kernel.inputs if spec.dtype in _RANK and "float" in spec.dtype]
        names = [max(inputs, key=_RANK.index, default="float32")]
    return _LIMIT_OF.get(max(names, key=names.count), "f32")


def is_product(op: str) -> bool:
    """Return whether an operator multiplies matrices."""
    name = parse_operator(op).word
    return name in _PRODUCTS or name.startswith(_PRODUCT_PREFIXES)


def _value_dtypes(kernel: KernelGraph) -> dict[str, str]:
    """Return the dtype of every value that follows from inputs and conversions."""
    dtypes = {spec.name: spec.dtype for spec in kernel.inputs}
    for node in kernel.nodes:
        arguments = [*node.args, *node.kwargs.values()]
        converted = _conversion(arguments)
        operands = [dtypes[name] for name in references(arguments) if dtypes.get(name) in _RANK]
        dtypes[node.name] = converted or max(operands, key=_RANK.index, default="float32")
    return dtypes


def _conversion(arguments: Sequence[Argument]) -> str | None:
    return next((a.text for a in arguments if isinstance(a, Special) and a.kind == "dtype"), None)


def _first_dtype(node: KernelNode, dtypes: Mapping[str, str]) -> str | None:
    names = references([*node.args, *node.kwargs.values()])
    return dtypes.get(names[0]) if names else None

"""Units of the kernel check: a section's forward with the backward that reads what this forward saved; and verdicts.

The compiler finds units and keeps verdicts; the runtime (``rdukit_runtime.check``) judges.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from rdukit.files.atomic import sha256_of
from rdukit.pef.kernel import KernelGraph, kernel_from_json
from rdukit.pef.model import Section, SectionType

#: Source of a backward's input: ``("input", n)`` or ``("output", n)`` of its forward; None: elsewhere.
Source = tuple[str, int] | None


@dataclass(frozen=True)
class Unit:
    """A section's kernels, which run together.

    ``sources``: source of each input of ``backward``; arriving gradients and sums so far come from elsewhere.
    """

    forward: KernelGraph
    backward: KernelGraph | None = None
    sources: tuple[Source, ...] = ()

    @property
    def kernels(self) -> tuple[KernelGraph, ...]:
        """The kernels, forward first."""
        return (self.forward,) if self.backward is None else (self.forward, self.backward)

    @cached_property
    def kernel_digests(self) -> tuple[str, ...]:
        """Digests of the kernels, cached, because each one reads a complete kernel."""
        return tuple(kernel.digest() for kernel in self.kernels)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of its kernels and their connections."""
        return sha256_of(" ".join([*self.kernel_digests, json.dumps(self.sources)]).encode())

    def to_json(self) -> bytes:
        """Return the JSON that ``unit_from_json`` reads."""
        kernels = [json.loads(kernel.to_json()) for kernel in self.kernels]
        return json.dumps({"kernels": kernels, "sources": self.sources}).encode()


def unit_from_json(data: bytes) -> Unit:
    """Read a unit.

    Raises:
        PefCorrupt: a kernel is not readable.
    """
    value = json.loads(data)
    kernels = [kernel_from_json(json.dumps(kernel).encode()) for kernel in value["kernels"]]
    sources = (None if source is None else (str(source[0]), int(source[1])) for source in value["sources"])
    return Unit(kernels[0], kernels[1] if len(kernels) > 1 else None, tuple(sources))


def find_units(sections: Iterable[Section], kernels: Mapping[str, KernelGraph]) -> dict[str, Unit]:
    """Return the units of a PEF by digest; equal sections share one.

    Args:
        kernels: digest → kernel.
    """
    listed = list(sections)
    backwards = {(s.graph, s.name): s for s in listed if s.type is SectionType.BCKWD}
    units = []
    for section in listed:
        if section.type is SectionType.BCKWD:
            continue
        backward = backwards.get((section.graph, f"{section.name}_bwd")) if section.type is SectionType.FWD else None
        forward = kernels[section.kernel]
        if backward is None:
            units.append(Unit(forward))
        else:
            sources = tuple(_source_of(name, section) for name in backward.inputs)
            units.append(Unit(forward, kernels[backward.kernel], sources))
    return {unit.digest: unit for unit in units}


def _source_of(symbol: str, forward: Section) -> Source:
    if symbol in forward.outputs:
        return ("output", forward.outputs.index(symbol))
    return ("input", forward.inputs.index(symbol)) if symbol in forward.inputs else None


class Outcome(StrEnum):
    """Result of a comparison of native kernels with portable ones."""

    RIGHT = "right"
    #: The native kernels differ, crash, hang, or write outside their memory.
    REFUSED = "refused"
    #: The kernels could not be compared.
    NOT_JUDGED = "not-judged"


@dataclass(frozen=True, slots=True)
class KernelVerdict:
    """Verdict on a unit's native kernels, and the inputs that it is based on."""

    outcome: Outcome
    reason: str = ""
    #: Number of sets of inputs that both forms computed, and of sets that the portable form refused.
    sets: int = 0
    dropped: int = 0

    @property
    def is_right(self) -> bool:
        """Return whether the native kernels may be used."""
        return self.outcome is Outcome.RIGHT

    @property
    def complaint(self) -> str:
        """Return the reason why the native kernels are not used."""
        fault = "differ" if self.outcome is Outcome.REFUSED else "could not be compared"
        return f"its native kernels {fault}: {self.reason}"

    def to_json(self) -> str:
        """Return the JSON that ``verdict_from_json`` reads."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        tried = f"{self.sets} sets of inputs" + (f", {self.dropped} more refused" if self.dropped else "")
        return f"{self.outcome.value}: {self.reason}" if self.reason else f"{self.outcome.value}: {tried}"


#: Key of a PEF's metadata with the check's verdict on each kernel, by digest.
KERNEL_CHECK = "kernel_check"
#: Key of metadata: native kernels were left to ``build_pef``.
KERNELS_LATER = "kernels_later"


def describe_verdicts(units: Mapping[str, Unit], verdicts: Mapping[str, KernelVerdict]) -> dict[str, str]:
    """Return the verdict on each kernel for a PEF's metadata; a kernel of several units gets the worst one."""
    worst: dict[str, KernelVerdict] = {}
    for digest, verdict in sorted(verdicts.items()):
        for kernel in units[digest].kernel_digests:
            former = worst.get(kernel)
            if former is None or _SEVERITY[verdict.outcome] > _SEVERITY[former.outcome]:
                worst[kernel] = verdict
    return {kernel: str(verdict) for kernel, verdict in worst.items()}


_SEVERITY: Final = {Outcome.RIGHT: 0, Outcome.NOT_JUDGED: 1, Outcome.REFUSED: 2}


def verdict_from_json(data: str | bytes) -> KernelVerdict:
    """Read a verdict.

    Raises:
        ValueError: the JSON is not a verdict.
    """
    value = json.loads(data)
    try:
        return KernelVerdict(Outcome(value["outcome"]), str(value["reason"]), int(value["sets"]), int(value["dropped"]))
    except (KeyError, TypeError) as cause:
        raise ValueError(f"a verdict lacks {cause}") from cause

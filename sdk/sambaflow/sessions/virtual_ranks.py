"""Virtual ranks: several replicas in one process, with the bits that as many ranks would give.

The replicas run one after the other, with one set of parameters. Each uses its part of the joint batch, starts from the
same random state (like ranks with equal seeds), and has its own buffers, such as running statistics. Gradients are
added in rank order, in f32, and rounded once; then the optimizer runs once. Source: ours.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import torch

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit.pef.memory import shared_outputs
from rdukit.pef.model import Graph, Pef, SectionType, SymbolKind
from sambaflow.sessions.spatial import SpatialBatches, join_parts

if TYPE_CHECKING:
    from rdukit_runtime.application import Application

_COMPUTES: Final = frozenset({SectionType.FWD, SectionType.BCKWD})


def check_virtual_ranks(count: int, data_parallel: bool, ranks: int) -> None:
    """Refuse options that cannot be combined (pure).

    Args:
        count: value of ``--virtual-ranks``. ranks: number of processes that were launched together.
    Raises:
        InvalidArgument: the message names them, and the next step.
    """
    if count < 1:
        raise InvalidArgument(f"--virtual-ranks {count} is not valid; expected 1 or more")
    if count > 1 and not data_parallel:
        raise InvalidArgument(f"--virtual-ranks {count} are replicas of data parallel; add --data-parallel")
    if count > 1 and ranks > 1:
        raise InvalidArgument(
            f"--virtual-ranks {count} needs one process, but {ranks} were launched; start one, or leave out the option"
        )


class VirtualRanks:
    """The replicas of one loaded PEF."""

    def __init__(self, application: "Application", batches: SpatialBatches) -> None:
        self._application, self._batches = application, batches
        self._program = application.program
        self._types = {section.id: section.type for section in application.pef.sections}
        _check_pef(application.pef)
        #: Buffers that sections write → each replica's values after its last run.
        self._buffers = _written_buffers(application.pef)
        self._kept: list[dict[str, torch.Tensor]] = []
        #: Outputs of the last forward, joined over all replicas.
        self.outputs: dict[str, torch.Tensor] = {}

    def run(
        self, graph: Graph, sections: Sequence[int], given: Sequence[tuple[str, torch.Tensor]], names: Sequence[str],
        scalars: Mapping[str, float], data_parallel: bool,
    ) -> None:  # fmt: skip
        """Run sections: forward and backward for each replica, then the optimizer once.

        Args:
            given: inputs of all replicas. names: outputs to keep in ``outputs``.
        Raises:
            InvalidArgument: the run needs all replicas' activations at one time, or would make replicas differ.
        """
        each = tuple(number for number in sections if self._types[number] in _COMPUTES)
        rest = tuple(number for number in sections if self._types[number] in {SectionType.GRADNORM, SectionType.OPT})
        kinds = {self._types[number] for number in each}
        if SectionType.BCKWD in kinds and SectionType.FWD not in kinds:
            raise InvalidArgument(
                "virtual ranks keep the activations of only one replica, so backward cannot run without forward; run "
                "section_types=['fwd', 'bckwd'] in one call"
            )
        if (rest or SectionType.BCKWD in kinds) and not data_parallel:
            raise InvalidArgument(
                "virtual ranks require data_parallel=True; without it each rank would have its own parameters"
            )
        if each:
            self._run_each(graph, each, given, names, scalars)
        else:
            self._program.write_all([(name, self._batches.part(name, value, 0)) for name, value in given])
        if rest:
            self._application.run(graph.name, rest, scalars)

    def _run_each(
        self, graph: Graph, sections: tuple[int, ...], given: Sequence[tuple[str, torch.Tensor]],
        names: Sequence[str], scalars: Mapping[str, float],
    ) -> None:  # fmt: skip
        from rdukit_runtime.collectives.grouping import find_reduce
        from rdukit_runtime.collectives.sums import RankMean

        program, batches = self._program, self._batches
        reduce = find_reduce(program.pef, graph)
        has_backward = any(self._types[number] is SectionType.BCKWD for number in sections)
        averaged = program.pef.sections[reduce].inputs if has_backward and reduce is not None else ()
        means = {name: RankMean() for name in averaged}
        made: dict[str, list[torch.Tensor]] = {name: [] for name in names if name in graph.outputs}
        self._follow_program()
        random = torch.get_rng_state()
        for rank in range(batches.count):
            torch.set_rng_state(random)
            self._restore(rank)
            program.write_all([(name, batches.part(name, value, rank)) for name, value in given])
            for name in batches.seeds:
                program.seed(name, batches.seed_part(name, rank))
            self._application.run(graph.name, sections, scalars)
            self._keep(rank)
            for name, mean in means.items():
                mean.add(program.device_tensor(name))
            for name, parts in made.items():
                parts.append(program.read(name))
        self._restore(0)
        for name, mean in means.items():
            program.replace(name, mean.result())
        self.outputs.update((name, join_parts(parts)) for name, parts in made.items())

    # -- buffers -----------------------------------------------------------------------------------------------------

    def _follow_program(self) -> None:
        """Copy the program's changes of buffers since the last run to all replicas, as all ranks would change them."""
        if not self._kept:
            values = {name: self._program.device_tensor(name).clone() for name in self._buffers}
            self._kept = [values] * self._batches.count
        for name in self._buffers:
            now = self._program.device_tensor(name)
            if not _are_same(now, self._kept[0][name]):
                value = now.clone()
                self._kept = [{**kept, name: value} for kept in self._kept]

    def _restore(self, rank: int) -> None:
        for name, value in self._kept[rank].items():
            self._program.device_tensor(name).copy_(value)

    def _keep(self, rank: int) -> None:
        self._kept[rank] = {name: self._program.device_tensor(name).clone() for name in self._buffers}


def _check_pef(pef: Pef) -> None:
    """Refuse a PEF whose replicas cannot be separated in one process.

    Raises:
        PefMismatch: it does not average gradients. InvalidArgument: it carries values other than parameters from
            step to step.
    """
    types = {section.type for section in pef.sections}
    if SectionType.OPT in types and SectionType.REDUCE not in types:
        raise PefMismatch(f"{pef.name} does not average gradients; compile it with --data-parallel -ws 2")
    if SectionType.REDUCE not in types:
        return
    written = _written(pef) - {n for n, symbol in pef.symbols.items() if symbol.kind is SymbolKind.BUFFER}
    carried = sorted(shared_outputs(pef) | {n for n in written if pef.symbols[n].kind is not SymbolKind.INPUT})
    if len(pef.main_graphs()) > 1 or carried:
        reason = f"{carried[0]!r} keeps its value from step to step" if carried else "it has several graphs"
        raise InvalidArgument(
            f"--virtual-ranks cannot run {pef.name}: {reason}, and replicas would share it; compile without gradient "
            "accumulation and shared regions, or start one process for each rank"
        )


def _written_buffers(pef: Pef) -> tuple[str, ...]:
    return tuple(sorted(name for name in _written(pef) if pef.symbols[name].kind is SymbolKind.BUFFER))


def _written(pef: Pef) -> set[str]:
    """Return the symbols that forward and backward write and keep."""
    kept = {SymbolKind.BUFFER, SymbolKind.STATE, SymbolKind.PARAMETER}
    made = {name for section in pef.sections if section.type in _COMPUTES for name in section.outputs}
    return {name for name in made if pef.symbols[name].kind in kept}


def _are_same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors have the same bits, NaN included."""
    rows = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in (first, second)]
    return torch.equal(*rows)

"""Data parallel for programs: one process for each replica, with gradients averaged before the optimizer.

Source: SDK reference 18, runtime reference 9. ``reduce_on_rdu`` chooses where the vendor's machine averages; the result
is the same, and so is the implementation here.
"""

import functools
import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch.distributed as dist

from rdukit.errors import PefMismatch
from rdukit.files.atomic import sha256_of
from rdukit.pef.model import Graph, Pef, SectionType, SymbolKind

if TYPE_CHECKING:
    from rdukit_runtime.application import Application

logger = logging.getLogger(__name__)

#: Kinds of symbols that are equal on all ranks; inputs and incoming gradients differ.
_SHARED: Final = (SymbolKind.PARAMETER, SymbolKind.BUFFER, SymbolKind.STATE)
_READS_GRADIENTS: Final = frozenset({SectionType.GRADNORM, SectionType.OPT})


def is_switched_on(option: Any) -> bool:
    """Return whether ``--data-parallel`` is on; programs that redefine the option may make it a text or a number."""
    return option.strip().lower() in {"1", "true", "yes", "on"} if isinstance(option, str) else bool(option)


def choose_reduced(
    types: Mapping[int, SectionType], schedule: Iterable[int], chosen: tuple[int, ...], *, is_whole_step: bool,
    data_parallel: bool, is_pending: bool,
) -> tuple[int, ...]:  # fmt: skip
    """Return the ``chosen`` sections, with ``reduce`` inserted if necessary.

    A complete step with ``data_parallel`` averages. Named sections run as named, except that ``reduce`` is inserted
    before ``opt`` and ``gradnorm`` of a data-parallel run if gradients are not averaged yet. Source: ours; automatic
    insertion: compiler reference 1.4.

    Args:
        types: section number → type. is_pending: whether a backward has run since the last average.
    """
    wanted = set(chosen)
    reduces = {number for number in schedule if types[number] is SectionType.REDUCE}
    present = {types[number] for number in chosen}
    if is_whole_step:
        wanted = wanted if data_parallel else wanted - reduces
    elif data_parallel and present & _READS_GRADIENTS and (is_pending or SectionType.BCKWD in present):
        wanted |= reduces
    return tuple(number for number in schedule if number in wanted)


class Replicas:
    """A process's part in a data-parallel run of one loaded PEF.

    States: before the first data-parallel run the ranks are independent. That run compares their PEFs and copies rank
    0's parameters, buffers and optimizer states to all ranks.
    """

    def __init__(self, application: "Application") -> None:
        self._application = application
        pef = application.pef
        self._types = {section.id: section.type for section in pef.sections}
        #: Whether the PEF was compiled for data parallel.
        self.can_reduce = SectionType.REDUCE in self._types.values()
        self._trains = SectionType.OPT in self._types.values()
        #: Whether the ranks hold equal values of one PEF.
        self._is_joined = False
        #: Whether a backward has run since the last average.
        self._is_pending = False
        self._was_told = False

    def prepare(
        self, graph: Graph, chosen: tuple[int, ...], is_whole_step: bool, data_parallel: bool
    ) -> tuple[int, ...]:  # fmt: skip
        """Return the sections to run instead of ``chosen``; the first data-parallel run synchronizes the ranks.

        Raises:
            PefMismatch: the PEF was not compiled for data parallel, or ranks loaded different ones. PeerLost: a rank
            died or does not answer.
        """
        if not (self.can_reduce or data_parallel):
            return chosen
        is_alone = world_size() == 1
        if not self.can_reduce:
            if self._trains and not is_alone:
                raise PefMismatch(
                    f"{self._application.path} does not average gradients: it was compiled without data parallel; "
                    "compile "
                    "it with --data-parallel -ws 2, or run with data_parallel=False"
                )
            return chosen
        if data_parallel and not self._is_joined and not is_alone:
            self._join()
        if not data_parallel and not is_alone and is_whole_step and not self._was_told:
            self._was_told = True
            logger.warning(
                "event=not-averaged ranks=%d: run(…) was called without data_parallel=True, so each rank trains "
                "separately",
                world_size(),
            )
        return choose_reduced(
            self._types, graph.schedule, chosen, is_whole_step=is_whole_step, data_parallel=data_parallel,
            is_pending=self._is_pending,
        )  # fmt: skip

    def note(self, sections: tuple[int, ...]) -> None:
        """Record that ``sections`` have run."""
        if self.can_reduce:
            for number in sections:
                if self._types[number] is SectionType.BCKWD:
                    self._is_pending = True
                elif self._types[number] is SectionType.REDUCE:
                    self._is_pending = False

    def _join(self) -> None:
        from rdukit_runtime.collectives.replacement import RankTensors, find_joining
        from rdukit_runtime.engine.collectives import broadcast, default_collectives, gather_facts, peer_errors

        pef, path, program = self._application.pef, self._application.path, self._application.program
        held = [program.device_tensor(s.name) for s in pef.symbols.values() if s.kind in _SHARED]
        state = RankTensors(_digest(pef), tuple(held))
        joining = find_joining()
        if joining is None:
            said = gather_facts((state.identity, str(path)))
            for rank, (digest, other) in enumerate(said):
                if digest != said[0][0]:
                    raise PefMismatch(
                        f"rank {rank} loaded {other}, which computes something other than rank 0's {said[0][1]}; "
                        "start all ranks with the same PEF"
                    )
            broadcast(held)
        with peer_errors("making room for gradients"):
            program.exchange_gradients(joining or default_collectives(), state)
        self._is_joined = True
        logger.info("event=equal-start ranks=%d tensors=%d", world_size(), len(held))


def world_size() -> int:
    """Return the ranks that were launched together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _digest(pef: Pef) -> str:
    """Digest a PEF's computation: precision, symbols, kernels and their order, but not names, cost or metadata."""
    sections = [[s.type.value, s.kernel, s.inputs, s.outputs] for s in pef.sections]
    graphs = [asdict(graph) for graph in pef.graphs.values()]
    symbols = [asdict(symbol) for symbol in pef.symbols.values()]
    value = [pef.precision, dict(pef.hyperparameters), sections, graphs, symbols]
    return sha256_of(json.dumps(value, sort_keys=True, default=str).encode())


# -- torch.distributed -------------------------------------------------------------------------------------------------


def join_ranks(timeout: timedelta | None = None) -> int:
    """Create torch's default process group from the ranks that were launched together; return this one's rank.

    Raises:
        PeerLost: not all ranks joined in time. InvalidArgument: the launcher's variables are wrong.
    """
    from rdukit_runtime.process_group import join_process_group

    join_process_group(timeout)
    return dist.get_rank()


def offer_mpi_backend() -> None:
    """Let ``torch.distributed.init_process_group('mpi')`` work without MPI in torch: over gloo, with the launcher's
    rank and size. Source: SDK reference 18; programs of the model zoo call it themselves.

    torch does not allow a registered backend called mpi, so its function is wrapped; other calls are passed on.
    """
    if not dist.is_available() or dist.is_mpi_available() or hasattr(dist.init_process_group, "offers_mpi"):
        return
    from torch.distributed import distributed_c10d as c10d

    original = c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        is_plain = not args and not {"init_method", "store", "rank", "world_size"} & kwargs.keys()
        if not (isinstance(backend, str) and backend.lower() == "mpi"):
            original(backend, *args, **kwargs)
        elif is_plain and not dist.is_initialized():
            logger.info("event=mpi-fallback pid=%d: this torch has no MPI, ranks talk over gloo", os.getpid())
            join_ranks(kwargs.get("timeout"))
        else:
            original("gloo", *args, **kwargs)

    init_process_group.offers_mpi = True  # type: ignore[attr-defined]
    c10d.init_process_group = init_process_group
    dist.init_process_group = init_process_group


def offer_rdu_backend() -> None:
    """Register ``rdu`` with torch.distributed, so that ``init_process_group("rdu")`` works. Source: ours."""
    if dist.is_available() and dist.is_gloo_available() and not hasattr(dist.Backend, "RDU"):
        dist.Backend.register_backend("rdu", _rdu_group, extended_api=True, devices=["cpu"])


def _rdu_group(given: Any, options: Any) -> Any:
    from rdukit_runtime.collectives.backend import RduProcessGroup

    members = given.global_ranks_in_group
    return RduProcessGroup(given.store, given.group_rank, given.group_size, given.timeout, members)

"""The backend ``rdu`` of torch.distributed: sums in rank order through rdukit's data plane, all else by gloo.

A group of torch in Python. Its own operations are complete when the call returns; the returned work is done.
Source: ours.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist

from rdukit.errors import InvalidArgument, PeerLost
from rdukit.settings import resolve
from rdukit.telemetry.logs import begin_logs_with_rank
from rdukit_node.leases.launch import LOOPBACK
from rdukit_runtime.collectives.membership import GroupRanks, first_line
from rdukit_runtime.collectives.network import find_missing, join_network
from rdukit_runtime.collectives.planes import number_members, open_plane
from rdukit_runtime.collectives.ports import RankPorts, keep_ports
from rdukit_runtime.collectives.sums import Reduction, check_reduction
from rdukit_runtime.collectives.trusted import asks_for_token, open_trusted_store
from rdukit_runtime.engine.torch_private import PrefixStore, Store, gloo_group
from rdukit_runtime.settings import DISTRIBUTED_TOKEN

_REDUCTIONS: Final = (
    (dist.ReduceOp.SUM, Reduction.SUM),
    (dist.ReduceOp.AVG, Reduction.MEAN),
    (dist.ReduceOp.PRODUCT, Reduction.PRODUCT),
    (dist.ReduceOp.MIN, Reduction.MIN),
    (dist.ReduceOp.MAX, Reduction.MAX),
)
#: Collectives of all ranks that this backend forwards to gloo.
_OF_ALL: Final = (
    "broadcast", "reduce", "allgather", "_allgather_base", "all_gather_single", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "all_gather_single_coalesced", "gather", "scatter", "reduce_scatter",
    "reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced", "alltoall", "alltoall_base",
    "all_to_all_single", "barrier",
)  # fmt: skip
#: Methods that send or receive, and the place of the peer among their arguments.
_OF_PAIRS: Final = {"send": "send to", "recv": "receive from"}
#: Further methods that this backend forwards.
_HANDED_ON: Final = (
    "recv_anysource", "_set_sequence_number_for_group", "monitored_barrier", "_start_coalescing", "_end_coalescing",
)  # fmt: skip


#: Begins gloo's work, or waits for it.
Call = Callable[[], Any]


class RduProcessGroup(dist.ProcessGroup):
    """A group whose all-reduce and reduce-scatter add in rank order."""

    _ports: RankPorts

    def __init__(
        self, store: Store, rank: int, size: int, timeout: timedelta, members: Sequence[int] = ()
    ) -> None:  # fmt: skip
        super().__init__(rank, size)  # type: ignore[call-arg]  # what torch's stub lacks: groups in Python
        #: torch's group holds the C++ part of a store only.
        self._store, ports = store, None
        if dist.is_initialized() and isinstance(world := dist.group.WORLD, RduProcessGroup):
            # torch numbers groups anew after each default one, and its store may be the former one's
            self._store = PrefixStore(f"rdukit/{world._ports.key}", store)
        ranks = number_members(members, size)
        if dist.is_initialized():
            _await_members(self._store, rank, ranks, timeout)
        elif not asks_for_token(store):  # the default group; others use its interfaces
            self._store, ports = _meet(store, rank, size, timeout)
        self._gloo = gloo_group(self._store, rank, size, timeout)
        if ports is not None:
            keep_ports(self._gloo, ports)
        self._limit_s = timeout.total_seconds()
        self._plane, self._ports = open_plane(self._gloo, ranks)
        self._name = ""

    @property
    def group_name(self) -> str:  # type: ignore[override]  # torch asks the backends of a group, and this one has none
        """Return the name under which torch lists this group."""
        return self._name

    def _set_group_name(self, name: Any) -> None:
        super()._set_group_name(name)
        self._name = name

    def getBackendName(self) -> str:
        """Return the name of its registration."""
        return "rdu"

    def allreduce(self, tensors: Any, opts: Any = None, *more: Any) -> dist.Work:
        """Reduce in place."""
        rows = tensors if isinstance(tensors, list) else [tensors]
        found = _find_reduction(rows, opts)
        if found is None:
            return _begin_of_all(self, "allreduce", (), lambda: self._gloo.allreduce(tensors, opts, *more))
        self._plane.all_reduce(rows, rows, found)
        return _Done(rows)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        """Reduce several in place."""
        if _find_reduction(tensors, opts) is None:
            return _begin_of_all(self, "allreduce_coalesced", (), lambda: self._gloo.allreduce_coalesced(tensors, opts))
        return self.allreduce(tensors, opts)

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> dist.Work:
        """Reduce, and leave this rank's part in ``output``."""
        found = _find_reduction([given], opts)
        if found is None:
            return _begin_of_all(
                self, "reduce_scatter_single", (), lambda: self._gloo.reduce_scatter_single(output, given, opts)
            )
        self._plane.reduce_scatter(given, output, found)
        return _Done([output])

    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]  # names of arguments

    def shutdown(self) -> None:
        """Leave the group."""
        self._plane.close()
        self._gloo.shutdown()

    abort = shutdown


def _hand_on(name: str, wrap: Callable[[RduProcessGroup, str, tuple[Any, ...], Call], Any]) -> Callable[..., Any]:
    def call(self: RduProcessGroup, *args: Any, **kwargs: Any) -> Any:
        return wrap(self, name, args, lambda: getattr(self._gloo, name)(*args, **kwargs))

    call.__name__ = name
    return call


def _begin_of_all(group: RduProcessGroup, name: str, args: tuple[Any, ...], call: Call) -> "_Named":
    ports = group._ports
    number = ports.begin(name.strip("_"))
    work = _Named(call, ports.explain_loss, group._limit_s, lambda: ports.end(number))
    ports.watch(number, work)
    return work


def _begin_of_pair(group: RduProcessGroup, name: str, args: tuple[Any, ...], call: Call) -> Any:
    if len(args) < 2:
        return call()
    ports, peer = group._ports, int(args[1])
    if not 0 <= peer < group.size():
        return call()
    text = f"{_OF_PAIRS[name]} rank {ports.ranks.numbers[peer]}"
    return _Named(call, partial(ports.explain_pair, peer), group._limit_s, is_in=lambda: ports.pair(text))


for _name in _OF_ALL:
    setattr(RduProcessGroup, _name, _hand_on(_name, _begin_of_all))
for _name in _OF_PAIRS:
    setattr(RduProcessGroup, _name, _hand_on(_name, _begin_of_pair))
for _name in _HANDED_ON:
    setattr(RduProcessGroup, _name, _hand_on(_name, lambda group, name, args, call: call()))


class _Named(dist.Work):
    """gloo's work, whose errors name the lost rank.

    Args:
        call: begins the work. explain: returns the error for torch's, at a time limit; None: torch's stays. limit_s:
            the group's. end: called when the work is done. is_in: runs while the program waits.
    """

    def __init__(
        self, call: Call, explain: Callable[[RuntimeError, float], PeerLost | None], limit_s: float,
        end: Callable[[], None] = lambda: None, is_in: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:  # fmt: skip
        super().__init__()
        self._explain, self._end, self._is_in = explain, end, is_in
        self._has_failed = False
        self._limit_s = limit_s
        self._work = self._name(call, limit_s)

    def is_finished(self) -> bool:
        """Return whether the work has ended without an error."""
        future = self._work.get_future()
        if self._has_failed or not future.done():
            return False
        with suppress(RuntimeError):
            future.value()
            return True
        return False

    def _name(self, call: Call, limit_s: float) -> Any:
        try:
            return call()
        except RuntimeError as cause:
            self._has_failed = True
            lost = self._explain(cause, limit_s)
            if lost is None:
                raise
            raise PeerLost(f"{lost.message}; gloo: {first_line(cause)}", **lost.detail) from cause

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        with self._is_in():
            done = bool(self._name(lambda: self._work.wait(timeout), timeout.total_seconds() or self._limit_s))
        self._end()
        return done

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        return bool(self._work.is_success())

    def exception(self) -> Any:
        return self._work.exception()

    def result(self) -> Any:
        return self._work.result()

    def source_rank(self) -> int:
        return int(self._work.source_rank())

    _source_rank = source_rank

    def get_future(self) -> Any:
        return self._work.get_future()


class _Done(dist.Work):
    """Work that is complete."""

    def __init__(self, result: list[torch.Tensor]) -> None:
        super().__init__()
        self._result = result
        self._future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def result(self) -> list[torch.Tensor]:
        return self._result

    def get_future(self) -> Any:
        return self._future


def _meet(store: Store, rank: int, size: int, timeout: timedelta) -> tuple[Store, RankPorts]:
    """Return the store at which ranks of the default group meet, and their ports."""
    if size > 1:
        begin_logs_with_rank(rank)
    host = os.environ.get("MASTER_ADDR") or None
    try:
        trusted = open_trusted_store(store, rank, size, resolve(DISTRIBUTED_TOKEN), host or LOOPBACK, timeout)
        return trusted, join_network(trusted, rank, size, host)
    except RuntimeError as cause:
        raise PeerLost(
            f"rank {rank} of {size} did not meet all other ranks within {timeout.total_seconds():g} s "
            f"({first_line(cause)}); read the other ranks' messages, or raise the timeout of init_process_group",
            rank=rank,
        ) from cause


def _await_members(store: Store, place: int, ranks: GroupRanks, timeout: timedelta) -> None:
    """Wait for all members of a group, which gloo would not name.

    Raises:
        PeerLost: members did not come within the time limit.
    """
    keys = [f"rdukit/here/{of}" for of in range(len(ranks.numbers))]
    store.set(keys[place], "1")
    try:
        store.wait(keys, timeout)
    except RuntimeError as cause:
        missing = find_missing(store, keys)
        if not missing:
            raise
        raise PeerLost(
            f"{ranks.name(missing)} did not come to new_group within {timeout.total_seconds():g} s; read their "
            "messages, and call new_group on all ranks in the same order", rank=ranks.numbers[place],
        ) from cause  # fmt: skip


def _find_reduction(tensors: list[torch.Tensor], opts: Any) -> Reduction | None:
    """Return the data plane's operation for the tensors; None: gloo handles them."""
    wanted = dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
    found = next((ours for theirs, ours in _REDUCTIONS if wanted == theirs), None)
    if found is None or any(tensor.layout != torch.strided for tensor in tensors):
        return None
    try:
        for tensor in tensors:
            check_reduction(tensor.dtype, found)
    except InvalidArgument:
        return None
    return found

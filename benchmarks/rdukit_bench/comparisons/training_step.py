"""Comparison: one training step, against eager torch and torch.compile with their fused AdamW.

Each variant does what a user's loop does: hand over the batch, run forward, backward and update, read the loss. The
peers run with both of torch's routes for matrix products; the fastest of all is the one that the bar is about. A case
in bf16 has peers under bf16 autocast beside them, and its bar is about the fastest of those: eager, torch.compile, and
max-autotune. Every side has a process of its own. Losses of the first steps are compared with eager's before anything
is timed.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from rdukit.errors import RuntimeFault
from rdukit_bench.comparisons.contestant import ContestantCalls
from rdukit_bench.comparisons.contestants import Contestants, Place
from rdukit_bench.comparisons.model import BenchOptions, ComparisonRow, comparison
from rdukit_bench.comparisons.timing import missing_row, rounds_of, rows_against_peers
from rdukit_bench.comparisons.training_cases import (
    CASES,
    ROUTES,
    Step,
    get_case,
    largest_difference,
    make_case,
    on_route,
    our_step,
    peer_step,
)

QUESTION: Final = "training_step"
#: Case → least ratio to the fastest peer in the same precision.
BARS: Final = {"mlp": 1.3, "lstm": 1.2, "conv1d": 1.2, "lenet": 1.2, "gpt2": 1.0, "gpt2-bf16": 1.0}
#: Cases whose peers take minutes to compile: left out by ``--quick``.
_SLOW: Final = frozenset({"gpt2", "gpt2-bf16"})
#: Their peers: eager, which is slower, gives the losses and makes room.
_LARGE_PEERS: Final = ("eager", "torch.compile")
#: Losses of ours and eager may differ so much, relatively: in f32 by the order of sums; bf16 has 8 bits of mantissa.
TOLERANCE: Final = {"f32": 1e-4, "bf16": 2e-2}


@comparison(QUESTION)
def compare(options: BenchOptions) -> Iterator[ComparisonRow]:
    """Yield the rows of each case: ours against each peer, the fastest first."""
    for name in BARS:
        if options.wants(name) and not (options.quick and name in _SLOW and options.only is None):
            with Contestants(Path(options.folder)) as contestants:
                yield from measure(name, options, contestants)


def measure(
    name: str, options: BenchOptions, contestants: Contestants, question: str = QUESTION, bar: float | None = None
) -> list[ComparisonRow]:
    """Time one case, for rows of ``question``; ``bar`` is its least ratio, that of ``BARS`` unless given.

    Raises:
        RuntimeFault: our side failed, or our losses are not eager's: no time is worth printing then.
    """
    case = CASES[name]
    mine = f"rdukit {case.mode} {case.precision}"
    places: dict[str, Place] = {mine: (mine, "step")}
    contestants.start(mine, f"{__name__}:ours", case=name, folder=options.folder, threads=options.threads)
    for kind in _LARGE_PEERS if name in _SLOW else PEERS:
        contestants.start(kind, f"{__name__}:peer", case=name, kind=kind, threads=options.threads)
        if name in _SLOW and kind == "eager" and contestants.has(kind):
            contestants.close(kind)
        else:
            places |= {kind + words: (kind, words) for words in ROUTES}
    bf16_peers = tuple(BF16_PEERS) if case.precision == "bf16" else ()
    for kind in bf16_peers:
        contestants.start(kind, f"{__name__}:bf16_peer", case=name, kind=kind, threads=options.threads)
        places[kind] = (kind, "step")
    note = _check_losses(name, contestants, mine)
    timings = contestants.measure(places, rounds_of(options), sample_s=options.sample_s)
    if mine not in timings:
        raise RuntimeFault(f"{mine}: {contestants.failed[mine]}")
    rows = rows_against_peers(
        question, name, timings, ours=mine, unit="ms", bar=bar or BARS[name], bar_peers=bf16_peers or None, note=note
    )
    failed = [
        missing_row(question, name, mine, timings[mine], peer, "ms", why) for peer, why in contestants.failed.items()
    ]
    return [*rows, *failed]


def _check_losses(name: str, contestants: Contestants, mine: str) -> str:
    """Describe how near our losses are to eager's."""
    if mine not in contestants.facts:
        raise RuntimeFault(f"{mine}: {contestants.failed[mine]}")
    if "eager" not in contestants.facts:
        return f"losses not compared: eager failed: {contestants.failed['eager']}"
    difference = largest_difference(contestants.facts[mine]["losses"], contestants.facts["eager"]["losses"])
    if not difference <= TOLERANCE[CASES[name].precision]:
        raise RuntimeFault(f"{name}: losses differ from eager torch's by {difference:.1e} of their value")
    return f"losses within {difference:.0e} of eager f32's"


#: Torch's ways of one step in f32: how the module is wrapped, and whether the optimizer is fused.
PEERS: Final[Mapping[str, tuple[Callable[[nn.Module], Any], bool]]] = {
    "eager": (lambda module: module, False),
    "eager + fused": (lambda module: module, True),
    "torch.compile": (torch.compile, True),
}
#: Its ways in bf16 under autocast, with f32 weights as ours has them; the optimizer is fused.
BF16_PEERS: Final[Mapping[str, Callable[[nn.Module], Any]]] = {
    "autocast bf16": lambda module: module,
    "torch.compile autocast bf16": torch.compile,
    "torch.compile max-autotune autocast bf16": lambda module: torch.compile(module, mode="max-autotune-no-cudagraphs"),
}
#: Losses of as many steps are facts.
_STEPS: Final = 3


def ours(case: str, folder: str, threads: int) -> ContestantCalls:
    """Build a SambaFlow program; one call, ``step``. The fact ``losses`` is of its first steps."""
    torch.set_num_threads(threads)
    module, batch = make_case(get_case(case))
    step = our_step(get_case(case), module, batch, Path(folder))
    return ContestantCalls({"step": step}, {"losses": first_losses(step)})


def peer(case: str, kind: str, threads: int) -> ContestantCalls:
    """Build torch as ``kind`` of ``PEERS``: one call per route of its products, and the facts as for ours."""
    torch.set_num_threads(threads)
    module, batch = make_case(get_case(case))
    wrap, is_fused = PEERS[kind]
    step = peer_step(wrap(module), batch, is_fused)
    return ContestantCalls(
        {words: on_route(step, route) for words, route in ROUTES.items()}, {"losses": first_losses(step)}
    )


def bf16_peer(case: str, kind: str, threads: int) -> ContestantCalls:
    """Build torch as ``kind`` of ``BF16_PEERS``: one call, ``step``, and the facts as for ours."""
    torch.set_num_threads(threads)
    module, batch = make_case(get_case(case))
    step = peer_step(BF16_PEERS[kind](module), batch, fused=True, autocast=True)
    return ContestantCalls({"step": step}, {"losses": first_losses(step)})


def first_losses(step: Step) -> list[float]:
    """Return the losses of the first steps."""
    return [float(step()) for _ in range(_STEPS)]

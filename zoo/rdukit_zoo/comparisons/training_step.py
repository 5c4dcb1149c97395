"""How long is one training step, against eager torch and torch.compile with their fused AdamW?

Each variant does what a user's loop does: hand over the batch, run forward, backward and update, read the loss. The
peers run with both of torch's routes for matrix products; the fastest of all is the one that the bar is about. A case
in bf16 has peers under bf16 autocast beside them, and its bar is about the fastest of those: eager, torch.compile, and
max-autotune. Every side has a process of its own. Losses of the first steps are compared with eager's before anything
is timed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rdukit.errors import RuntimeFault
from rdukit_zoo.comparisons.model import Options, Row, comparison
from rdukit_zoo.comparisons.sides import Place, Sides
from rdukit_zoo.comparisons.timing import missing_row, rounds_of, rows_against_peers
from rdukit_zoo.comparisons.training import ROUTES, largest_difference
from rdukit_zoo.comparisons.training_cases import CASES
from rdukit_zoo.comparisons.training_sides import BF16_PEERS, PEERS

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
def compare(options: Options) -> Iterator[Row]:
    """Rows of each case: ours against each peer, the fastest first."""
    for name in BARS:
        if options.wants(name) and not (options.quick and name in _SLOW and options.only is None):
            with Sides(Path(options.folder)) as sides:
                yield from measure(name, options, sides)


def measure(name: str, options: Options, sides: Sides) -> list[Row]:
    """Time one case.

    Raises:
        RuntimeFault: our side failed, or our losses are not eager's: no time is worth printing then.
    """
    case = CASES[name]
    mine = f"rdukit {case.mode} {case.precision}"
    places: dict[str, Place] = {mine: (mine, "step")}
    sides.start(mine, f"{__package__}.training_sides:ours", case=name, folder=options.folder, threads=options.threads)
    for kind in _LARGE_PEERS if name in _SLOW else PEERS:
        sides.start(kind, f"{__package__}.training_sides:peer", case=name, kind=kind, threads=options.threads)
        if name in _SLOW and kind == "eager" and sides.has(kind):
            sides.close(kind)
        else:
            places |= {kind + words: (kind, words) for words in ROUTES}
    bf16_peers = tuple(BF16_PEERS) if case.precision == "bf16" else ()
    for kind in bf16_peers:
        sides.start(kind, f"{__package__}.training_sides:bf16_peer", case=name, kind=kind, threads=options.threads)
        places[kind] = (kind, "step")
    note = _check_losses(name, sides, mine)
    timings = sides.measure(places, rounds_of(options), sample_s=options.sample_s)
    if mine not in timings:
        raise RuntimeFault(f"{mine}: {sides.failed[mine]}")
    rows = rows_against_peers(
        QUESTION, name, timings, ours=mine, unit="ms", bar=BARS[name], bar_peers=bf16_peers or None, note=note
    )
    failed = [missing_row(QUESTION, name, mine, timings[mine], peer, "ms", why) for peer, why in sides.failed.items()]
    return [*rows, *failed]


def _check_losses(name: str, sides: Sides, mine: str) -> str:
    """Words about how near our losses are to eager's."""
    if mine not in sides.facts:
        raise RuntimeFault(f"{mine}: {sides.failed[mine]}")
    if "eager" not in sides.facts:
        return f"losses not compared: eager failed: {sides.failed['eager']}"
    difference = largest_difference(sides.facts[mine]["losses"], sides.facts["eager"]["losses"])
    if not difference <= TOLERANCE[CASES[name].precision]:
        raise RuntimeFault(f"{name}: losses differ from eager torch's by {difference:.1e} of their value")
    return f"losses within {difference:.0e} of eager f32's"

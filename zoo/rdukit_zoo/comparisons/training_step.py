"""How long is one training step, against eager torch and torch.compile with their fused AdamW?

Each variant does what a user's loop does: hand over the batch, run forward, backward and update, read the loss. The
peers run with both of torch's routes for matrix products; the fastest of all is the one that the bar is about. Losses
of the first steps are compared with eager's before anything is timed.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rdukit.errors import RuntimeFault
from rdukit_zoo.comparisons.model import Options, Row, comparison
from rdukit_zoo.comparisons.timing import rounds_of, rows_against_peers, time_in_turn
from rdukit_zoo.comparisons.training import loss_difference, our_step, peer_steps
from rdukit_zoo.comparisons.training_cases import CASES, make_case

QUESTION: Final = "training_step"
#: Case → least ratio to the fastest peer. GPT-2 in bf16 is compared with torch.compile in f32.
BARS: Final = {"mlp": 1.3, "lstm": 1.2, "conv1d": 1.2, "lenet": 1.2, "gpt2": 1.0, "gpt2-bf16": 1.4}
#: Cases whose peers take minutes to compile: left out by ``--quick``.
_SLOW: Final = frozenset({"gpt2", "gpt2-bf16"})
#: Losses of ours and eager may differ so much, relatively: in f32 by the order of sums; bf16 has 8 bits of mantissa.
TOLERANCE: Final = {"f32": 1e-4, "bf16": 2e-2}


@comparison(QUESTION)
def compare(options: Options) -> Iterator[Row]:
    """Rows of each case: ours against each peer, the fastest first."""
    for name in BARS:
        if options.wants(name) and not (options.quick and name in _SLOW and options.only is None):
            yield from measure(name, options)


def measure(name: str, options: Options) -> list[Row]:
    """Time one case.

    Raises:
        RuntimeFault: our losses are not eager's: no time is worth printing then.
    """
    case = CASES[name]
    module, batch = make_case(case)
    ours = our_step(case, copy.deepcopy(module), batch, Path(options.folder))
    difference = loss_difference(module, batch, ours)
    if not difference <= TOLERANCE[case.precision]:
        raise RuntimeFault(f"{name}: losses differ from eager torch's by {difference:.1e} of their value")
    mine = f"rdukit {case.mode} {case.precision}"
    steps = {mine: ours, **peer_steps(module, batch)}
    timings = time_in_turn(steps, rounds_of(options), sample_s=options.sample_s)
    note = f"losses within {difference:.0e} of eager's; peers f32"
    return rows_against_peers(QUESTION, name, timings, ours=mine, unit="ms", bar=BARS[name], note=note)

"""Comparison: the memory of training, against eager torch, and in bf16 against torch's autocast too.

Peak resident memory of a training process beyond what its imports take: parameters on the host (both have them), and
for ours device memory, for torch gradients and optimizer state; activations and everything temporary for both. Ours
runs a compiled PEF, as ``run`` after ``compile`` does.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rdukit_bench.comparisons.contestants import run_sample, warm_environment
from rdukit_bench.comparisons.model import BenchOptions, ComparisonRow, comparison
from rdukit_bench.comparisons.training_cases import compile_ours, get_case, make_case

QUESTION: Final = "training_memory"
#: Ours may need 1.05 times what eager torch needs.
BAR: Final = 1 / 1.05
#: What torch's side does: f32, or f32 parameters and states with bf16 where torch's autocast has it.
PEERS: Final = {"eager": "eager + fused AdamW", "autocast": "autocast bf16 + fused AdamW"}
CASES: Final = ("gpt2", "gpt2-bf16", "mlp-wide")
_SLOW: Final = frozenset({"gpt2", "gpt2-bf16"})


@comparison(QUESTION)
def compare(options: BenchOptions) -> Iterator[ComparisonRow]:
    """Yield one row a case: a peak is the same in every run, so one sample of each is enough."""
    for name in CASES:
        if not options.wants(name) or (options.quick and name in _SLOW and options.only is None):
            continue
        if not sys.platform.startswith("linux"):
            yield ComparisonRow(
                QUESTION, name, "rdukit", "eager", None, None, "MB", None, BAR, note="needs Linux's /proc"
            )
            continue
        case = get_case(name)
        module, batch = make_case(case)
        folder = Path(options.folder)
        pef = compile_ours(case, module, batch, folder)
        environ = warm_environment(folder)
        ours = run_sample("training_memory_sample", "ours", name, pef, environ=environ)
        for kind in ("eager", "autocast") if case.precision == "bf16" else ("eager",):
            yield make_row(name, ours, run_sample("training_memory_sample", kind, name, environ=environ), PEERS[kind])


def make_row(name: str, ours: dict[str, Any], theirs: dict[str, Any], peer: str = PEERS["eager"]) -> ComparisonRow:
    """Return the row of two samples."""
    words = "{:.0f} MB of parameters; beyond the built module: ours {:.0f}, {} {:.0f}"
    return ComparisonRow(
        question=QUESTION, case=name, ours="rdukit", peer=peer, unit="MB",
        ours_value=ours["peak"], peer_value=theirs["peak"], ratio=theirs["peak"] / ours["peak"], bar=BAR, samples=1,
        note=words.format(theirs["parameters"], ours["beyond"], peer.split(" + ", maxsplit=1)[0], theirs["beyond"]),
        details={"rdukit": ours, peer: theirs},
    )  # fmt: skip

"""How much memory does training need, against eager torch?

Peak resident memory of a training process beyond what its imports take: parameters on the host (both have them), and
for ours device memory, for torch gradients and optimizer state; activations and everything temporary for both. Ours
runs a compiled PEF, as ``run`` after ``compile`` does.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rdukit_zoo.comparisons.fresh_process import run_sample, warm_environment
from rdukit_zoo.comparisons.model import Options, Row, comparison
from rdukit_zoo.comparisons.training import compile_ours
from rdukit_zoo.comparisons.training_cases import get_case, make_case

QUESTION: Final = "training_memory"
#: Ours may need 1.05 times what eager torch needs.
BAR: Final = 1 / 1.05
CASES: Final = ("gpt2", "gpt2-bf16", "mlp-wide")
_SLOW: Final = frozenset({"gpt2", "gpt2-bf16"})


@comparison(QUESTION)
def compare(options: Options) -> Iterator[Row]:
    """One row a case: a peak is the same in every run, so one sample of each is enough."""
    for name in CASES:
        if not options.wants(name) or (options.quick and name in _SLOW and options.only is None):
            continue
        if not sys.platform.startswith("linux"):
            yield Row(QUESTION, name, "rdukit", "eager", None, None, "MB", None, BAR, note="needs Linux's /proc")
            continue
        case = get_case(name)
        module, batch = make_case(case)
        folder = Path(options.folder)
        pef = compile_ours(case, module, batch, folder)
        environ = warm_environment(folder)
        ours = run_sample("training_memory_sample", "ours", name, pef, environ=environ)
        yield make_row(name, ours, run_sample("training_memory_sample", "eager", name, environ=environ))


def make_row(name: str, ours: dict[str, Any], eager: dict[str, Any]) -> Row:
    """The row of two samples."""
    words = "{:.0f} MB of parameters; beyond the built module: ours {:.0f}, eager {:.0f}"
    return Row(
        question=QUESTION, case=name, ours="rdukit", peer="eager + fused AdamW", unit="MB",
        ours_value=ours["peak"], peer_value=eager["peak"], ratio=eager["peak"] / ours["peak"], bar=BAR, samples=1,
        note=words.format(eager["parameters"], ours["beyond"], eager["beyond"]),
        details={"rdukit": ours, "eager + fused AdamW": eager},
    )  # fmt: skip

"""Comparison: one training step of the zoo's vision and science models, as ``training_step`` times its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rdukit_bench.comparisons.contestants import Contestants
from rdukit_bench.comparisons.model import BenchOptions, ComparisonRow, comparison
from rdukit_bench.comparisons.training_cases import ZOO
from rdukit_bench.comparisons.training_step import measure

QUESTION: Final = "zoo_step"
#: The least ratio to the fastest peer.
BAR: Final = 1.1


@comparison(QUESTION)
def compare(options: BenchOptions) -> Iterator[ComparisonRow]:
    """Yield the rows of each model; ``--quick`` leaves them out, because their peers compile for minutes."""
    for name in ZOO:
        if options.wants(f"zoo-{name}") and not (options.quick and options.only is None):
            with Contestants(Path(options.folder)) as contestants:
                yield from measure(f"zoo-{name}", options, contestants, QUESTION, BAR)

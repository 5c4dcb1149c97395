"""How fast a preprocess is and when it will end, as progress of its verb."""

import time
from typing import Final

from rdukit_modelbox.context import Progress, VerbContext

#: Bytes are told in units of this many, as larger numbers might not fit the wires' integers.
KILOBYTE: Final = 1024


class ProgressReporter:
    """Tells progress of one stage that handles ``total`` bytes, or whatever else is counted."""

    def __init__(self, context: VerbContext, stage: str, total: int, unit: int = 1) -> None:
        self._unit = unit
        self._context = context
        self._stage = stage
        self._total = max(total, 1)
        self._began = time.perf_counter()
        self._skipped = 0
        self._counted = 0

    def skip(self, amount: int) -> None:
        """So much was done by an earlier attempt."""
        self._skipped += amount

    def count(self, rows: int) -> None:
        """So many more rows are done, of a stage that counts rows.

        Raises:
            Cancelled: somebody cancelled the operation.
        """
        self._counted += rows
        self.tell(self._skipped + self._counted, self._counted)

    def tell(self, done: int, rows: int) -> None:
        """So much of the stage is done, and so many rows in this attempt. Also looks for a cancellation.

        Raises:
            Cancelled: somebody cancelled the operation.
        """
        self._context.check_cancelled()
        done = min(done, self._total)
        elapsed = max(time.perf_counter() - self._began, 1e-9)
        handled = done - self._skipped
        self._context.progress(
            Progress(
                self._stage, done // self._unit, max(self._total // self._unit, 1), throughput=rows / elapsed,
                eta_s=elapsed / handled * (self._total - done) if handled else None,
            )
        )  # fmt: skip

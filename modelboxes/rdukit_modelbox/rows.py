"""Synchronous inference: a program that stays loaded and answers rows. Axes: N rows, F features, C classes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rdukit.errors import InvalidArgument
from rdukit_modelbox.box import Box
from rdukit_modelbox.checkpoints import load_checkpoint
from rdukit_modelbox.program import Program, read_shape


class RowsProgram:
    """A box's model with a checkpoint's parameters on the device."""

    def __init__(self, box: Box, pef: Path, checkpoint: Path) -> None:
        """Load both.

        Raises:
            PefError, InvalidArgument, NoResources: as the infer verb.
        """
        found = load_checkpoint(checkpoint)
        self._program = Program(read_shape(box, pef))
        self._program.load(pef)
        self._program.parameters_to_device(found.parameters)

    def close(self) -> None:
        """Tear down and release the lease."""
        self._program.close()

    def predict(self, rows: Sequence[Sequence[float]]) -> tuple[list[list[float]], list[int]]:
        """Logits [N][C] and the class [N] with the highest, for rows [N][F] as preprocess makes them.

        Raises:
            InvalidArgument: a row has another length, or a value is not a finite number.
        """
        features = self._program.shape.features
        wrong = next((i for i, row in enumerate(rows) if len(row) != features), None)
        if wrong is not None:
            raise InvalidArgument(f"row {wrong} has {len(rows[wrong])} values; legal: {features}")
        try:
            rows_NF = np.asarray(rows, np.float32).reshape(len(rows), features)
        except (ValueError, TypeError, OverflowError) as cause:
            raise InvalidArgument(f"rows must be lists of numbers: {cause}") from cause
        if not np.isfinite(rows_NF).all():
            raise InvalidArgument("a row has a value that is not finite")
        batch = self._program.shape.batch_size
        parts = [self._program.logits_of(rows_NF[at : at + batch]) for at in range(0, len(rows), batch)]
        logits_NC = np.concatenate(parts) if parts else np.zeros((0, self._program.shape.classes), np.float32)
        return logits_NC.tolist(), logits_NC.argmax(axis=1).tolist()

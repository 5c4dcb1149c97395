"""First reading of rows: check every row, count labels and names, and the training rows' figures."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument
from rdukit_modelbox.preprocessing.bad_rows import RowErrors
from rdukit_modelbox.preprocessing.columns import ColumnFigures, NameCounts, RowBlock
from rdukit_modelbox.preprocessing.digests import digests_meanwhile
from rdukit_modelbox.preprocessing.row_run import SPLITS, RowRun, within_limit


def gather_figures(run: RowRun) -> dict[str, Any]:
    """Read all rows, and digest the sources on another core meanwhile.

    Returns:
        The step's note: figures of ``columns``, names of each of ``categories``, ``labels`` with their counts and those
        of each split, ``rows`` of each split, ``sha256`` of each source, numbers of rows left out.
    Raises:
        InvalidArgument: a row cannot be used, or none can.
        Cancelled: between two blocks.
    """
    bad = RowErrors(run.request.skips_bad_rows)
    tally = _Tally(run)
    with digests_meanwhile(run.sources) as digests:
        for block, splits_N, _ in run.blocks(bad, "read"):
            tally.add(block, splits_N)
        sha256 = digests()
    if tally.figures is None or tally.rows[0] == 0:
        raise InvalidArgument(f"no row can be used for training in {', '.join(s.name for s in run.sources[:5])}")
    if bad.count or bad.dropped:
        run.context.log(f"left out {bad.count} bad rows and {bad.dropped} with missing values: {bad.examples[:3]}")
    note = {
        "columns": tally.figures.to_json(),
        "categories": [column.counts for column in tally.names],
        "labels": tally.labels.counts,
        "class_counts": {kind: split.counts for kind, split in zip(SPLITS, tally.by_split, strict=True)},
        "rows": tally.rows,
        "bad_rows": bad.count,
        "bad_examples": bad.examples,
        "dropped_rows": bad.dropped,
        "sha256": sha256,
    }
    run.work.finish("figures", note)
    return note


class _Tally:
    """What is counted while the rows go by."""

    def __init__(self, run: RowRun) -> None:
        self._limit = run.request.limit
        #: Of the numeric columns; None before the first block.
        self.figures: ColumnFigures | None = None
        categorical = run.layout.categorical if run.layout else ()
        self.names = [NameCounts(f"column {name!r}") for name in categorical]
        self.labels = NameCounts(f"the label {run.request.label_column!r}")
        self.by_split = [NameCounts("a split's label") for _ in SPLITS]
        #: Of each split.
        self.rows = [0, 0]

    def add(self, block: RowBlock, splits_N: NDArray[np.int64]) -> None:
        """Count a block.

        Raises:
            InvalidArgument: its rows are of another width, or there are too many names.
        """
        width = block.numbers_NC.shape[1]
        if self.figures is None:
            self.figures = ColumnFigures.of(width)
        if width != len(self.figures.count_C):
            raise InvalidArgument(f"rows have {len(self.figures.count_C)} and {width} numbers; legal: one width")
        kept_N = within_limit(self._limit, self.rows, splits_N)
        self.figures.add(block.numbers_NC[kept_N & (splits_N == 0)])
        for column, values in zip(self.names, block.names_KN, strict=True):
            column.add([value for value, kept in zip(values, kept_N.tolist(), strict=True) if kept])
        for label, split, kept in zip(block.labels_N, splits_N.tolist(), kept_N.tolist(), strict=True):
            if kept:
                self.by_split[split].counts[label] = self.by_split[split].counts.get(label, 0) + 1
        self.labels.add([label for label, kept in zip(block.labels_N, kept_N.tolist(), strict=True) if kept])

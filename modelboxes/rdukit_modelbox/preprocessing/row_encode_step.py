"""Second reading of rows: each as numbers, spread over buckets on the disk."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rdukit.errors import InvalidArgument
from rdukit_modelbox.preprocessing.bad_rows import RowErrors
from rdukit_modelbox.preprocessing.columns import Encoder, RowBlock, classes_of
from rdukit_modelbox.preprocessing.row_run import SPLITS, RowRun, within_limit
from rdukit_modelbox.preprocessing.row_spill import BUCKET_BYTES, RowSpill, row_type


def encode_rows(run: RowRun, encoder: Encoder, found: Mapping[str, Any]) -> int:
    """Put the encoded rows on the disk; ``found`` is the first reading's note. Returns the buckets of each split.

    Raises:
        InvalidArgument: the input changed between the readings.
        Cancelled: between two blocks.
    """
    largest = max(found["rows"]) * row_type(encoder.features).itemsize
    buckets = 1 if run.request.seed is None else max(1, -(-largest // BUCKET_BYTES))
    if run.work.find("rows") is None:
        classes = classes_of(list(found["labels"]))
        spill = RowSpill(run.work.fresh("rows"), len(SPLITS), buckets, encoder.features)
        counts = [0, 0]
        for block, splits_N, random_N in run.blocks(RowErrors(skips=True), "encode"):
            kept_N = within_limit(run.request.limit, counts, splits_N)
            labels_N = np.array([classes.get(label, -1) for label in block.labels_N], np.int64)[kept_N]
            if not kept_N.all():
                chosen = tuple([v for v, kept in zip(c, kept_N.tolist(), strict=True) if kept] for c in block.names_KN)
                block = RowBlock(block.numbers_NC[kept_N], chosen, [""] * len(labels_N), block.consumed)
            spill.add(encoder.encode(block), labels_N, splits_N[kept_N], random_N[kept_N] % buckets)
        spill.flush()
        if counts != found["rows"]:
            raise InvalidArgument("the input changed while it was read; preprocess again")
        run.work.finish("rows", {"buckets": buckets})
    return buckets

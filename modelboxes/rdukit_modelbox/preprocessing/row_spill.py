"""Encoded rows on the disk between reading and the final files, by split and bucket.

Axes: N rows, F features.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rdukit_modelbox.preprocessing.columns import Floats

Labels = NDArray[np.int64]
WAITING_BYTES: Final = 32 << 20
BUCKET_BYTES: Final = 32 << 20


class RowSpill:
    """Collects rows of features and label by split and bucket."""

    def __init__(self, folder: Path, splits: int, buckets: int, features: int) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._buckets = buckets
        self._type = row_type(features)
        self._waiting: list[list[NDArray[np.void]]] = [[] for _ in range(splits * buckets)]
        self._waiting_bytes = 0

    def add(self, features_NF: Floats, labels_N: Labels, splits_N: Labels, buckets_N: Labels) -> None:
        """Put each row into its split's bucket."""
        rows = np.empty(len(labels_N), self._type)
        rows["features"] = features_NF
        rows["label"] = labels_N
        places_N = splits_N * self._buckets + buckets_N
        for place in np.unique(places_N).tolist():
            self._waiting[place].append(rows[places_N == place])
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes > WAITING_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        for place, parts in enumerate(self._waiting):
            if parts:
                with _path(self._folder, *divmod(place, self._buckets)).open("ab") as stream:
                    for part in parts:
                        part.tofile(stream)
                parts.clear()
        self._waiting_bytes = 0


def read_rows(
    folder: Path, split: int, buckets: int, features: int, seed: int | None
) -> Iterator[tuple[Floats, Labels]]:
    """The rows of a split in pieces: shuffled by ``seed``, or as they came."""
    kind = row_type(features)
    for bucket in range(buckets):
        path = _path(folder, split, bucket)
        if not path.exists():
            continue
        if seed is not None:
            rows = np.fromfile(path, kind)
            rows = rows[np.random.default_rng([seed, split, bucket]).permutation(len(rows))]
            yield np.ascontiguousarray(rows["features"]), np.ascontiguousarray(rows["label"])
            continue
        with path.open("rb") as stream:
            while len(rows := np.fromfile(stream, kind, max(1, BUCKET_BYTES // kind.itemsize))):
                yield np.ascontiguousarray(rows["features"]), np.ascontiguousarray(rows["label"])


def row_type(features: int) -> np.dtype[np.void]:
    """One row on the disk."""
    return np.dtype([("features", np.float32, (features,)), ("label", np.int64)])


def _path(folder: Path, split: int, bucket: int) -> Path:
    return folder / f"{split}.{bucket}.rows"

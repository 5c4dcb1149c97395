"""An attempt to preprocess rows: sources, splits, and encoded rows on disk by split and bucket.

Axes: N rows of a block, F features.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument
from rdukit_modelbox.preprocessing.array_rows import read_hdf5, read_images, read_npz
from rdukit_modelbox.preprocessing.columns import Floats, RowBlock, RowPreprocessRequest
from rdukit_modelbox.preprocessing.external_shuffle import Assignment
from rdukit_modelbox.preprocessing.progress import KILOBYTE, ProgressReporter, WorkFolder
from rdukit_modelbox.preprocessing.sources import Format, RowErrors, SourceFile
from rdukit_modelbox.preprocessing.table_rows import check_other_tables, find_layout, read_table
from rdukit_modelbox.verbs.context import VerbContext
from rdukit_serving.raw_inputs.layout import TableLayout

TABLES: Final = (Format.CSV, Format.JSONL, Format.PARQUET)
#: Splits by number; the last one exists if a column or files' names say so.
SPLITS: Final = ("train", "test", "dev")


@dataclass(frozen=True, slots=True)
class RowRun:
    """A run of preprocess on rows: its request, and the shared state of its steps."""

    context: VerbContext
    request: RowPreprocessRequest
    sources: Sequence[SourceFile]
    #: Split named by each source's name, if names have one.
    given: Mapping[str, int] | None
    #: Of tables.
    layout: TableLayout | None
    work: WorkFolder

    @classmethod
    def begin(
        cls, context: VerbContext, request: RowPreprocessRequest, sources: Sequence[SourceFile], work: WorkFolder
    ) -> "RowRun":
        """Find the layout, which is that of the first file.

        Raises:
            InvalidArgument: it has no row, or not the columns that the request names, or another file has others.
        """
        layout = find_layout(sources[0], request) if sources[0].format in TABLES else None
        if request.split_column and layout is None:
            raise InvalidArgument(
                f"split_column is {request.split_column!r}, but {sources[0].name} is not a table; expected .csv, .tsv, "
                ".jsonl or .parquet, or files whose names begin with train, dev and test"
            )
        if layout is not None:
            check_other_tables(sources, layout, request)
        return cls(context, request, sources, given_splits(sources), layout, work)

    def blocks(self, bad: RowErrors, stage: str) -> Iterator[tuple[RowBlock, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield each block, and its rows' splits and random numbers for buckets, the same in each reading."""
        pace = ProgressReporter(self.context, stage, sum(source.bytes for source in self.sources), KILOBYTE)
        ratio = self.request.test_ratio
        is_given = self.given is not None or self.request.split_column
        shares = (1.0,) if is_given or ratio == 0 else (1 - ratio, ratio)
        assignment = Assignment(shares, 1 << 30, self.request.seed)
        rows = before = 0
        for names, size, blocks in self._readers(bad):
            for block in blocks:
                splits_N, random_N = assignment.take(len(block))
                if self.given is not None:
                    splits_N = np.full(len(block), self.given[names[0]], np.int64)
                if block.splits_N is not None:
                    splits_N = block.splits_N
                rows += len(block)
                yield block, splits_N, random_N
                pace.tell(before + block.consumed, rows)
            before += size

    def _readers(self, bad: RowErrors) -> Iterator[tuple[list[str], int, Iterator[RowBlock]]]:
        if self.sources[0].format == Format.IMAGES:
            for split in range(len(SPLITS)):
                chosen = [s for s in self.sources if self.given is None or self.given[s.name] == split]
                if chosen and (split == 0 or self.given is not None):
                    names = [source.name for source in chosen]
                    yield names, sum(source.bytes for source in chosen), read_images(chosen, self.request, bad)
            return
        for source in self.sources:
            if self.layout is not None:
                yield [source.name], source.bytes, read_table(source, self.layout, self.request, bad)
            elif source.format == Format.NPZ:
                yield [source.name], source.bytes, read_npz(source, self.request, bad)
            else:
                yield [source.name], source.bytes, read_hdf5(source, self.request, bad)


def within_limit(limit: int, counts: list[int], splits_N: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the rows that are kept so that no split exceeds ``limit``, and count them in ``counts``."""
    kept_N = np.ones(len(splits_N), np.bool_)
    for split in range(len(counts)):
        is_mine_N = splits_N == split
        if limit:
            kept_N &= ~is_mine_N | (np.cumsum(is_mine_N) + counts[split] <= limit)
        counts[split] += int((is_mine_N & kept_N).sum())
    return kept_N


def given_splits(sources: Sequence[SourceFile]) -> dict[str, int] | None:
    """Return the split of each file from its first folder or its name. None unless each file has a split, and both
    train and test occur.
    """
    found: dict[str, int] = {}
    for source in sources:
        kind = _split_of(source)
        if kind is None:
            return None
        found[source.name] = kind
    return found if set(found.values()) >= {0, 1} else None


def picture_splits(sources: Sequence[SourceFile]) -> dict[str, int] | None:
    """Return the split of each file of pictures, as ``given_splits``.

    A class folder is never a split, whatever its name. Where names say train and dev alone, dev is the test split.
    """
    if any(source.format is Format.IMAGES and len(PurePosixPath(source.name).parts) < 3 for source in sources):
        return None
    found = {source.name: _split_of(source) for source in sources}
    if set(found.values()) == {0, 2}:
        return {name: 1 if kind else 0 for name, kind in found.items()}
    return given_splits(sources)


def _split_of(source: SourceFile) -> int | None:
    """Return the split that a file's first folder or name says; None: it says none."""
    path = PurePosixPath(source.name)
    first = path.parts[0].lower() if len(path.parts) > 1 else path.name.lower()
    first = "dev" if first.startswith("valid") or first.split(".")[0] == "val" else first
    return next((split for split, name in enumerate(SPLITS) if first.startswith(name)), None)


#: Classes, or numbers where the label is one.
Labels = NDArray[np.int64] | NDArray[np.float32]
Places = NDArray[np.int64]
WAITING_BYTES: Final = 32 << 20
BUCKET_BYTES: Final = 32 << 20


class RowSpill:
    """Collects rows of features and label by split and bucket."""

    def __init__(self, folder: Path, splits: int, buckets: int, features: int, has_classes: bool = True) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._buckets = buckets
        self._type = row_type(features, has_classes)
        self._waiting: list[list[NDArray[np.void]]] = [[] for _ in range(splits * buckets)]
        self._waiting_bytes = 0

    def add(self, features_NF: Floats, labels_N: Labels, splits_N: Places, buckets_N: Places) -> None:
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
    folder: Path, split: int, buckets: int, features: int, seed: int | None, has_classes: bool = True
) -> Iterator[tuple[Floats, Labels]]:
    """Return the rows of a split in pieces: shuffled by ``seed``, or as they came."""
    kind = row_type(features, has_classes)
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


def row_type(features: int, has_classes: bool = True) -> np.dtype[np.void]:
    """Return the type of one row on the disk."""
    return np.dtype([("features", np.float32, (features,)), ("label", np.int64 if has_classes else np.float32)])


def _path(folder: Path, split: int, bucket: int) -> Path:
    return folder / f"{split}.{bucket}.rows"

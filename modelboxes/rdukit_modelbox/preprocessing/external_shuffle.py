"""External shuffle: the output file and bucket of each record, and records on disk by bucket.

The places depend on the record's index and the seed alone. Axes: N records, F output files.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import IllegalValue

#: Least number of records whose places are drawn together.
LEAST_WINDOW: Final = 4096
GIGABYTE: Final = 1 << 30
MEGABYTE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Split:
    """An output file: ``name`` is ``train_1_of_4``."""

    kind: str
    number: int
    of: int
    #: Share of all records.
    share: float

    @property
    def name(self) -> str:
        """Name without ending."""
        return f"{self.kind}_{self.number}_of_{self.of}"


def plan_splits(total_bytes: int, training: int, dev_ratio: float, test_ratio: float) -> tuple[Split, ...]:
    """Return the output files: training, dev and test, with the shares that the ratios ask for.

    Args:
        training: number of training files; 0 chooses by the input's size.
    Raises:
        IllegalValue: the ratios leave nothing to train on.
    Source:
        generative_data_prep, README "Flags": 32 files below 10 GB, 128 below 100 GB, else 256; each dev or test file is
        about as large as a training file. Ours: inputs below 32 MB get a file a megabyte, and shares are exact where
        theirs are rounded to whole files.
    """
    if dev_ratio + test_ratio >= 1:
        raise IllegalValue(
            f"dev_ratio {dev_ratio} and test_ratio {test_ratio} leave no training data; expected a sum below 1"
        )
    if training == 0:
        by_size = 32 if total_bytes < 10 * GIGABYTE else 128 if total_bytes < 100 * GIGABYTE else 256
        training = min(by_size, max(1, total_bytes // MEGABYTE))
    left = 1 - dev_ratio - test_ratio
    counts = {"train": training}
    shares = {"train": left, "dev": dev_ratio, "test": test_ratio}
    for kind in ("dev", "test"):
        counts[kind] = max(1, round(training * shares[kind] / left)) if shares[kind] > 0 else 0
    return tuple(
        Split(kind, number, counts[kind], shares[kind] / counts[kind])
        for kind in ("train", "dev", "test")
        for number in range(1, counts[kind] + 1)
    )


class Assignment:
    """Gives each record, in the input's order, its output file and bucket."""

    def __init__(self, shares: tuple[float, ...], buckets: int, seed: int | None) -> None:
        """``seed`` None keeps the order: file after file, in one bucket."""
        self._period = len(shares)
        self._length = self._period * max(8, -(-LEAST_WINDOW // self._period))
        self._pattern_W = interleave(shares, self._length)
        self._buckets = 1 if seed is None else buckets
        self._seed = seed
        self._at = 0
        self._window = -1
        self._files_W = self._buckets_W = np.zeros(0, np.int64)

    def take(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Files [N] and buckets [N] of the next ``count`` records."""
        files, buckets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        while count:
            window, offset = divmod(self._at, self._length)
            if window != self._window:
                self._window = window
                self._files_W, self._buckets_W = self._draw(window)
            step = min(count, self._length - offset)
            files.append(self._files_W[offset : offset + step])
            buckets.append(self._buckets_W[offset : offset + step])
            self._at += step
            count -= step
        return np.concatenate(files), np.concatenate(buckets)

    def _draw(self, window: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self._seed is None:
            return self._pattern_W, np.zeros(self._length, np.int64)
        random = np.random.default_rng([self._seed, window])
        # Only neighbours change places, so every file gets its share of any stretch of the input.
        group_W = np.arange(self._length) // self._period
        order_W = np.lexsort((random.random(self._length), group_W))
        return self._pattern_W[order_W], random.integers(0, self._buckets, self._length)


def interleave(shares: tuple[float, ...], length: int) -> NDArray[np.int64]:
    """Return the file of each of ``length`` records [W], each file's spread evenly; equal shares give 0, 1, 2, …
    repeated.
    """
    if len(set(shares)) == 1:
        return np.arange(length) % len(shares)
    exact = np.array(shares) / sum(shares) * length
    counts = np.floor(exact).astype(np.int64)
    for index in np.argsort(counts - exact, kind="stable")[: length - int(counts.sum())]:
        counts[index] += 1
    files_W = np.repeat(np.arange(len(shares)), counts)
    places_W = np.concatenate([(np.arange(count) + 0.5) / max(count, 1) for count in counts])
    return files_W[np.lexsort((files_W, places_W))]


#: Bytes that wait for being written.
WAITING_BYTES: Final = 16 << 20
#: A bucket is shuffled in memory; about this large.
BUCKET_BYTES: Final = 16 << 20


class Spill:
    """Collects records without line ends by output file and bucket."""

    def __init__(self, folder: Path, files: int, buckets: int) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._buckets = buckets
        self._waiting: list[list[bytes]] = [[] for _ in range(files * buckets)]
        self._waiting_bytes = 0
        #: Records of each output file.
        self.counts_F: NDArray[np.int64] = np.zeros(files, np.int64)

    def add(self, records: Sequence[bytes], files_N: NDArray[np.int64], buckets_N: NDArray[np.int64]) -> None:
        """Put each record into its output file's bucket."""
        self.counts_F += np.bincount(files_N, minlength=len(self.counts_F))
        for record, place in zip(records, (files_N * self._buckets + buckets_N).tolist(), strict=True):
            self._waiting[place].append(record)
        self._waiting_bytes += sum(map(len, records))
        if self._waiting_bytes > WAITING_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        for place, records in enumerate(self._waiting):
            if records:
                with bucket_path(self._folder, *divmod(place, self._buckets)).open("ab") as stream:
                    stream.write(b"\n".join(records))
                    stream.write(b"\n")
                records.clear()
        self._waiting_bytes = 0


def bucket_path(folder: Path, file: int, bucket: int) -> Path:
    """Return the path of a bucket."""
    return folder / f"{file}.{bucket}.jsonl"


def read_spilled(
    folder: Path, file: int, buckets: int, seed: int | None, batch_bytes: int, batch_records: int
) -> Iterator[list[bytes]]:
    """Return the records of one output file in batches: shuffled by ``seed``, or as they came."""
    for bucket in range(buckets):
        path = bucket_path(folder, file, bucket)
        if not path.exists():
            continue
        if seed is None:
            with path.open("rb") as stream:
                while lines := stream.readlines(batch_bytes):
                    for start in range(0, len(lines), batch_records):
                        yield lines[start : start + batch_records]
            continue
        lines = path.read_bytes().split(b"\n")
        lines.pop()
        order = np.random.default_rng([seed, file, bucket]).permutation(len(lines)).tolist()
        batch: list[bytes] = []
        held = 0
        for index in order:
            batch.append(lines[index])
            held += len(lines[index])
            if held >= batch_bytes or len(batch) >= batch_records:
                yield batch
                batch, held = [], 0
        if batch:
            yield batch

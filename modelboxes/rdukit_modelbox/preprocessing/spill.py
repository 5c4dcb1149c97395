"""Records on the disk between reading and tokenizing: a file for each bucket of each output file."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

#: Bytes that wait for being written.
WAITING_BYTES: Final = 16 << 20
#: A bucket is shuffled in memory; about this large.
BUCKET_BYTES: Final = 16 << 20


class Spill:
    """Collects records, none of which holds a line end, by output file and bucket."""

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
    """Where a bucket is."""
    return folder / f"{file}.{bucket}.jsonl"


def read_spilled(
    folder: Path, file: int, buckets: int, seed: int | None, batch_bytes: int, batch_records: int
) -> Iterator[list[bytes]]:
    """The records of one output file in batches: shuffled by ``seed``, or as they came."""
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

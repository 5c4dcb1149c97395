"""The data set of sequences that preprocess writes, as training and evaluation read it.

Axes: R rows of a split, B rows of a batch, L tokens of a row.
"""

import bisect
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import h5py  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rdukit.errors import InvalidArgument, NotFound
from rdukit.files.atomic import sha256_of_file
from rdukit_modelbox.preprocessing.packing import Ints
from rdukit_modelbox.preprocessing.token_manifest import FORMAT, KIND, MANIFEST
from rdukit_modelbox.preprocessing.token_shards import IDS, TYPES
from rdukit_modelbox.preprocessing.tokenizer import FILE_NAME

#: A split of at most this many bytes is held in memory; a larger one is read from its files.
HELD_BYTES: Final = 128 << 20


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Some sequences: ids and types [B, L] int32. Types: 0 prompt, 1 completion, 2 padding, 3 end of an article."""

    input_ids_BL: Ints
    token_type_ids_BL: Ints


@dataclass(frozen=True, slots=True)
class TokenDataset:
    """A checked data set of sequences; ``close`` it when done."""

    folder: Path
    max_seq_length: int
    #: Every token id is below this.
    vocab_size: int
    end_of_text_id: int
    pad_id: int
    #: Stands for all sequences and the tokenizer.
    digest: str
    #: What ``manifest.json`` says.
    manifest: dict[str, Any]
    splits: dict[str, "TokenSplit"]

    def rows(self, split: str) -> int:
        """Sequences of ``train`` or ``dev``; 0 if there is no such split."""
        return len(self.splits[split]) if split in self.splits else 0

    def steps_per_epoch(self, split: str, batch_size: int) -> int:
        """Whole batches of a split."""
        return self.rows(split) // batch_size

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the sequences."""
        return Tokenizer.from_file(str(self.folder / "tokenizer" / FILE_NAME))

    def batches(
        self, split: str, batch_size: int, seed: int | None, epoch: int = 0, start: int = 0
    ) -> Iterator[TokenRows]:
        """Whole batches of one epoch; the rest that fills none is left out of that epoch.

        Args:
            seed: orders the rows together with ``epoch``; None keeps the stored order.
            start: batches to leave out at the beginning, to go on where a run stopped.
        Raises:
            InvalidArgument: the split has no whole batch.
        """
        count = self.rows(split)
        if count < batch_size:
            raise InvalidArgument(f"the data set has {count} sequences in {split}, a batch is {batch_size}")
        order_R = np.arange(count) if seed is None else np.random.default_rng([seed, epoch]).permutation(count)
        for index in range(start, count // batch_size):
            yield self.splits[split].take(order_R[index * batch_size : (index + 1) * batch_size])

    def close(self) -> None:
        """Close the files."""
        for split in self.splits.values():
            split.close()


class TokenSplit:
    """The sequences of one split, over all of its files."""

    def __init__(self, folder: Path, files: list[dict[str, Any]], length: int) -> None:
        self._files = []
        self._starts: list[int] = []
        self._rows = 0
        for entry in files:
            self._files.append(_open(folder / str(entry["name"]), int(entry["rows"]), length))
            self._starts.append(self._rows)
            self._rows += int(entry["rows"])
        self._held: TokenRows | None = None
        if 0 < self._rows * length * 8 <= HELD_BYTES:
            parts = [(file[IDS][:], file[TYPES][:]) for file in self._files]
            self._held = TokenRows(np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]))
            self.close()

    def __len__(self) -> int:
        return self._rows

    def take(self, rows_B: NDArray[np.int64]) -> TokenRows:
        """The rows with these numbers, in their order."""
        if self._held is not None:
            return TokenRows(self._held.input_ids_BL[rows_B], self._held.token_type_ids_BL[rows_B])
        ids, types = [], []
        for row in rows_B.tolist():
            index = bisect.bisect_right(self._starts, row) - 1
            file, at = self._files[index], row - self._starts[index]
            ids.append(file[IDS][at])
            types.append(file[TYPES][at])
        return TokenRows(np.stack(ids), np.stack(types))

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()
        self._files = []


def load_token_dataset(folder: Path, *, verify: bool = False) -> TokenDataset:
    """Open and check a data set of sequences.

    Args:
        verify: also compare each file's SHA-256, which reads all of it.
    Raises:
        NotFound: the folder has no manifest, so no finished preprocess wrote it.
        InvalidArgument: it is another kind of data set, or damaged.
    """
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError as cause:
        raise NotFound(f"{folder} has no {MANIFEST}; it is not a data set made by preprocess") from cause
    except ValueError as cause:
        raise InvalidArgument(f"{path} is not readable: {cause}; preprocess again") from cause
    if not isinstance(manifest, dict) or (manifest.get("kind"), manifest.get("format")) != (KIND, FORMAT):
        raise InvalidArgument(f"{path} is not of kind {KIND}, format {FORMAT}; preprocess again with a text box")
    try:
        length, tokenizer = int(manifest["max_seq_length"]), manifest["tokenizer"]
        files = {kind: list(split["files"]) for kind, split in manifest["splits"].items() if kind in {"train", "dev"}}
        _check_files(folder, [entry for entries in files.values() for entry in entries], verify)
        return TokenDataset(
            folder, length, int(tokenizer["ids"]), int(tokenizer["end_of_text_id"]), int(tokenizer["pad_id"]),
            str(manifest["digest"]), manifest,
            {kind: TokenSplit(folder, entries, length) for kind, entries in files.items()},
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError) as cause:
        raise InvalidArgument(f"{path} lacks {cause}; preprocess again") from cause


def _check_files(folder: Path, files: list[dict[str, Any]], verify: bool) -> None:
    for entry in files:
        path = folder / str(entry["name"])
        if path.parent != folder or not path.is_file() or path.stat().st_size != entry["bytes"]:
            raise InvalidArgument(f"{path} is missing or does not match {MANIFEST}; preprocess again")
        if verify and sha256_of_file(path) != entry["sha256"]:
            raise InvalidArgument(f"{path} does not match its SHA-256 in {MANIFEST}; preprocess again")


def _open(path: Path, rows: int, length: int) -> h5py.File:
    try:
        file = h5py.File(path, "r")
    except OSError as cause:
        raise InvalidArgument(f"{path} is not readable: {cause}; preprocess again") from cause
    for name in (IDS, TYPES):
        data = file.get(name)
        if data is None or data.shape != (rows, length) or data.dtype != np.int32:
            file.close()
            raise InvalidArgument(f"{path}: {name} must be int32 [{rows}, {length}]; preprocess again")
    return file

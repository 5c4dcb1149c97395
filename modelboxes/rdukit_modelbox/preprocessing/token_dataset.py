"""The data set of sequences: HDF5 files with even shares of the rows, metadata, checksums and a manifest.

Axes: R rows of a split, B rows of a batch, L tokens of a row.
"""

import bisect
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import h5py  # type: ignore[import-untyped]
import numpy as np
import yaml
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rdukit.errors import InvalidArgument, NotFound
from rdukit.files.atomic import atomic_target, sha256_of, sha256_of_file, write_atomic
from rdukit_modelbox.preprocessing.packing import METADATA_NAMES, Ints, PackedRows, TokenStatistics
from rdukit_modelbox.preprocessing.tokenizer import FILE_NAME, TextTokenizer

#: A split of at most this many bytes is held in memory; a larger one is read from its files.
HELD_BYTES: Final = 128 << 20


@dataclass(frozen=True, slots=True)
class TokenRows:
    """A batch of sequences: ids and types [B, L] int32. Types: 0 prompt, 1 completion, 2 padding, 3 article's end."""

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
    #: Content of ``manifest.json``.
    manifest: dict[str, Any]
    splits: dict[str, "TokenSplit"]

    def rows(self, split: str) -> int:
        """Sequences of ``train`` or ``dev``; 0 if there is no such split."""
        return len(self.splits[split]) if split in self.splits else 0

    def steps_per_epoch(self, split: str, batch_size: int) -> int:
        """Return the number of full batches of a split."""
        return self.rows(split) // batch_size

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer that made the sequences."""
        return Tokenizer.from_file(str(self.folder / "tokenizer" / FILE_NAME))

    def batches(
        self, split: str, batch_size: int, seed: int | None, epoch: int = 0, start: int = 0,
        rows_R: NDArray[np.int64] | None = None,
    ) -> Iterator[TokenRows]:  # fmt: skip
        """Yield the full batches of one epoch; the remaining rows are left out of that epoch.

        Args:
            seed: orders the rows together with ``epoch``; None keeps the stored order.
            start: batches to skip, so that a stopped run continues.
            rows_R: numbers of the rows to take; None: all.
        Raises:
            InvalidArgument: the split has no whole batch.
        """
        count = self.rows(split) if rows_R is None else len(rows_R)
        if count < batch_size:
            raise InvalidArgument(f"the data set has {count} sequences in {split}, fewer than a batch of {batch_size}")
        order_R = np.arange(count) if seed is None else np.random.default_rng([seed, epoch]).permutation(count)
        order_R = order_R if rows_R is None else rows_R[order_R]
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
        #: All rows, of a small split.
        self.held: TokenRows | None = None
        if 0 < self._rows * length * 8 <= HELD_BYTES:
            parts = [(file[IDS][:], file[TYPES][:]) for file in self._files]
            self.held = TokenRows(np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]))
            self.close()

    def __len__(self) -> int:
        return self._rows

    def take(self, rows_B: NDArray[np.int64]) -> TokenRows:
        """Return the rows with these numbers, in their order."""
        if self.held is not None:
            return TokenRows(self.held.input_ids_BL[rows_B], self.held.token_type_ids_BL[rows_B])
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
        InvalidArgument: the data set is of another kind, or damaged.
    """
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError as cause:
        raise NotFound(f"{folder} has no {MANIFEST}; it is not a data set of preprocess") from cause
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
        raise InvalidArgument(f"{path} is missing or damaged; preprocess again") from cause
    for name in (IDS, TYPES):
        data = file.get(name)
        if data is None or data.shape != (rows, length) or data.dtype != np.int32:
            file.close()
            raise InvalidArgument(f"{path}: {name} must be int32 [{rows}, {length}]; preprocess again")
    return file


IDS: Final = "input_ids"
TYPES: Final = "token_type_ids"
#: About the bytes of a chunk, the unit of reading: small, so that rows in any order are cheap to read.
CHUNK_BYTES: Final = 64 << 10
#: Rows are written in pieces of about this size.
WAITING_BYTES: Final = 1 << 20


class TokenFile:
    """Writes one HDF5 file with ``input_ids`` and ``token_type_ids`` [R, L] int32.

    Source: generative_data_prep: names, type, gzip and a resizable first axis are theirs; chunks and compression level
    are ours, for speed.
    """

    def __init__(self, path: Path, length: int) -> None:
        self._length = length
        self._chunk_rows = max(1, CHUNK_BYTES // (4 * length))
        self._file = h5py.File(path, "w")
        for name in (IDS, TYPES):
            self._file.create_dataset(
                name, (0, length), np.int32, maxshape=(None, length), chunks=(self._chunk_rows, length),
                compression="gzip", compression_opts=1, shuffle=True,
            )  # fmt: skip
        self._waiting: list[PackedRows] = []
        self._waiting_rows = 0
        self.rows = 0

    def __enter__(self) -> "TokenFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._write(whole_chunks=False)
        self._file.close()

    def add(self, rows: PackedRows) -> None:
        """Append rows; they may wait in memory for a while."""
        if len(rows):
            self._waiting.append(rows)
            self._waiting_rows += len(rows)
            if self._waiting_rows * self._length * 4 >= WAITING_BYTES:
                self._write(whole_chunks=True)

    def _write(self, *, whole_chunks: bool) -> None:
        count = self._waiting_rows // self._chunk_rows * self._chunk_rows if whole_chunks else self._waiting_rows
        if not count:
            return
        ids_RL = np.concatenate([rows.ids_RL for rows in self._waiting])
        types_RL = np.concatenate([rows.types_RL for rows in self._waiting])
        for name, values_RL in ((IDS, ids_RL), (TYPES, types_RL)):
            data = self._file[name]
            data.resize(self.rows + count, axis=0)
            data[self.rows :] = values_RL[:count]
        self.rows += count
        rest = PackedRows(ids_RL[count:].copy(), types_RL[count:].copy())
        self._waiting = [rest] if len(rest) else []
        self._waiting_rows = len(rest)


@dataclass(frozen=True, slots=True)
class Move:
    """Rows ``start`` to ``stop`` of file ``donor`` go to the end of file ``receiver``."""

    donor: int
    start: int
    stop: int
    receiver: int


def plan_balance(rows: Sequence[int]) -> tuple[list[int], list[Move]]:
    """Return the number of rows of each balanced file, which differ by at most one, and the moves from file ends. Pure.
    Pure.

    Source: generative_data_prep balances its files the same way, so that each worker sees all of its rows once.
    """
    least, remainder = divmod(sum(rows), len(rows))
    # The largest files keep the surplus rows, so that few rows move.
    order = sorted(range(len(rows)), key=lambda index: (-rows[index], index))
    targets = [least] * len(rows)
    for index in order[:remainder]:
        targets[index] += 1
    donors = [(index, rows[index]) for index in range(len(rows)) if rows[index] > targets[index]]
    moves = []
    for receiver in range(len(rows)):
        missing = targets[receiver] - rows[receiver]
        while missing > 0:
            donor, stop = donors[-1]
            start = max(targets[donor], stop - missing)
            moves.append(Move(donor, start, stop, receiver))
            missing -= stop - start
            donors.pop()
            if start > targets[donor]:
                donors.append((donor, start))
    return targets, moves


def write_balanced(sources: Sequence[Path], targets: Sequence[Path], rows: Sequence[int]) -> list[int]:
    """Write each source, evened out, to its target; the sources stay as they are. Returns the targets' rows."""
    counts, moves = plan_balance(rows)
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        mine = [move for move in moves if move.receiver == index]
        with atomic_target(target) as temporary:
            if not mine and rows[index] == counts[index]:
                os.link(source, temporary)
                continue
            shutil.copyfile(source, temporary)
            with h5py.File(temporary, "r+") as file:
                for name in (IDS, TYPES):
                    _resize(file[name], sources, name, mine, min(rows[index], counts[index]), counts[index])
    return counts


def _resize(data: h5py.Dataset, sources: Sequence[Path], name: str, moves: list[Move], at: int, count: int) -> None:
    data.resize(count, axis=0)
    step = max(1, WAITING_BYTES // (4 * data.shape[1]))
    for move in moves:
        with h5py.File(sources[move.donor], "r") as donor:
            for start in range(move.start, move.stop, step):
                stop = min(start + step, move.stop)
                data[at : at + stop - start] = donor[name][start:stop]
                at += stop - start


MANIFEST: Final = "manifest.json"
METADATA: Final = "metadata.yaml"
CHECKSUMS: Final = "sha256/files_metadata.json"
FORMAT: Final = 1
KIND: Final = "tokens"


def metadata_of(
    length: int,
    tokenizer: TextTokenizer,
    rows: Mapping[str, Sequence[int]],
    test_files: int,
    statistics: Mapping[str, TokenStatistics],
) -> dict[str, object]:
    """Return the content of ``metadata.yaml``.

    Args:
        rows: sequences of each file of ``train`` and ``dev``.
    Source: generative_data_prep, README "Metadata Output File", and its ``pipeline``: the sums are prefixed with the
        split's name. ``vocab_size`` leaves out added tokens; ``tokenizer_model_type`` is a type of ``transformers``
        there and of ``tokenizers`` here.
    """
    named: dict[str, object] = {
        "max_seq_length": length,
        "token_type_ids": True,
        "vocab_size": tokenizer.tokenizer.get_vocab_size(with_added_tokens=False),
        "tokenizer_model_type": str(type(tokenizer.tokenizer.model)),
        "number_of_training_files": len(rows["train"]),
        "number_of_dev_files": len(rows["dev"]),
        "number_of_test_files": test_files,
        "max_batch_size_train": min(rows["train"]),
        "max_batch_size_dev": min(rows["dev"]) if rows["dev"] else None,
    }
    for kind, sums in statistics.items():
        named |= {f"{kind}_{name}": getattr(sums, name) for name in METADATA_NAMES}
    return named


def write_tokenizer(folder: Path, tokenizer: TextTokenizer) -> None:
    """Folder of the tokenizer and the files that lay next to it."""
    write_atomic(folder / "tokenizer" / FILE_NAME, tokenizer.json)
    for name, data in tokenizer.companions:
        write_atomic(folder / "tokenizer" / name, data)


def write_descriptions(folder: Path, metadata: Mapping[str, object], manifest: Mapping[str, Any]) -> None:
    """Metadata, then checksums of all files, then the manifest, which makes the folder a data set.

    Source: generative_data_prep: ``sha256/files_metadata.json`` names a file in a folder ``folder_file``.
    """
    write_atomic(folder / METADATA, yaml.safe_dump(dict(metadata), default_flow_style=False).encode())
    final = json.dumps(manifest, indent=2, sort_keys=True).encode() + b"\n"
    entries = [entry for split in manifest["splits"].values() for entry in split["files"]]
    known = {str(entry["name"]): str(entry["sha256"]) for entry in entries}
    sums: dict[str, object] = {MANIFEST: {"sha256": sha256_of(final), "size": len(final), "modified_time": 0.0}}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in {MANIFEST, CHECKSUMS}:
            state = path.stat()
            digest = known.get(name) or sha256_of_file(path)
            sums[name.replace("/", "_")] = {"sha256": digest, "size": state.st_size, "modified_time": state.st_mtime}
    write_atomic(folder / CHECKSUMS, json.dumps(sums).encode())
    write_atomic(folder / MANIFEST, final)

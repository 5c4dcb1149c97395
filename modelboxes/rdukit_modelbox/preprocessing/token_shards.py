"""Sequences in HDF5 files, and their even share among files.

Axes: R rows, L tokens of a row.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

import h5py  # type: ignore[import-untyped]
import numpy as np

from rdukit.files.atomic import atomic_target
from rdukit_modelbox.preprocessing.packing import PackedRows

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
    """Rows that each file ends with, which differ by one at most, and the moves from file ends that lead there. Pure.

    Source: generative_data_prep balances its files the same way, so that each worker sees all of its rows once.
    """
    least, remainder = divmod(sum(rows), len(rows))
    # The files with most rows keep the odd ones, so that few rows move.
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

"""Packing of articles' tokens into sequences of one length, and figures of the result. Pure.

Axes: T tokens of all units, U units (what packing keeps together), R rows, L tokens of a row.
"""

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import IllegalValue

Ints = NDArray[np.int32]

STYLES: Final = ("full", "single", "greedy")
OVERFLOWS: Final = ("drop", "truncate_left", "truncate_right")


class TokenType(IntEnum):
    """The kind of a token.

    Source: generative_data_prep, README "Output": 0 prompt, 1 completion, 2 padding, 3 end of an article.
    """

    PROMPT = 0
    COMPLETION = 1
    PADDING = 2
    SEPARATOR = 3


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of some units, one after the other."""

    ids_T: Ints
    types_T: Ints
    lengths_U: NDArray[np.int64]

    @classmethod
    def none(cls) -> "Tokens":
        """Make tokens with no unit."""
        return cls(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.int64))

    def then(self, other: "Tokens") -> "Tokens":
        """Return these tokens followed by the others."""
        if not len(self.lengths_U):
            return other
        return Tokens(
            np.concatenate([self.ids_T, other.ids_T]),
            np.concatenate([self.types_T, other.types_T]),
            np.concatenate([self.lengths_U, other.lengths_U]),
        )


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Finished sequences."""

    ids_RL: Ints
    types_RL: Ints

    def __len__(self) -> int:
        return len(self.ids_RL)


class Packer:
    """Packs units into rows; units that do not fill a row yet wait for the next ones.

    Source: generative_data_prep, README, flag ``input_packing_config``.
    """

    def __init__(self, length: int, config: str, pad_id: int) -> None:
        """``config``: ``full``, or ``single`` or ``greedy`` with ``::`` and one of the overflow policies.

        Raises:
            IllegalValue: another config.
        """
        style, _, overflow = config.partition("::")
        if not (config == "full" or (style in STYLES[1:] and overflow in OVERFLOWS)):
            legal = ["full", *(f"{style}::{overflow}" for style in STYLES[1:] for overflow in OVERFLOWS)]
            raise IllegalValue(
                f"input_packing_config {config!r} is not valid; expected {', '.join(legal)}", legal=legal
            )
        self._length = length
        self._style = style
        self._overflow = overflow
        self._pad_id = pad_id
        self._waiting = Tokens.none()
        #: Tokens that no row has because their unit was too long.
        self.dropped_tokens = 0
        #: Units that lost tokens.
        self.cut_units = 0

    def pack(self, tokens: Tokens) -> PackedRows:
        """Rows [R, L] that are finished with these units."""
        if self._style == "full":
            return self._fill(self._waiting.then(tokens), is_last=False)
        return self._place(tokens, is_last=False)

    def finish(self) -> PackedRows:
        """Return the last rows, padded."""
        if self._style == "full":
            return self._fill(self._waiting, is_last=True)
        return self._place(Tokens.none(), is_last=True)

    def _fill(self, tokens: Tokens, *, is_last: bool) -> PackedRows:
        length, total = self._length, len(tokens.ids_T)
        whole = total // length * length
        ids_T, types_T = tokens.ids_T, tokens.types_T
        if is_last and total > whole:
            missing = whole + length - total
            ids_T = np.concatenate([ids_T, np.full(missing, self._pad_id, np.int32)])
            types_T = np.concatenate([types_T, np.full(missing, TokenType.PADDING, np.int32)])
            whole += length
        rest = len(ids_T) - whole
        self._waiting = Tokens(ids_T[whole:].copy(), types_T[whole:].copy(), np.array([rest] if rest else [], np.int64))
        return PackedRows(ids_T[:whole].reshape(-1, length), types_T[:whole].reshape(-1, length))

    def _place(self, tokens: Tokens, *, is_last: bool) -> PackedRows:
        lengths_U, starts_U = self._cut(tokens)
        merged = self._waiting.then(tokens)
        waiting_U = self._waiting.lengths_U
        offset = len(self._waiting.ids_T)
        starts_U = np.concatenate([np.cumsum(waiting_U) - waiting_U, starts_U + offset])
        lengths_U = np.concatenate([waiting_U, lengths_U])
        rows_U, columns_U, open_row = self._choose_rows(lengths_U, len(waiting_U))
        is_there_U = lengths_U > 0
        # Greedy's last row may still take the next unit: its units wait, unless nothing comes any more.
        waits_U = is_there_U & (rows_U == (-1 if is_last else open_row))
        placed_U = is_there_U & ~waits_U
        count = int(rows_U[placed_U].max()) + 1 if placed_U.any() else 0
        ids_RL = np.full((count, self._length), self._pad_id, np.int32)
        types_RL = np.full((count, self._length), TokenType.PADDING, np.int32)
        source_T = spans(starts_U[placed_U], lengths_U[placed_U])
        target_T = spans((rows_U * self._length + columns_U)[placed_U], lengths_U[placed_U])
        ids_RL.reshape(-1)[target_T] = merged.ids_T[source_T]
        types_RL.reshape(-1)[target_T] = merged.types_T[source_T]
        keep_T = spans(starts_U[waits_U], lengths_U[waits_U])
        self._waiting = Tokens(merged.ids_T[keep_T], merged.types_T[keep_T], lengths_U[waits_U])
        return PackedRows(ids_RL, types_RL)

    def _cut(self, tokens: Tokens) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Lengths and starts of the units after the overflow policy; a dropped one has length -1."""
        lengths_U = tokens.lengths_U
        starts_U = np.cumsum(lengths_U) - lengths_U
        over_U = np.maximum(lengths_U - self._length, 0)
        self.cut_units += int((over_U > 0).sum())
        if self._overflow == "drop":
            self.dropped_tokens += int(lengths_U[over_U > 0].sum())
            return np.where(over_U > 0, -1, lengths_U), starts_U
        self.dropped_tokens += int(over_U.sum())
        return lengths_U - over_U, starts_U + (over_U if self._overflow == "truncate_left" else 0)

    def _choose_rows(
        self, lengths_U: NDArray[np.int64], waiting: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """Return row and column of each unit, and the row that is still open; -1: none is."""
        if self._style == "single":
            return np.cumsum(lengths_U > 0) - 1, np.zeros(len(lengths_U), np.int64), -1
        rows, columns = [], []
        row = column = 0
        for index, length in enumerate(lengths_U.tolist()):
            # Even a dropped unit closes the row before it.
            if index >= waiting and column and (length < 0 or column + length > self._length):
                row, column = row + 1, 0
            rows.append(row)
            columns.append(column)
            column += max(length, 0)
        return np.array(rows, np.int64), np.array(columns, np.int64), row


def spans(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers ``start … start + length - 1`` of each span, one span after the other."""
    total = int(lengths.sum())
    if total == 0:
        return np.zeros(0, np.int64)
    ends = np.cumsum(lengths)
    numbers: NDArray[np.int64] = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return numbers


@dataclass(slots=True)
class TokenStatistics:
    """Sums over one split.

    Source: generative_data_prep, README "Terminal Output"; ``completion_tokens`` has the separators too, as theirs.
    """

    articles: int = 0
    sequences: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    padding_tokens: int = 0
    tokens_dropped_from_packing: int = 0
    tokens_dropped_from_all_prompt: int = 0
    #: Ours: units that packing cut or dropped, and tokens of the longest unit before that.
    cut_units: int = 0
    longest_unit: int = 0

    def count_units(self, tokens: Tokens) -> None:
        """Units before packing."""
        self.input_tokens += len(tokens.ids_T)
        if len(tokens.lengths_U):
            self.longest_unit = max(self.longest_unit, int(tokens.lengths_U.max()))

    def count_rows(self, rows: PackedRows) -> None:
        """Finished rows."""
        by_type = [int((rows.types_RL == kind).sum()) for kind in TokenType]
        self.sequences += len(rows)
        self.output_tokens += rows.types_RL.size
        self.prompt_tokens += by_type[TokenType.PROMPT]
        self.completion_tokens += by_type[TokenType.COMPLETION] + by_type[TokenType.SEPARATOR]
        self.padding_tokens += by_type[TokenType.PADDING]

    def add(self, other: "TokenStatistics") -> None:
        """Another file's sums."""
        for field in fields(self):
            name = field.name
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, max(mine, theirs) if name == "longest_unit" else mine + theirs)

    @property
    def padding_share(self) -> float:
        """Share of the rows' tokens that is padding."""
        return self.padding_tokens / self.output_tokens if self.output_tokens else 0.0

    def to_json(self) -> dict[str, int]:
        """Return each sum by its name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


#: The sums that generative_data_prep writes to its metadata.yaml, each after the split's name.
METADATA_NAMES = tuple(f.name for f in fields(TokenStatistics) if f.name not in {"cut_units", "longest_unit"})


def without_prompt_only(rows: PackedRows, statistics: TokenStatistics) -> PackedRows:
    """Return the rows that have a completion token; nothing could be learned from the others."""
    is_kept_R = (rows.types_RL == TokenType.COMPLETION).any(axis=1)
    if is_kept_R.all():
        return rows
    statistics.tokens_dropped_from_all_prompt += int((~is_kept_R).sum()) * rows.ids_RL.shape[1]
    return PackedRows(rows.ids_RL[is_kept_R], rows.types_RL[is_kept_R])

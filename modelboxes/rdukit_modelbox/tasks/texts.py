"""A data set of token sequences, as a task's data. Axes: B batch, L tokens of a sequence."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_atomic, write_json_atomic
from rdukit.pef.identity import tokenizer_digest
from rdukit_modelbox.preprocessing.data_rules import ValueLimit, check_values, divide_rows
from rdukit_modelbox.preprocessing.token_dataset import IDS, TokenDataset, TokenRows, load_token_dataset
from rdukit_modelbox.tasks.base import Batch
from rdukit_serving.shape import IGNORED, Shape
from rdukit_serving.text.chat_template import GENERATION_FILE, TOKENIZER_FILE

#: Kinds of tokens that are predicted: those of a completion, and the separator that ends an article.
PREDICTED: Final = (1, 3)


class TextData:
    """A data set of token sequences in files, as ``TaskData``."""

    def __init__(self, dataset: TokenDataset, limit: int = 0) -> None:
        self.dataset = dataset
        self._limit = limit
        self.digest: str = dataset.digest
        self.classes: tuple[str, ...] = ()
        self.columns: tuple[str, ...] = ()
        self.tokens_per_sample: int = dataset.max_seq_length
        #: Split → the split whose files hold its sequences, and their rows there; other splits use their own files.
        self._rows: dict[str, tuple[str, NDArray[np.int64]]] = {}

    def with_validation(self, share: float) -> "TextData":
        """See ``TaskData``."""
        made = TextData(self.dataset, self._limit)
        train_N, held_N = divide_rows(self.dataset.rows("train"), share)
        made._rows = {"train": ("train", train_N), "dev": ("train", held_N)}
        return made

    @cached_property
    def tokenizer(self) -> str:
        """See ``TaskData``."""
        return tokenizer_digest(self.dataset.tokenizer().to_str())

    def limited(self, limit: int) -> "TextData":
        """Return the same data with at most the first ``limit`` sequences of each split; 0 for all."""
        return TextData(self.dataset, limit)

    def count(self, split: str) -> int:
        """Sequences in it."""
        if split in self._rows:
            rows = len(self._rows[split][1])
        else:
            rows = self.dataset.rows(split) if split in {"train", "dev"} else 0
        return min(rows, self._limit or rows)

    def batches(self, batch_size: int, seed: int, epoch: int, start: int) -> Iterator[Batch]:
        """See ``TaskData``: tokens [B, L] and labels [B, L].

        Raises:
            InvalidArgument: a batch has no token to predict, so its loss is NaN.
        """
        for number, batch in enumerate(self._stored("train", batch_size, seed, epoch, start), start):
            labels_BL = labels_of(batch.input_ids_BL, batch.token_type_ids_BL)
            if not (labels_BL != IGNORED).any():
                raise InvalidArgument(
                    f"batch {number} of epoch {epoch} has no token to predict, but only prompts and padding; "
                    "preprocess "
                    "with keep_prompt_only_sequences=false, or use larger batches"
                )
            yield batch.input_ids_BL.astype(np.int64), labels_BL

    def held_out(self, split: str, batch_size: int) -> Iterator[Batch]:
        """Yield every sequence of a split in stored order; the last batch is filled with rows that count in no loss."""
        count = self.count(split)
        tokens = np.zeros((batch_size, self.tokens_per_sample), np.int64)
        labels = np.full((batch_size, self.tokens_per_sample), IGNORED, np.int64)
        filled = 0
        for number, batch in enumerate(self._stored(split, 1, None)):
            if number == count:
                break
            tokens[filled] = batch.input_ids_BL[0]
            labels[filled] = labels_of(batch.input_ids_BL, batch.token_type_ids_BL)[0]
            filled += 1
            if filled == batch_size:
                yield tokens.copy(), labels.copy()
                labels[:] = IGNORED
                filled = 0
        if filled:
            yield tokens.copy(), labels.copy()

    def _stored(
        self, split: str, batch_size: int, seed: int | None, epoch: int = 0, start: int = 0
    ) -> Iterator[TokenRows]:
        if split not in self._rows:
            return self.dataset.batches(split, batch_size, seed, epoch, start=start)
        source, rows_R = self._rows[split]
        return self.dataset.batches(source, batch_size, seed, epoch, start, rows_R)

    def keep_with(self, checkpoint: Path) -> None:
        """Return the tokenizer, the token that ends a text, and the number of tokens."""
        write_atomic(checkpoint / TOKENIZER_FILE, self.dataset.tokenizer().to_str(pretty=True).encode())
        dataset = self.dataset
        known = {
            "eos_token_id": dataset.end_of_text_id, "pad_token_id": dataset.pad_id, "vocab_size": dataset.vocab_size,
        }  # fmt: skip
        write_json_atomic(checkpoint / GENERATION_FILE, known)


def open_texts(shape: Shape, folder: Path) -> TextData:
    """Return the data set in ``folder``, checked for the PEF's sequence length and vocabulary.

    Raises:
        NotFound, InvalidArgument: the data set is missing or damaged, or does not fit this shape.
    """
    dataset = load_token_dataset(folder)
    context, vocabulary = int(shape.sizes["context_length"]), int(shape.sizes["vocabulary"])
    if dataset.max_seq_length != context:
        raise InvalidArgument(
            f"the data set's sequences have {dataset.max_seq_length} tokens, but the PEF's model expects {context}; "
            f"preprocess with max_seq_length={context} or compile with context_length={dataset.max_seq_length}"
        )
    if dataset.vocab_size > vocabulary:
        raise InvalidArgument(
            f"the data set's tokenizer has {dataset.vocab_size} tokens, but the PEF's model only {vocabulary}; "
            f"compile with a larger vocabulary"
        )
    limit = ValueLimit(vocabulary, "vocabulary")
    for name, split in dataset.splits.items():
        if split.held is not None:
            check_values(f"the {name} split's {IDS}", split.held.input_ids_BL, limit)
    return TextData(dataset)


def labels_of(input_ids_BL: NDArray[np.int32], token_type_ids_BL: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the target of each position: the next token, if it is of a predicted kind; else ``IGNORED``."""
    labels_BL = np.full(input_ids_BL.shape, IGNORED, np.int64)
    counts_BL = np.isin(token_type_ids_BL[:, 1:], PREDICTED)
    labels_BL[:, :-1] = np.where(counts_BL, input_ids_BL[:, 1:], IGNORED)
    return labels_BL

"""Human-readable texts → the arrays of models that read in both directions.

Tables have a column with the text, and a classifier's tables another with the class; each line of a .txt file is a
text. A given tokenizer makes the tokens, with its special ones around a text; otherwise tokens are bytes, as in
``rdukit_zoo.datasets.passages``. Longer texts are cut, shorter ones padded.

Axes: N texts, T tokens of a text.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rdukit.errors import IllegalValue, InvalidArgument
from rdukit.pef.identity import tokenizer_digest
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.preprocessing.columns import are_class_numbers
from rdukit_modelbox.preprocessing.sources import Format, RowErrors, SourceFile, find_sources, read_line_blocks
from rdukit_modelbox.preprocessing.table_rows import rows_of
from rdukit_modelbox.preprocessing.tokenizer import load_tokenizer
from rdukit_serving.raw_inputs.legal_values import NotLegal, name_of
from rdukit_zoo.datasets.passages import CLASSIFY, MASK, PADDING, SEPARATE, TOKENS, mask_tokens

FORMATS: Final = (Format.TXT, Format.CSV, Format.JSONL, Format.PARQUET)
#: Digest of the tokenizer whose tokens are bytes.
BYTES: Final = "bytes"
#: Tasks whose data may be texts.
TASKS: Final = frozenset({"masked-language-modelling", "sequence-classification", "embedding"})


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Encoding of texts as tokens: a tokenizer, or none for bytes; and the tokens with a special meaning."""

    tokenizer: Tokenizer | None = None
    padding: int = PADDING
    mask: int | None = MASK
    special: tuple[int, ...] = (PADDING, CLASSIFY, SEPARATE, MASK)
    size: int = TOKENS

    def encode(self, text: str, length: int) -> list[int]:
        """Return at most ``length`` tokens, the special ones included."""
        if self.tokenizer is None:
            return [CLASSIFY, *text.encode()[: length - 2], SEPARATE]
        self.tokenizer.enable_truncation(length)
        return list(self.tokenizer.encode(text).ids)


class Passages(NamedTuple):
    """Arrays of texts by name, the ordered names of their classes, and a description of the tokenizer.

    Numeric classes have no names.
    """

    arrays: Mapping[str, NDArray[np.int64]]
    classes: tuple[str, ...]
    tokenizer: str


def is_text(data: Path) -> bool:
    """Return whether ``data`` is a file or folder of texts, and not of arrays."""
    files = [data] if data.is_file() else [path for path in data.rglob("*") if path.is_file()]
    return bool(files) and not any(path.suffix in {".npz", ".npy"} for path in files)


def read_passages(
    data: Path, tokenizer: Path | None, task: str, sizes: Mapping[str, Any], parameters: Mapping[str, ParameterValue]
) -> Passages:
    """Return ``tokens``, ``types`` and ``mask`` [N, T], and the targets of the task.

    Masked language modelling has ``labels`` [N, T], classification ``label`` [N]: whole numbers stay, other classes are
    numbered in the order of their names.

    Raises:
        NotFound, InvalidArgument: a file, column or value is missing or wrong; the message names it.
        IllegalValue: the model has fewer tokens than the tokenizer, or other classes than the data.
    """
    vocabulary = _bytes_or(tokenizer)
    length, seed = int(sizes["context_length"]), int(parameters["seed"])
    if vocabulary.size > int(sizes["vocabulary"]):
        raise IllegalValue(
            f"the tokenizer has {vocabulary.size} tokens; expected up to {sizes['vocabulary']}, the "
            "model's vocabulary; "
            f"set vocabulary={vocabulary.size}, or another variant",
            parameter="vocabulary",
        )
    text_column = str(parameters["text_column"])
    label_column = str(parameters["label_column"]) if task == "sequence-classification" else ""
    texts, labels = [], []
    for source in find_sources(data, "**/*", "auto", FORMATS):
        for text, label in _read(source, text_column, label_column):
            texts.append(vocabulary.encode(text, length))
            labels.append(label)
    if not texts:
        raise InvalidArgument(f"{data.name} has no text")
    tokens_NT = np.full((len(texts), length), vocabulary.padding, np.int64)
    mask_NT = np.zeros_like(tokens_NT)
    for row, tokens in enumerate(texts):
        tokens_NT[row, : len(tokens)], mask_NT[row, : len(tokens)] = tokens, 1
    made = {"tokens": tokens_NT, "types": np.zeros_like(tokens_NT), "mask": mask_NT}
    known = BYTES if vocabulary.tokenizer is None else tokenizer_digest(vocabulary.tokenizer.to_str())
    if task == "sequence-classification":
        label_N, names = _number(labels, int(sizes["num_classes"]))
        return Passages({**made, "label": label_N}, names, known)
    if task == "embedding":
        return Passages(made, (), known)
    if vocabulary.mask is None:
        raise InvalidArgument("the tokenizer has no token [MASK], which masked language modelling needs")
    may_be = mask_NT.astype(bool) & ~np.isin(tokens_NT, vocabulary.special)
    given, labels_NT = mask_tokens(tokens_NT, may_be, vocabulary.mask, vocabulary.size, np.random.default_rng(seed))
    return Passages({**made, "tokens": given, "labels": labels_NT}, (), known)


def _bytes_or(path: Path | None) -> Vocabulary:
    if path is None:
        return Vocabulary()
    made = load_tokenizer(path)
    names = ("[PAD]", "<pad>", "[CLS]", "<s>", "[SEP]", "</s>", "[UNK]", "<unk>", "[MASK]", "<mask>")
    known = {name: made.tokenizer.token_to_id(name) for name in names}
    mask = known["[MASK]"] if known["[MASK]"] is not None else known["<mask>"]
    padding = known["[PAD]"] if known["[PAD]"] is not None else known["<pad>"]
    special = tuple(number for number in known.values() if number is not None)
    return Vocabulary(made.tokenizer, made.pad_id if padding is None else padding, mask, special, made.vocabulary)


def _read(source: SourceFile, text_column: str, label_column: str) -> Iterator[tuple[str, str]]:
    """Yield each text with its class; the class is empty without ``label_column``."""
    bad = RowErrors(skips=False)
    if source.format == Format.TXT:
        if label_column:
            raise InvalidArgument(
                f"{source.name}: plain text has no classes; expected a table (.csv, .tsv, .jsonl, .parquet) with the "
                f"columns {text_column} and {label_column}"
            )
        for block in read_line_blocks(source):
            for line in block.data.decode(errors="replace").splitlines():
                if line.strip():
                    yield line.strip(), ""
        return
    for number, row in rows_of(source, bad, [0]):
        for column in filter(None, (text_column, label_column)):
            if column not in row:
                raise InvalidArgument(
                    f"{source.name} has no column {column!r}; its columns are {', '.join(map(str, row))}; name one "
                    "with "
                    f"{'text_column' if column == text_column else 'label_column'}"
                )
        text = read_cell(source, number, text_column, row[text_column])
        yield text, read_class(source, number, label_column, row[label_column]) if label_column else ""


def read_cell(source: SourceFile, line: int, column: str, value: object) -> str:
    """Return a text or a class as text; whole numbers have no point.

    Raises:
        InvalidArgument: it is missing, or neither text nor number.
    """
    reason = "is empty"
    try:
        found = value if isinstance(value, str) else name_of(value)
    except NotLegal as fault:
        found, reason = None, fault.reason
    if found is None or not found.strip():
        raise InvalidArgument(
            f"{source.name}:{line}: {column} {reason}; expected a text or a number in each row",
            file=source.name, line=line, column=column,
        )  # fmt: skip
    return found


def read_class(source: SourceFile, line: int, column: str, value: object) -> str:
    """Return the name of a class without spaces around it; ``1.0`` is the class 1. Words such as ``none`` are classes.

    Raises:
        InvalidArgument: as ``read_cell``.
    """
    text = read_cell(source, line, column, value).strip()
    return (name_of(text) if text.endswith(".0") else None) or text


def _number(labels: Sequence[str], classes: int) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return classes [N] as numbers, and their ordered names; empty if the names are numbers.

    Raises:
        IllegalValue: their number differs from the model's, or a number exceeds it.
    """
    found = sorted(set(labels))
    if are_class_numbers(found):
        if int(max(found, key=int)) >= classes:
            raise IllegalValue(
                f"the data have class {max(found, key=int)}; expected 0 to {classes - 1}; set num_classes",
                parameter="num_classes",
            )
        return np.array([int(label) for label in labels], np.int64), ()
    if len(found) != classes:
        some = ", ".join(found[:8]) + (" …" if len(found) > 8 else "")
        raise IllegalValue(
            f"the data have {len(found)} classes ({some}) and num_classes is {classes}; set num_classes={len(found)}",
            parameter="num_classes",
        )
    return np.array([found.index(label) for label in labels], np.int64), tuple(found)

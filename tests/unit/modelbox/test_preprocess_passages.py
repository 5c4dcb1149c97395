"""Texts → the arrays of models that read in both directions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from rdukit.errors import IllegalValue, InvalidArgument
from rdukit_modelbox.preprocessing.passages import is_text, read_passages
from rdukit_zoo.datasets.passages import CLASSIFY, MASK, PADDING, SEPARATE
from rdukit_zoo.registry import IGNORED
from support import shows

pytestmark = shows("preprocess", "bert", "bert-classifier")

SIZES = {"context_length": 8, "vocabulary": 300, "num_classes": 2}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "pump", "leaks", "runs"]


def read(data: Path, task: str, tokenizer: Path | None = None, **values: Any) -> dict[str, Any]:
    parameters = {"seed": 0, "text_column": "text", "label_column": "label"}
    return dict(read_passages(data, tokenizer, task, SIZES | values, parameters).arrays)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    made = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_a_table_becomes_tokens_with_padding_and_numbered_classes(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("text,label\nab,worn\nabcdefghij,ok\n")
    made = read(table, "sequence-classification")
    assert made["tokens"].tolist() == [
        [CLASSIFY, 97, 98, SEPARATE, PADDING, PADDING, PADDING, PADDING],
        [CLASSIFY, 97, 98, 99, 100, 101, 102, SEPARATE],
    ]
    assert made["mask"].tolist() == [[1] * 4 + [0] * 4, [1] * 8]
    assert made["label"].tolist() == [1, 0]
    assert not made["types"].any()


def test_a_given_tokenizer_puts_its_own_tokens_around_a_text(tmp_path: Path, tokenizer: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("the pump leaks\n\nthe pump runs the pump runs the pump runs\n")
    made = read(text, "embedding", tokenizer)
    assert made["tokens"].tolist() == [[2, 5, 6, 7, 3, 0, 0, 0], [2, 5, 6, 8, 5, 6, 8, 3]]
    assert set(made) == {"tokens", "types", "mask"}


def test_words_are_masked_and_special_tokens_and_padding_never_are(tmp_path: Path, tokenizer: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("the pump leaks\n" * 400)
    made = read(text, "masked-language-modelling", tokenizer)
    predicted = made["labels"] != IGNORED
    assert predicted.any(1).all()
    assert not predicted[:, [0, 4, 5, 6, 7]].any()
    assert (made["labels"][predicted] >= 5).all()
    assert 0.7 < (made["tokens"][predicted] == WORDS.index("[MASK]")).mean() < 0.9
    again = read(text, "masked-language-modelling", tokenizer)
    assert all(np.array_equal(made[key], again[key]) for key in made)
    assert (read(text, "masked-language-modelling")["tokens"] == MASK).any()


def test_what_does_not_fit_is_refused_with_what_would(tmp_path: Path, tokenizer: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("text,label\na,x\nb,y\nc,z\n")
    with pytest.raises(IllegalValue, match=r"have 3 classes \(x, y, z\) and num_classes is 2; set num_classes=3"):
        read(table, "sequence-classification")
    table.write_text("text,label\na,0\nb,2\n")
    with pytest.raises(IllegalValue, match="have class 2; expected 0 to 1"):
        read(table, "sequence-classification")
    table.write_text("words,label\na,0\n")
    with pytest.raises(
        InvalidArgument, match="no column 'text'; its columns are words, label; name one with text_column"
    ):
        read(table, "embedding")
    table.write_text("text,label\na,0\n,1\n")
    with pytest.raises(InvalidArgument, match=r"t\.csv:3: text is empty"):
        read(table, "embedding")
    text = tmp_path / "t.txt"
    text.write_text("a\n")
    with pytest.raises(InvalidArgument, match=r"plain text has no classes; expected a table"):
        read(text, "sequence-classification")
    with pytest.raises(IllegalValue, match="the tokenizer has 9 tokens; expected up to 8"):
        read(text, "embedding", tokenizer, vocabulary=8)


def test_arrays_are_told_from_texts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\n")
    assert is_text(tmp_path / "a.csv") and is_text(tmp_path)
    np.savez(tmp_path / "a.npz", tokens=np.zeros(1))
    assert not is_text(tmp_path / "a.npz") and not is_text(tmp_path)

"""Wrong inputs of people who train: each is refused before the first step, by its place and with what is expected.

A row of the table writes an input that is wrong in one place. The refusal names file, row or column as far as there
are any, says what was expected, and has no words of the libraries below.
"""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from rdukit.errors import RdukitError
from rdukit_modelbox.finetune.examples import prepare_examples
from rdukit_modelbox.finetune.run import open_model
from rdukit_zoo.checkpoints.folder import read_tensors
from support import shows
from support.boxes import run_verb
from support.hub_folders import END, write_model

pytestmark = shows("finetune", "tables", "image-folders")

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

#: Words that tell what the reader should do next.
ADVICE: Final = re.compile(
    r"expected|legal|there: |there are no|write it again|preprocess|name (it|one|a|an|the)\b|its columns are|remove it"
    r"|again\b"
)
#: Words of torch, numpy, pyarrow, json and Python that tell a reader nothing.
FOREIGN: Final = (
    "allow_pickle", "is not a file in the archive", "state_dict", "Traceback", "weights_only", "codec can't", "Errno",
    "Arrow", "BadZipFile", "UnidentifiedImageError", "cannot identify", "object at 0x", "unpickl", "Unsupported class",
)  # fmt: skip

Write = Callable[[Path], Path]


# --- tables


def csv(text: str, name: str = "t.csv") -> Write:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
        return folder / name

    return write


def data(content: bytes, name: str) -> Write:
    def write(folder: Path) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    return write


def parquet(rows: list[dict[str, Any]]) -> Write:
    def write(folder: Path) -> Path:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "t.parquet")
        return folder / "t.parquet"

    return write


def npz(**arrays: Any) -> Write:
    def write(folder: Path) -> Path:
        np.savez(folder / "t.npz", **arrays)
        return folder / "t.npz"

    return write


HEAD: Final = "age,city,label\n"
GOOD: Final = "3,Rome,a\n4,Oslo,b\n"
TABLES: Final[list[tuple[str, Write, dict[str, Any], str]]] = [
    ("a text among numbers", csv(HEAD + GOOD + "old,Rome,a\n"), {}, r"t\.csv:4, column 'age': 'old'"),
    ("an infinite number", csv(HEAD + GOOD + "inf,Rome,a\n"), {}, r"t\.csv:4, column 'age'"),
    ("a number beyond float32", csv(HEAD + GOOD + "1e40,Rome,a\n"), {}, r"t\.csv:4, column 'age'"),
    ("an empty number", csv(HEAD + GOOD + ",Rome,a\n"), {}, r"t\.csv:4, column 'age': no value"),
    ("an empty category", csv(HEAD + GOOD + "5,,a\n"), {}, r"t\.csv:4, column 'city': no value"),
    ("an empty label", csv(HEAD + GOOD + "5,Rome,\n"), {}, r"t\.csv:4, column 'label': no label"),
    ("a field too few", csv(HEAD + GOOD + "5,Rome\n"), {}, r"t\.csv:4: 2 fields"),
    ("a field too many", csv(HEAD + GOOD + "5,Rome,a,b\n"), {}, r"t\.csv:4: 4 fields"),
    ("a quote that is not closed", csv(HEAD + GOOD + '5,"Rome,a\n'), {}, r"t\.csv:\d+"),
    ("two columns of one name", csv("age,age,label\n1,2,a\n"), {}, r"t\.csv:1: more than one column is named 'age'"),
    ("fields between bars", csv("age|city|label\n3|Rome|a\n"), {}, r"t\.csv:1: the header is one column"),
    ("numbers with decimal commas", csv("age;label\n3,5;a\n4,0;b\n"), {},
     r"t\.csv:2, column 'age': '3,5'.*decimal point"),
    ("no label column", csv("age,city\n1,Rome\n"), {}, r"t\.csv has no column 'label'; its columns are age, city"),
    ("a header alone", csv(HEAD), {}, r"t\.csv has no row"),
    ("an empty file", csv(""), {}, r"t\.csv"),
    ("a file that is not UTF-8", data(b"age,label\n1,\xff\xfe\n", "t.csv"), {},
     r"t\.csv: not UTF-8 in the lines from 1"),
    ("a zero byte", data(b"age,label\n1,a\n\x00\x00,b\n", "t.csv"), {}, r"t\.csv:3"),
    ("a damaged gzip", data(gzip.compress(b"age,label\n1,a\n" * 50)[:-9], "t.csv.gz"), {}, r"t\.csv\.gz"),
    ("a date with two meanings", csv("d,label\n2024-01-02,a\n03/04/2025,b\n"), {}, r"t\.csv:3, column 'd'"),
    ("a day that is not there", csv("d,label\n2024-01-02,a\n2024-02-31,b\n"), {}, r"t\.csv:3, column 'd'"),
    ("a column to exclude that is not there", csv(HEAD + GOOD), {"exclude": "town"}, r"no column 'town'"),
    ("a column in two roles", csv(HEAD + GOOD), {"exclude": "age", "columns": "age"}, r"'age' is in both exclude and"),
    ("the label alone", csv("label\na\nb\n"), {}, r"no column besides the label"),
    ("a line of JSON that is none", csv('{"age": 1, "label": "a"}\n{"age":\n', "t.jsonl"), {}, r"t\.jsonl:2"),
    ("a nested value", csv('{"age": [1], "label": "a"}\n', "t.jsonl"), {}, r"t\.jsonl(:1| has no row)"),
    ("a row with another key", csv('{"age": 1, "label": "a"}\n{"ag": 1, "label": "a"}\n', "t.jsonl"), {},
     r"t\.jsonl:1, column 'ag': no value"),
    ("no Parquet", data(b"PAR1 no", "t.parquet"), {}, r"t\.parquet"),
    ("a list in Parquet", parquet([{"age": [1.0], "label": "a"}] * 3), {}, r"t\.parquet:1, column 'age'"),
    ("no archive of arrays", data(b"no", "t.npz"), {}, r"t\.npz"),
    ("arrays of objects", npz(features=np.array([{}, {}], object), label=np.array([0, 1])), {"columns": "features"},
     r"t\.npz"),
    ("arrays of other lengths", npz(features=np.ones((3, 2), np.float32), label=np.array([0, 1])),
     {"columns": "features"}, r"t\.npz"),
    ("a number that is NaN", npz(features=np.array([[1, np.nan]], np.float32), label=np.array([0])),
     {"columns": "features"}, r"t\.npz:1"),
]  # fmt: skip


# --- pictures


def pictures(change: Callable[[Path], object], classes: tuple[str, ...] = ("cat", "dog")) -> Write:
    def write(folder: Path) -> Path:
        for name in classes:
            (folder / "p" / name).mkdir(parents=True)
            for number in range(4):
                Image.new("RGB", (20, 16), (number, 40, 90)).save(folder / "p" / name / f"{number}.png")
        change(folder / "p")
        return folder / "p"

    return write


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:60])


def bomb(path: Path) -> None:
    Image.new("1", (9000, 9000)).save(path)


PICTURES: Final[list[tuple[str, Write, dict[str, Any], str]]] = [
    ("a text called .png", pictures(lambda p: (p / "cat" / "x.png").write_text("no")), {}, r"cat/x\.png"),
    ("an empty picture", pictures(lambda p: (p / "cat" / "x.png").write_bytes(b"")), {}, r"cat/x\.png"),
    ("a picture that is cut off", pictures(lambda p: cut(p / "dog" / "1.png")), {}, r"dog/1\.png"),
    ("a picture of 81 million pixels", pictures(lambda p: bomb(p / "cat" / "x.png")), {}, r"cat/x\.png"),
    ("a picture in no folder", pictures(lambda p: (p / "cat" / "1.png").rename(p / "x.png")), {}, r"^x\.png"),
    ("another number of classes", pictures(lambda p: None, ("a", "b", "c")), {}, r"p has 3 folders of pictures"),
    ("a folder without pictures", pictures(lambda p: None, ()), {}, r"p\b"),
    ("a PDF in disguise", pictures(lambda p: (p / "cat" / "x.jpg").write_bytes(b"%PDF-1.4")), {}, r"cat/x\.jpg"),
    ("four channels", pictures(lambda p: None), {"channels": 4}, r"4 channels"),
    ("colours of ImageNet for grey", pictures(lambda p: None), {"channels": 1, "image_normalize": "imagenet"},
     r"image_normalize=imagenet is only for rgb"),
    ("arrays under other names", npz(x=np.zeros((2, 3, 16, 16), np.float32)), {}, r"t\.npz lacks the array"),
    ("arrays of another size", npz(image=np.zeros((2, 3, 8, 8), np.float32), label=np.zeros(2, np.int64)), {},
     r"t\.npz: image has float32 \[3, 8, 8\]"),
    ("labels beyond the classes", npz(image=np.zeros((2, 3, 16, 16), np.float32), label=np.array([0, 7])), {},
     r"t\.npz: label has the value 7"),
    ("pictures with infinite values",
     npz(image=np.full((2, 3, 16, 16), np.inf, np.float32), label=np.zeros(2, np.int64)),
     {}, r"t\.npz: image"),
    ("pictures as objects", npz(image=np.array([None, None]), label=np.zeros(2, np.int64)), {}, r"t\.npz"),
]  # fmt: skip


def check(error: RdukitError, words: str) -> None:
    """Check a refusal: it names the place, says what to do, and has no words of the libraries below."""
    assert re.search(words, error.message), error.message
    assert ADVICE.search(error.message), f"no word on what was expected: {error.message}"
    foreign = [word for word in FOREIGN if word in error.message]
    assert not foreign, f"{foreign} in {error.message}"


@pytest.mark.parametrize(("write", "asked", "words"), [pytest.param(*row[1:], id=row[0]) for row in TABLES])
def test_a_wrong_table_is_refused_by_its_place(tmp_path: Path, write: Write, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(RdukitError) as refused:
        run_verb("mlp", "preprocess", tmp_path / "out", {"data": write(tmp_path)}, **asked)
    check(refused.value, words)


@pytest.mark.parametrize(("write", "asked", "words"), [pytest.param(*row[1:], id=row[0]) for row in PICTURES])
def test_a_wrong_picture_is_refused_by_its_file(
    tmp_path: Path, write: Write, asked: dict[str, Any], words: str
) -> None:
    sizes = {"image_size": 16, "channels": 3, "patch_size": 8, "num_classes": 2, **asked}
    with pytest.raises(RdukitError) as refused:
        run_verb("vit", "preprocess", tmp_path / "out", {"data": write(tmp_path)}, **sizes)
    check(refused.value, words)


# --- lines of texts, chats and preference pairs


USER, SAID = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
LINES: Final[list[tuple[str, object, str]]] = [
    ("no JSON", "{", r"in\.jsonl:2: not JSON"),
    ("a number", "3", r"in\.jsonl:2"),
    ("no messages", {"messages": []}, r"in\.jsonl:2"),
    ("messages that are a text", {"messages": "hello"}, r"in\.jsonl:2"),
    ("a turn without content", {"messages": [USER, {"role": "assistant"}]}, r"in\.jsonl:2: message 1 lacks"),
    ("a content that is a number", {"messages": [USER, {"role": "assistant", "content": 3}]},
     r"in\.jsonl:2: message 1"),
    ("no turn of the assistant", {"messages": [USER]}, r"in\.jsonl:2: there is no message of the assistant"),
    ("another kind of line", {"prompt": "a", "completion": "b"}, r"in\.jsonl:2"),
    ("an empty turn of the assistant", {"messages": [USER, {"role": "assistant", "content": ""}]},
     r"in\.jsonl:2: message 1"),
    ("a role that no template knows", {"messages": [{"role": "robot", "content": "x"}, SAID]},
     r"in\.jsonl:2: message 0"),
]  # fmt: skip


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    write_model(folder, "llama")
    return folder


@pytest.mark.parametrize(("line", "words"), [pytest.param(*row[1:], id=row[0]) for row in LINES])
def test_a_wrong_line_of_a_chat_is_refused_by_its_number(tmp_path: Path, llama: Path, line: object, words: str) -> None:
    text = line if isinstance(line, str) else json.dumps(line)
    (tmp_path / "in.jsonl").write_text(json.dumps({"messages": [USER, SAID]}) + "\n" + text + "\n")
    with pytest.raises(RdukitError) as refused:
        prepare_examples(tmp_path / "in.jsonl", llama, END, tmp_path / "out.jsonl")
    check(refused.value, words)


# --- folders


def change_config(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **values}))

    return change


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"a": Path("x")}, folder / "pytorch_model.bin")


def write(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


FOLDERS: Final[list[tuple[str, Callable[[Path], object], str]]] = [
    ("no config.json", lambda p: (p / "config.json").unlink(), r"config\.json"),
    ("a damaged config.json", write("config.json", "{"), r"config\.json is damaged"),
    ("a config.json that is a list", write("config.json", "[]"), r"config\.json is damaged"),
    ("code of its own", change_config(auto_map={"AutoModel": "x.Y"}), r"config\.json has auto_map"),
    ("an unknown architecture", change_config(architectures=["SpeechModel"]), r"config\.json: no zoo model"),
    ("weights of another quantization", change_config(quantization_config={"quant_method": "bitsandbytes"}),
     r"config\.json: .*'bitsandbytes'"),
    ("a width that the heads do not divide", change_config(hidden_size=33), r"33"),
    ("no layers in config.json", change_config(num_hidden_layers=None), r"num_hidden_layers"),
    ("a size that is a word", change_config(num_hidden_layers="two"), r"num_hidden_layers"),
    ("fewer layers than weights", change_config(num_hidden_layers=1), r"left over .*layers\.1"),
    ("more layers than weights", change_config(num_hidden_layers=3), r"missing .*layers\.2"),
    ("no weights", lambda p: (p / "model.safetensors").unlink(), r"has no weights"),
    ("damaged weights", lambda p: (p / "model.safetensors").write_bytes(b"\x00" * 50),
     r"model\.safetensors is damaged"),
    ("a pickle with code", pickled, r"pytorch_model\.bin"),
    ("no tokenizer", lambda p: (p / "tokenizer.json").unlink(), r"has no tokenizer\.json"),
    ("a damaged tokenizer", write("tokenizer.json", "{}"), r"tokenizer\.json"),
]  # fmt: skip


def open_and_read(folder: Path) -> None:
    hub = open_model(folder)
    with torch.device("meta"):
        model = hub.entry.build(**hub.sizes)
    list(read_tensors(hub, model))


@pytest.mark.parametrize(("change", "words"), [pytest.param(*row[1:], id=row[0]) for row in FOLDERS])
def test_a_wrong_folder_is_refused_by_its_file(
    tmp_path: Path, llama: Path, change: Callable[[Path], object], words: str
) -> None:
    for path in llama.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    change(tmp_path)
    with pytest.raises(RdukitError) as refused:
        open_and_read(tmp_path)
    check(refused.value, words)


def test_there_are_sixty_and_more() -> None:
    assert len(TABLES) + len(PICTURES) + len(LINES) + len(FOLDERS) >= 60

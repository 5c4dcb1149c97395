"""Folders and data as strangers bring them to ``rdukit finetune``: refused before the first step, or read as they are.

Refusals have the file, the line or column as far as there is one, and what was expected.
"""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from rdukit.errors import InvalidArgument, RdukitError
from rdukit_modelbox.artifacts.hub_folder import write_checkpoint
from rdukit_modelbox.finetune.classes import ChosenClasses, choose_classes
from rdukit_modelbox.finetune.options import FinetuneOptions
from rdukit_modelbox.finetune.run import _check_request, _prepare, box_for, check_finetune, finetune, open_model
from rdukit_modelbox.preprocessing.token_dataset import load_token_dataset
from rdukit_modelbox.tasks.texts import TextData
from support import shows
from support.boxes import RecordingContext
from support.hub_classifiers import write_bert, write_vit
from support.hub_folders import CONTEXT, chats, write_model

pytestmark = shows("finetune", "huggingface", "image-folders")

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

Change = Callable[[Path], object]
OPTIONS: Final = FinetuneOptions(context=CONTEXT, dev_ratio=0.2)
USER, SAID = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
PAIR: Final = {"prompt": "q", "completion": " a"}
PREFERENCE: Final = {"prompt": "q", "chosen": " a", "rejected": " b"}
CHAT: Final = {"messages": [USER, SAID]}
WEIGHTED = {"messages": [{**USER, "weight": 0}, {**SAID, "weight": None}]}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_model(folder / "llama", "llama")
    write_bert(folder / "bert", num_labels=2)
    write_vit(folder / "vit", num_labels=12)
    return folder


@pytest.fixture(autouse=True)
def portable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))


def copied(model: Path, target: Path, change: Change | None = None) -> Path:
    target.mkdir()
    for path in model.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    if change is not None:
        change(target)
    return target


def lines(*rows: object, good: object = None) -> Change:
    """Write rows after eight good ones."""

    def write(folder: Path) -> Path:
        written = [row if isinstance(row, str) else json.dumps(row) for row in (*([good] * 8 if good else []), *rows)]
        (folder / "in.jsonl").write_text("\n".join(written) + "\n")
        return folder / "in.jsonl"

    return write


def columns(**values: Any) -> Change:
    def write(folder: Path) -> Path:
        parquet.write_table(arrow.table(values), folder / "in.parquet")
        return folder / "in.parquet"

    return write


def text(name: str, content: str) -> Change:
    def write(folder: Path) -> Path:
        (folder / name).write_text(content)
        return folder / name

    return write


NINE_PAIR = r'in\.jsonl:9: expected {"prompt": …, "completion": …}, two texts, of which the completion is not empty'
NINE_PREFERENCE = r'in\.jsonl:9: expected {"prompt": …, "chosen": …, "rejected": …} with texts'
DATA: Final[list[tuple[str, Change, str]]] = [
    ("an empty completion", lines({"prompt": "q", "completion": ""}, good=PAIR), NINE_PAIR),
    ("a blank completion", lines({"prompt": "q", "completion": " "}, good=PAIR), NINE_PAIR),
    ("no completion", lines({"prompt": "q", "completion": None}, good=PAIR), NINE_PAIR),
    ("a prompt under another key", lines({"promt": "q", "completion": "a"}, good=PAIR), NINE_PAIR),
    ("no prompt", lines({"completion": "a"}, good=PAIR), NINE_PAIR),
    ("a completion that is a number", lines({"prompt": "q", "completion": 3}, good=PAIR), NINE_PAIR),
    ("a chat among pairs", lines(CHAT, good=PAIR), NINE_PAIR),
    ("a text among pairs", lines({"text": "a"}, good=PAIR), NINE_PAIR),
    ("an empty list of pairs", lines([], good=[PAIR]), NINE_PAIR),
    ("a blank text", lines({"text": " "}, good={"text": "a"}), r"in\.jsonl:9: expected a text"),
    ("half a character in a text", lines('{"text": "\\ud800"}', good={"text": "a"}), r"in\.jsonl:9: not UTF-8, or hal"),
    ("half a character in a chat", lines('{"messages": [{"role": "user", "content": "\\ud800"}]}', good=CHAT),
     r"in\.jsonl:9: not UTF-8, or half a character; expected"),
    ("half a character in a pair", lines('{"prompt": "\\ud800", "chosen": "a", "rejected": "b"}', good=PREFERENCE),
     r"in\.jsonl:9: not UTF-8, or half a character; expected"),
    ("keys of two kinds", lines({**CHAT, **PREFERENCE}), r"in\.jsonl:1: it has messages and chosen; expected keys of"),
    ("instructions", lines({"instruction": "q", "output": "a"}), r"in\.jsonl:1: expected a text in quotes"),
    ("a table of preferences", text("in.csv", "prompt,chosen,rejected\nq,a,b\n"),
     r"in\.csv has no column 'completion'; .*expected prompt and completion; chats and preference pairs are JSON line"),
    ("a Parquet of chats", columns(messages=[[USER, SAID]]), r"in\.parquet has no column 'prompt'; .* JSON lines"),
    ("a table of texts", text("in.csv", "text\na\n"), r"in\.csv has no column 'prompt'; its columns are text; expecte"),
    ("an empty completion in a table", text("in.csv", "prompt,completion\nq,a\nq,\n"), r"in\.csv:3: expected {"),
    ("a null completion in Parquet", columns(prompt=["q", "q"], completion=["a", None]), r"in\.parquet:2: expected {"),
    ("an empty rejected text", lines({**PREFERENCE, "rejected": ""}, good=PREFERENCE), NINE_PREFERENCE),
    ("a blank rejected text", lines({**PREFERENCE, "rejected": " "}, good=PREFERENCE), NINE_PREFERENCE),
    ("no rejected text", lines({"prompt": "q", "chosen": "a"}, good=PREFERENCE), NINE_PREFERENCE),
    ("a rejected null", lines({**PREFERENCE, "rejected": None}, good=PREFERENCE), NINE_PREFERENCE),
    ("an empty rejected list", lines({"chosen": [USER, SAID], "rejected": []}), r"in\.jsonl:1: expected {\"messages\""),
    ("a list and a text", lines({"prompt": "q", "chosen": [SAID], "rejected": "b"}), r"in\.jsonl:1: expected {"),
    ("tools beside a chat", lines({**CHAT, "tools": [{"type": "function"}]}, good=CHAT),
     r"in\.jsonl:9: tools are not read, so prompts would lack them; expected lines with messages alone"),
    ("tools beside preferences", lines({"prompt": [USER], "chosen": [SAID], "rejected": [USER], "tools": [{}]}),
     r"in\.jsonl:1: tools are not read"),
    ("a turn that shall not be learnt", lines({"messages": [USER, {**SAID, "weight": 0}]}, good=WEIGHTED),
     r"in\.jsonl:9: message 1 has weight 0; expected 1 or no weight, because each turn"),
    ("a content in parts", lines({"messages": [{"role": "user", "content": [{"text": "a"}]}, SAID]}, good=CHAT),
     r"in\.jsonl:9: message 0 lacks role or content; expected both, as texts"),
    ("a role in capitals", lines({"messages": [{**USER, "role": "User"}, SAID]}, good=CHAT), r"has the role 'User'; e"),
    ("messages twice", lines('{"messages": [{"role": "user", "content": "a"}], "messages": []}'), r"in\.jsonl:1: expe"),
]  # fmt: skip


def change_json(name: str, **values: Any) -> Change:
    def change(folder: Path) -> None:
        (folder / name).write_text(json.dumps({**json.loads((folder / name).read_text()), **values}))

    return change


def config(**values: Any) -> Change:
    return change_json("config.json", **values)


def shards(change_index: Callable[[dict[str, str]], object], twice: bool = False) -> Change:
    """Write the weights as two shards, bf16 and f16, and change the index."""

    def change(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        names = sorted(weights)
        index: dict[str, str] = {}
        for number, chosen in enumerate((names[::2], names[1::2])):
            tensors = {name: weights[name].to((torch.bfloat16, torch.float16)[number]) for name in chosen}
            if twice:
                tensors |= {names[0]: torch.ones_like(weights[names[0]])}
            save_file(tensors, folder / f"{number}.safetensors", {"format": "pt"})
            index |= dict.fromkeys(chosen, f"{number}.safetensors")
        change_index(index)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))

    return change


def not_finite(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def add_tokens(folder: Path) -> None:
    value = json.loads((folder / "tokenizer.json").read_text())
    more = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    value["added_tokens"].append({"id": 300, "content": "<|more|>", **more})
    (folder / "tokenizer.json").write_text(json.dumps(value))


def written(name: str, content: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(content)


FOLDERS: Final[list[tuple[str, Change, str]]] = [
    ("a damaged tokenizer_config.json", written("tokenizer_config.json", b"{"), r"tokenizer_config\.json is damaged: "),
    ("a list as tokenizer_config.json", written("tokenizer_config.json", b"[]"), r"tokenizer_config\.json is damaged"),
    ("a configuration in Latin-1", written("tokenizer_config.json", b'{"eos_token": "\xff"}'), r"it is not UTF-8; exp"),
    ("an end that no token is", change_json("tokenizer_config.json", eos_token="<zz>"), r"has no token '<zz>'; expect"),
    ("more tokens than the model has", add_tokens, r"tokenizer\.json has 301 tokens, but the model 300; expected at m"),
    ("a template that writes nothing", written("chat_template.jinja", b"hello"),
     r"in\.jsonl:1: the chat template writes nothing for message 1; expected"),
    ("weights that are not finite", not_finite, r"model\.norm\.weight has values that are NaN or infinite; expected"),
    ("a tensor in two shards", shards(lambda index: None, twice=True), r"two files have the tensor lm_head.weight; ex"),
    ("an index that leads out", shards(lambda index: index.update(a="../0.safetensors")), r"names \.\./0\.safetensors"),
    ("an index with a path", shards(lambda index: index.update(a="/etc/hostname")), r"names /etc/hostname, which is n"),
    ("an index with a missing shard", shards(lambda index: index.update(a="2.safetensors")), r"names 2\.safetensors, "),
    ("a negative width", config(hidden_size=-32), r"config\.json: hidden_size is -32; expected a finite number, a who"),
    ("half a width", config(hidden_size=32.5), r"config\.json: hidden_size is 32\.5; expected a finite number"),
    ("an epsilon that is none", written("config.json", b'{"architectures": ["LlamaForCausalLM"], "rms_norm_eps": NaN}'),
     r"config\.json: rms_norm_eps is nan; expected a finite number"),
    ("an architecture in no list", config(architectures="LlamaForCausalLM"), r"architectures is 'Llama.*; expected na"),
    ("an architecture without a name", config(architectures=[{}]), r"architectures is \[{}\]; expected names such as"),
]  # fmt: skip


def label(*values: object, words: str = "w1 w2") -> Change:
    return lines(*({"text": words, "label": value} for value in values))


LABELLED: Final[list[tuple[str, Change, Change | None, str]]] = [
    ("a label that is NaN", columns(text=["w1", "w2"], label=[1.0, float("nan")]), None, r"in\.parquet:2: label is em"),
    ("a label twice", lines('{"text": "w1", "label": "a", "label": "b"}'), None, r"in\.jsonl:1, column 'label': the k"),
    ("a text that is a list", columns(text=[["w1"]], label=["a"]), None, r"in\.parquet:1: text .*; expected a text or"),
    ("class names by other keys", label("a", "b"), config(id2label={"a": "x", "b": "y"}), r"id2label is .*; expected "),
    ("class names as a list", label("a", "b"), config(id2label=["x", "y"]), r"config\.json: id2label is .*; expected "),
    ("class names with a gap", label("a", "b"), config(id2label={"0": "x", "5": "y"}), r"id2label is .*; expected the"),
]  # fmt: skip


def refused(folder: Path, data: Path) -> str:
    def begin() -> None:
        check_finetune(folder, data, OPTIONS, RecordingContext(box_for(folder)))
        hub = open_model(folder)
        write_checkpoint(hub, hub.sizes, data.parent / "checkpoint", keeps_tied=True)

    with pytest.raises(RdukitError) as error:
        begin()
    assert "bad_rows" not in error.value.message, "finetune has no such option"
    return str(error.value.message)


@pytest.mark.parametrize(("write", "words"), [pytest.param(*row[1:], id=row[0]) for row in DATA])
def test_data_are_refused_by_their_place(tmp_path: Path, models: Path, write: Change, words: str) -> None:
    found = refused(models / "llama", Path(str(write(tmp_path))))
    assert re.search(words, found), found


@pytest.mark.parametrize(("change", "words"), [pytest.param(*row[1:], id=row[0]) for row in FOLDERS])
def test_folders_are_refused_by_their_file(tmp_path: Path, models: Path, change: Change, words: str) -> None:
    found = refused(copied(models / "llama", tmp_path / "m", change), Path(str(lines(*chats(12))(tmp_path))))
    assert re.search(words, found), found


@pytest.mark.parametrize(("write", "change", "words"), [pytest.param(*row[1:], id=row[0]) for row in LABELLED])
def test_labelled_texts_are_refused_by_their_place(
    tmp_path: Path, models: Path, write: Change, change: Change | None, words: str
) -> None:
    found = refused(copied(models / "bert", tmp_path / "m", change), Path(str(write(tmp_path))))
    assert re.search(words, found), found


def test_texts_as_json_lines_are_learnt_as_those_of_a_text_file(tmp_path: Path, models: Path) -> None:
    rows = [f"This is text {number}.\n" for number in range(40)]
    folder, files = models / "llama", []
    for name in ("objects", "quotes", "plain"):
        (tmp_path / name).mkdir()
    files.append(lines(*({"text": row} for row in rows))(tmp_path / "objects"))
    files.append(lines(*(json.dumps(row) for row in rows))(tmp_path / "quotes"))
    files.append(text("in.txt", "".join(rows))(tmp_path / "plain"))
    made = []
    for data in files:
        context, work = RecordingContext(box_for(folder)), Path(str(data)).parent
        _prepare(context, _check_request(folder, Path(str(data)), OPTIONS, None), Path(str(data)), work)
        samples = load_token_dataset(work / "data" / "dataset")
        made.append([tokens.tolist() for tokens, _ in TextData(samples).batches(2, 0, 0, 0)])
    assert made[0] == made[1] == made[2] != []


def folders(path: Path, *names: str) -> Path:
    for name in names:
        os.makedirs(path / name)
        for number in range(2):
            Image.new("RGB", (16, 16)).save(path / name / f"{number}.png")
    return path


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (("01", "02", "03"), ChosenClasses(3, ("01", "02", "03"), True)),
        (("1", "2", "3", "4", "5"), ChosenClasses(5, ("1", "2", "3", "4", "5"), True)),
        (tuple(map(str, range(12))),
         ChosenClasses(12, ("0", "1", "10", "11", "2", "3", "4", "5", "6", "7", "8", "9"), False)),
        (("0", "1", "2"), ChosenClasses(3, (), True)),
    ],
)  # fmt: skip
def test_folders_of_numbers_are_named_as_they_are_counted(
    tmp_path: Path, models: Path, names: tuple[str, ...], chosen: ChosenClasses
) -> None:
    assert choose_classes(open_model(models / "vit"), folders(tmp_path / "in", *names)) == chosen
    named = {str(number): f"name {number}" for number in range(chosen.count)}
    other = open_model(copied(models / "vit", tmp_path / "named", config(id2label=named)))
    assert choose_classes(other, tmp_path / "in") == ChosenClasses(chosen.count, tuple(sorted(names)), True)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ((0.0, 1.0, 0.0), ()), (("a ", " b", "a"), ("a", "b")), (("01", "1", "01"), ("01", "1")),
        ((1, 4_000_000_000), ("1", "4000000000")), (("none", "1.0"), ("1", "none")), ((True, False), ("False", "True")),
    ],
)  # fmt: skip
def test_labels_of_texts_are_named_by_their_shortest_form(
    tmp_path: Path, models: Path, values: tuple[object, ...], names: tuple[str, ...]
) -> None:
    data = Path(str(label(*values)(tmp_path)))
    assert choose_classes(open_model(models / "bert"), data) == ChosenClasses(2, names, False)


@pytest.mark.parametrize("place", ["model", "data"])
def test_an_output_inside_of_what_is_read_is_refused(tmp_path: Path, models: Path, place: str) -> None:
    folder = copied(models / "llama", tmp_path / "model")
    (tmp_path / "data").mkdir()
    lines(*chats(12))(tmp_path / "data")
    context = RecordingContext(box_for(folder))
    with pytest.raises(InvalidArgument, match=f"out lies in .*{place}, which it would change; expected --output elsew"):
        finetune(folder, tmp_path / "data", tmp_path / place / "out", OPTIONS, context)
    assert not (tmp_path / place / "out").exists()


def test_there_are_sixty_further_wrong_inputs() -> None:
    tables, pictures = 20, 6  # those of tests/unit/modelbox/test_strange_tables.py and test_strange_pictures.py
    assert len(DATA) + len(FOLDERS) + len(LABELLED) + tables + pictures >= 80

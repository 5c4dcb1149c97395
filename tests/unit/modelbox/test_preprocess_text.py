"""Text files become sequences that training reads, in the layout of generative_data_prep."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import yaml

from rdukit.errors import Cancelled, IllegalValue, InvalidArgument, NotFound
from rdukit.files.atomic import sha256_of_file
from rdukit_modelbox.contract.box import find_box_file, load_box
from rdukit_modelbox.contract.metrics import find_undeclared
from rdukit_modelbox.contract.parts import Verb
from rdukit_modelbox.preprocessing.token_dataset import load_token_dataset
from rdukit_modelbox.preprocessing.tokenizer import END_OF_TEXT, byte_level_tokenizer, learn_tokenizer
from rdukit_modelbox.verbs.context import VerbResult
from rdukit_modelbox.verbs.preprocess import run_preprocess
from support import shows
from support.boxes import RecordingContext

pytestmark = shows("preprocess", "gpt2")

PARAMETERS: dict[str, Any] = {
    "max_seq_length": 16, "input_packing_config": "full", "packing_boundary": "jsonl", "attention_boundary": "jsonl",
    "format": "auto", "pattern": "**/*", "prompt_keyword": "prompt", "completion_keyword": "completion",
    "prompt_prefix": "", "prompt_postfix": "", "disable_space_separator": False, "keep_prompt_only_sequences": False,
    "tokenizer": "byte_level", "vocab_size": 300, "end_of_text": "", "shuffle": "False", "seed": 0,
    "num_training_splits": 1, "dev_ratio": 0.0, "test_ratio": 0.0, "bad_rows": "error",
}  # fmt: skip
END = 256


def recorder(cancel_at: int = 0) -> RecordingContext:
    return RecordingContext(load_box(find_box_file("logreg")), cancel_at=cancel_at)


def preprocess(
    data: Path, output: Path, context: RecordingContext | None = None, tokenizer: Path | None = None, **changed: Any
) -> VerbResult:
    inputs = {"data": data} | ({"tokenizer": tokenizer} if tokenizer else {})
    done = run_preprocess(context or recorder(), {**PARAMETERS, **changed}, inputs, output)
    assert find_undeclared(load_box(find_box_file("gpt2")), Verb.PREPROCESS, done.figures) == []
    return done


def rows_of(output: Path, name: str = "train_1_of_1") -> tuple[list[list[int]], list[list[int]]]:
    with h5py.File(output / "dataset" / f"{name}.hdf5") as file:
        assert file["input_ids"].dtype == file["token_type_ids"].dtype == np.int32
        return file["input_ids"][:].tolist(), file["token_type_ids"][:].tolist()


def write_lines(path: Path, *values: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def articles(path: Path, count: int = 400) -> Path:
    return write_lines(path, *({"prompt": f"{n}?", "completion": f"it is {n}"} for n in range(count)))


def test_prompts_and_completions_become_typed_tokens(tmp_path: Path) -> None:
    data = write_lines(
        tmp_path / "a.jsonl", {"prompt": "ab  ", "completion": "c", "id": 7}, {"completion": ""}, {"completion": "d"}
    )
    done = preprocess(data, tmp_path, max_seq_length=10)
    ids, types = rows_of(tmp_path)
    # One space between prompt and completion, an end after each article, padding with it.
    assert ids == [[*b"ab c", END, *b" d", END, END, END]]
    assert types == [[0, 0, 1, 1, 3, 1, 1, 3, 2, 2]]
    assert done.figures["train_sequences"] == 1
    assert done.figures["padding_share"] == 0.2


def test_a_list_of_pairs_stays_together_unless_its_boundaries_say_otherwise(tmp_path: Path) -> None:
    pairs = [{"prompt": "a", "completion": "b"}, {"prompt": "c", "completion": "d"}]
    data = write_lines(tmp_path / "a.jsonl", pairs)
    preprocess(data, tmp_path / "one", max_seq_length=8, input_packing_config="single::drop")
    assert rows_of(tmp_path / "one")[1] == [[0, 1, 1, 1, 0, 1, 1, 3]]
    preprocess(
        data, tmp_path / "two", max_seq_length=5, input_packing_config="single::drop",
        packing_boundary="prompt_completion_pair", attention_boundary="prompt_completion_pair",
    )  # fmt: skip
    assert rows_of(tmp_path / "two") == ([[*b"a b", END, END], [*b"c d", END, END]], [[0, 1, 1, 3, 2]] * 2)


def test_sequences_of_prompts_alone_are_left_out_unless_kept(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "a.jsonl", {"prompt": "abcdefgh", "completion": "x"}, {"completion": "y"})
    preprocess(data, tmp_path / "out", max_seq_length=4)
    assert [row[:2] for row in rows_of(tmp_path / "out")[0]] == [[*b" x"], [*b"y", END]]
    statistics = load_token_dataset(tmp_path / "out/dataset").manifest["splits"]["train"]["statistics"]
    assert statistics["tokens_dropped_from_all_prompt"] == 8
    preprocess(data, tmp_path / "kept", max_seq_length=4, keep_prompt_only_sequences=True)
    assert len(rows_of(tmp_path / "kept")[0]) == 4


def _as_txt(folder: Path) -> Path:
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbfone\n\ntwo")
    return folder / "a.txt"


def _as_gzip(folder: Path) -> Path:
    folder.mkdir()
    (folder / "a.txt.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    return folder


def _as_csv(folder: Path) -> Path:
    folder.mkdir()
    (folder / "a.csv").write_text('id,completion\n1,"one\n"\n2,"two\n"\n')
    return folder


def _as_parquet(folder: Path) -> Path:
    folder.mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"completion": ["one\n", "two\n"], "n": [1, 2]}), folder / "a.parquet")
    return folder


@pytest.mark.parametrize("make", [_as_txt, _as_gzip, _as_csv, _as_parquet])
def test_the_same_text_in_any_format_gives_the_same_tokens(make: Callable[[Path], Path], tmp_path: Path) -> None:
    preprocess(
        make(tmp_path / "in"),
        tmp_path,
        max_seq_length=5,
        input_packing_config="single::drop",
        disable_space_separator=True,
    )
    ids, types = rows_of(tmp_path)
    assert [bytes(row[:4]) for row in ids] == [b"one\n", b"two\n"]
    assert types == [[1, 1, 1, 1, 3]] * 2


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.jsonl", b'{"completion": "x"}\n\n{"prompt": "y"}\n', r"a\.jsonl:3: Object missing required .*`completion`"),
        ("a.jsonl", b'{"completion": "x"}\n{"completion": 3}\n', r"a\.jsonl:2: Expected `str \| null`, got `int`"),
        ("a.jsonl", b'{"completion": "x"}\n{"compl', r"a\.jsonl:2: .*expected an object with \"completion\""),
        ("a.jsonl", b'{"completion": "x"}\n"text"\n', r"a\.jsonl:2: a text alone"),
        ("a.txt", b"good\nb\xff\xfed\n", r"a\.txt:2: not UTF-8 at byte 1"),
        ("a.csv", b"completion,x\na,1\nb\n", r"a\.csv:3: 1 fields; expected 2 fields"),
    ],
)  # fmt: skip
def test_a_bad_row_is_refused_with_its_place_or_skipped(name: str, content: bytes, place: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidArgument, match=place):
        preprocess(tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out/dataset").exists()
    context = recorder()
    done = preprocess(tmp_path / name, tmp_path / "out", context, bad_rows="skip")
    assert (done.figures["articles"], done.figures["bad_rows"]) == (1, 1)
    assert "omitted 1 bad rows" in context.lines[0]


def test_inputs_that_cannot_be_used_are_refused_with_what_can(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(NotFound, match="no file in"):
        preprocess(tmp_path / "in", tmp_path)
    (tmp_path / "in/a.bin").write_bytes(b"x")
    with pytest.raises(InvalidArgument, match=r"belongs to no format of this box; expected \.txt"):
        preprocess(tmp_path / "in", tmp_path)
    (tmp_path / "in/a.txt").write_text("x\n")
    (tmp_path / "in/a.jsonl").write_text("{}\n")
    with pytest.raises(InvalidArgument, match="mixes jsonl, txt"):
        preprocess(tmp_path / "in", tmp_path)
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InvalidArgument, match=r"no column 'completion'; its columns are a, b"):
        preprocess(tmp_path / "a.csv", tmp_path)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"x\n" * 1000)[:-9])
    with pytest.raises(InvalidArgument, match=r"a\.txt\.gz: not readable after line 1"):
        preprocess(tmp_path / "a.txt.gz", tmp_path)
    with pytest.raises(IllegalValue, match="two different keys"):
        preprocess(articles(tmp_path / "x.jsonl"), tmp_path, prompt_keyword="completion")
    with pytest.raises(IllegalValue, match="2 records do not fill 5 files"):
        preprocess(articles(tmp_path / "x.jsonl", 2), tmp_path, num_training_splits=5)


def test_the_folder_has_what_users_of_generative_data_prep_expect(tmp_path: Path) -> None:
    preprocess(
        articles(tmp_path / "in.jsonl"), tmp_path, num_training_splits=3, dev_ratio=0.25, test_ratio=0.25,
        shuffle="on_RAM",
    )  # fmt: skip
    folder = tmp_path / "dataset"
    metadata = yaml.safe_load((folder / "metadata.yaml").read_text())
    files = {f"{kind}_{n}_of_{of}" for kind, of in (("train", 3), ("dev", 2)) for n in range(1, of + 1)}
    assert {path.stem for path in folder.glob("*.hdf5")} == files
    rows = {name: len(rows_of(tmp_path, name)[0]) for name in files}
    assert max(rows.values()) - min(v for k, v in rows.items() if k.startswith("train")) <= 1
    assert metadata["max_batch_size_train"] == min(v for k, v in rows.items() if k.startswith("train"))
    assert metadata["max_batch_size_dev"] == min(v for k, v in rows.items() if k.startswith("dev"))
    assert (
        metadata["number_of_training_files"],
        metadata["number_of_dev_files"],
        metadata["number_of_test_files"],
    ) == (3, 2, 2)
    assert (metadata["max_seq_length"], metadata["token_type_ids"], metadata["vocab_size"]) == (16, True, 257)
    assert metadata["train_articles"] == pytest.approx(200, abs=2)
    test = [
        json.loads(line)
        for path in sorted((folder / "test_files").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert len(test) == pytest.approx(100, abs=2)
    assert set(test[0]) == {"prompt", "completion"}
    sums = json.loads((folder / "sha256/files_metadata.json").read_text())
    assert set(sums) == {
        p.relative_to(folder).as_posix().replace("/", "_") for p in folder.rglob("*") if p.is_file()
    } - {"sha256_files_metadata.json"}
    for name in ("manifest.json", "train_1_of_3.hdf5", "metadata.yaml"):
        assert sums[name]["sha256"] == sha256_of_file(folder / name)
    assert sums["tokenizer_tokenizer.json"]["size"] == (folder / "tokenizer/tokenizer.json").stat().st_size
    assert not (tmp_path / ".preprocess").exists()


def texts_in(output: Path) -> list[str]:
    decoder = byte_level_tokenizer().tokenizer
    dataset = load_token_dataset(output / "dataset")
    found = []
    for batch in dataset.batches("train", 1, None):
        found.append(decoder.decode(batch.input_ids_BL[0].tolist(), skip_special_tokens=True))
    dataset.close()
    return found


def test_shuffling_keeps_every_article_and_depends_on_the_seed_alone(tmp_path: Path) -> None:
    data = articles(tmp_path / "in.jsonl", 200)
    single = {"input_packing_config": "single::drop", "num_training_splits": 4, "max_seq_length": 24}
    digests = {
        name: preprocess(data, tmp_path / name, shuffle="large_file", seed=seed, **single).figures["digest"]
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    }
    assert digests["a"] == digests["b"] != digests["c"]
    preprocess(data, tmp_path / "kept", **single)
    assert texts_in(tmp_path / "a") != texts_in(tmp_path / "kept")
    assert sorted(texts_in(tmp_path / "a")) == sorted(texts_in(tmp_path / "c")) == sorted(texts_in(tmp_path / "kept"))
    assert texts_in(tmp_path / "kept")[:2] == ["0? it is 0", "4? it is 4"]


def test_a_cancelled_preprocess_goes_on_after_its_last_finished_file(tmp_path: Path) -> None:
    data = articles(tmp_path / "in.jsonl")
    wanted = preprocess(data, tmp_path / "whole", num_training_splits=4, shuffle="on_RAM").figures
    output = tmp_path / "out"
    with pytest.raises(Cancelled):
        preprocess(data, output, recorder(cancel_at=4), num_training_splits=4, shuffle="on_RAM")
    finished = {path: path.stat().st_ino for path in (output / ".preprocess/sequences").glob("*.hdf5")}
    assert 1 <= len(finished) < 4
    assert not (output / "dataset").exists()
    context = recorder(cancel_at=2)
    with pytest.raises(Cancelled):
        preprocess(data, output, context, num_training_splits=4, shuffle="on_RAM")
    assert "read" not in {progress.stage for progress in context.told}
    assert finished == {path: path.stat().st_ino for path in finished}
    done = preprocess(data, output, num_training_splits=4, shuffle="on_RAM")
    assert done.figures == wanted
    context = recorder()
    assert preprocess(data, output, context, num_training_splits=4, shuffle="on_RAM").figures == wanted
    assert "already complete" in context.lines[0]


def test_another_request_starts_anew_and_replaces_the_data_set(tmp_path: Path) -> None:
    data, output = articles(tmp_path / "in.jsonl"), tmp_path / "out"
    with pytest.raises(Cancelled):
        preprocess(data, output, recorder(cancel_at=4), num_training_splits=4)
    preprocess(data, output, num_training_splits=2)
    assert len(list((output / "dataset").glob("*.hdf5"))) == 2
    write_lines(tmp_path / "in.jsonl", {"completion": "other"})
    context = recorder()
    assert preprocess(data, output, context, num_training_splits=1).figures["articles"] == 1
    assert [path.name for path in (output / "dataset").glob("*.hdf5")] == ["train_1_of_1.hdf5"]


def test_progress_tells_rate_and_end(tmp_path: Path) -> None:
    context = recorder()
    preprocess(articles(tmp_path / "in.jsonl"), tmp_path, context)
    last = [progress for progress in context.told if progress.stage == "tokenize"][-1]
    assert (last.step, last.total) == (400, 400)
    assert last.throughput is not None
    assert last.eta_s == 0


def test_a_tokenizer_is_given_or_learned_and_travels_with_the_data(tmp_path: Path) -> None:
    learned = learn_tokenizer(["it is what it is"] * 50, 270)
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer/tokenizer.json").write_bytes(learned.json)
    (tmp_path / "tokenizer/tokenizer_config.json").write_text('{"eos_token": {"content": "is"}}')
    data = articles(tmp_path / "in.jsonl", 50)
    with pytest.raises(IllegalValue, match="has no token 'nothing'"):
        preprocess(data, tmp_path, tokenizer=tmp_path / "tokenizer", end_of_text="nothing")
    preprocess(data, tmp_path / "given", tokenizer=tmp_path / "tokenizer/tokenizer.json", end_of_text=END_OF_TEXT)
    dataset = load_token_dataset(tmp_path / "given/dataset")
    assert dataset.vocab_size == learned.vocabulary <= 270
    assert dataset.end_of_text_id == dataset.tokenizer().token_to_id(END_OF_TEXT)
    dataset.close()
    preprocess(data, tmp_path / "learned", tokenizer=None, vocab_size=280)
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(InvalidArgument, match=r"not a tokenizer\.json"):
        preprocess(data, tmp_path, tokenizer=tmp_path / "bad.json")
    assert preprocess(data, tmp_path / "bpe", **{"tokenizer": None, "vocab_size": 280}).figures["vocab_size"] == 257


def test_batches_come_in_an_order_of_seed_and_epoch_and_can_start_anywhere(tmp_path: Path) -> None:
    preprocess(articles(tmp_path / "in.jsonl"), tmp_path, num_training_splits=3)
    dataset = load_token_dataset(tmp_path / "dataset", verify=True)
    steps = dataset.steps_per_epoch("train", 4)
    epochs = {e: [b.input_ids_BL.tolist() for b in dataset.batches("train", 4, 5, e)] for e in (0, 1)}
    assert len(epochs[0]) == steps > 10
    assert epochs[0] != epochs[1]
    assert [b.input_ids_BL.tolist() for b in dataset.batches("train", 4, 5, 0, start=7)] == epochs[0][7:]
    with pytest.raises(InvalidArgument, match="0 sequences in dev, fewer than a batch of 4"):
        next(dataset.batches("dev", 4, None))
    dataset.close()


def test_a_damaged_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="not a data set"):
        load_token_dataset(tmp_path)
    preprocess(articles(tmp_path / "in.jsonl"), tmp_path)
    shard = tmp_path / "dataset/train_1_of_1.hdf5"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    with pytest.raises(InvalidArgument, match="does not match"):
        load_token_dataset(tmp_path / "dataset")
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(InvalidArgument, match="SHA-256"):
        load_token_dataset(tmp_path / "dataset", verify=True)
    run_preprocess(recorder(), {"normalize": "none", "limit": 5}, {}, tmp_path / "digits")
    with pytest.raises(InvalidArgument, match="not of kind tokens"):
        load_token_dataset(tmp_path / "digits/dataset")


def test_only_line_ends_end_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("a\u2028b\r\nc\x0bd\n".encode())
    preprocess(tmp_path / "a.txt", tmp_path / "txt", input_packing_config="single::drop")
    assert texts_in(tmp_path / "txt") == ["a\u2028b\n", "c\x0bd\n"]
    (tmp_path / "a.csv").write_bytes('completion,n\r\na\u2028b,1\r\n"c\x0b\nd",2\r\n'.encode())
    preprocess(
        tmp_path / "a.csv", tmp_path / "csv", input_packing_config="single::drop", disable_space_separator=True
    )  # fmt: skip
    assert texts_in(tmp_path / "csv") == ["a\u2028b", "c\x0b\nd"]
    (tmp_path / "a.csv").write_text("completion,completion\na,b\n")
    with pytest.raises(InvalidArgument, match=r"a\.csv:1: more than one column is named 'completion'"):
        preprocess(tmp_path / "a.csv", tmp_path / "out")

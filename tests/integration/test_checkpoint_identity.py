"""Checkpoints and PEFs of different models are refused by name, in each verb and at the command line."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from rdukit.errors import InvalidArgument
from rdukit.pef import read_pef
from rdukit.pef.checkpoint_files import read_identity
from rdukit.pef.file import BOX_KEY
from rdukit_serving.device.loaded_model import LoadedModel
from rdukit_serving.device.parameters import load_parameters, match_parameters
from rdukit_serving.text.program import TextProgram
from rdukit_zoo.checkpoints.cli import checkpoint
from rdukit_zoo.checkpoints.folder import save_hub_folder
from rdukit_zoo.registry import get_model
from support import first_short, shows
from support.boxes import run_verb

pytestmark = shows("training", "huggingface", "portable", "checkpoints")

SMALL: dict[str, Any] = {"width": 16, "layers": 1, "heads": 4}


#: Sizes of a llama as options of its box.
CHOSEN: dict[str, Any] = {**SMALL, "key_value_heads": 2, "feed_forward": 32, "vocabulary": 257}


@pytest.fixture(scope="module", autouse=True)
def home(portable_kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A home of the module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def vit(home: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Data set and PEF of a small vit."""
    folder = tmp_path_factory.mktemp("vit")
    return {
        "dataset": run_verb("vit", "preprocess", folder / "data", samples=20).outputs["dataset"],
        "pef": run_verb("vit", "compile", folder / "pef", batch_size=4, **SMALL).outputs["pef"],
    }


@pytest.fixture(scope="module")
def llama_pef(home: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PEF that serves a small llama."""
    folder = tmp_path_factory.mktemp("llama")
    return run_verb("llama", "compile", folder, purpose="serve", precision="f32", **CHOSEN).outputs["pef"]


def run(*words: object) -> Any:
    """Return the outcome of ``rdukit checkpoint`` with these words."""
    return CliRunner().invoke(checkpoint, [str(word) for word in words])


def refused(words: str, call: Callable[[], object]) -> None:
    """Assert that the call is refused with these words."""
    with pytest.raises(InvalidArgument, match=words):
        call()


def test_other_heads_are_refused_in_each_verb_by_both_numbers(vit: dict[str, Path], tmp_path: Path) -> None:
    other, serving = (
        run_verb("vit", "compile", tmp_path / name, batch_size=4, **{**SMALL, "heads": 2, **more}).outputs["pef"]
        for name, more in (("other", {}), ("serve", {"purpose": "serve"}))
    )
    kept = run_verb("vit", "train", tmp_path / "run", vit, max_steps=1).outputs["checkpoint"]
    given = {**vit, "pef": other, "checkpoint": kept}
    words = r"heads \(num_attention_heads\): 4 in the checkpoint .*, 2 in the PEF"
    for verb, more in (
        ("evaluate", {}), ("infer", {}), ("train", {"continue_as": "weights"}), ("train", {"continue_as": "resume"}),
    ):  # fmt: skip
        refused(words, lambda v=verb, m=more: run_verb("vit", v, tmp_path / "no", given, **m))  # type: ignore[misc]
    refused(words, lambda: LoadedModel("vit", serving, kept, {}))
    sizes = [word for name, value in (SMALL | {"heads": 2}).items() for word in ("--size", f"{name}={value}")]
    told = run("convert", kept, tmp_path / "hub", "--model", "vit", *sizes)
    assert told.exit_code and "heads (num_attention_heads): 4 in the checkpoint, 2 in the options" in str(
        told.exception
    )
    assert run("convert", kept, tmp_path / "hub", "--model", "vit").exit_code == 0
    assert json.loads((tmp_path / "hub" / "config.json").read_text())["num_attention_heads"] == 4


def test_a_file_that_says_no_model_loads_with_a_warning_until_it_is_stamped(
    vit: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    entry = get_model("vit")
    torch.manual_seed(0)
    save_file(entry.build(**entry.check_sizes(SMALL)).state_dict(), tmp_path / "plain.safetensors")
    given = {**vit, "checkpoint": tmp_path / "plain.safetensors"}
    before = run_verb("vit", "evaluate", tmp_path / "a", given).figures["held_out_loss"]
    assert [r.message for r in caplog.records if "rdukit checkpoint stamp" in r.message]
    sizes = [word for name, value in SMALL.items() for word in ("--size", f"{name}={value}")]
    file = given["checkpoint"]
    assert "of another shape" in str(run("stamp", file, "--model", "vit").exception)
    assert run("stamp", file, "--model", "vit", *sizes).exit_code == 0
    assert "heads" in str(run("stamp", file, "--model", "vit", *sizes, "--size", "heads=2").exception)
    caplog.clear()
    assert run_verb("vit", "evaluate", tmp_path / "b", given).figures["held_out_loss"] == before
    assert not [r.message for r in caplog.records if "stamp" in r.message]
    assert read_identity(file) == entry.identity(entry.check_sizes(SMALL))
    shown = run("show", file).output
    assert "heads=4" in shown and "vit" in shown


def test_a_folder_that_train_made_can_be_stamped_and_stays_whole(tmp_path: Path) -> None:
    dataset = run_verb("lenet", "preprocess", tmp_path / "data", samples=20).outputs["dataset"]
    pef = run_verb("lenet", "compile", tmp_path / "pef", batch_size=4).outputs["pef"]
    asked = {"pef": pef, "dataset": dataset}
    kept = run_verb("lenet", "train", tmp_path / "run", asked, max_steps=2, checkpoint_every=1, evaluate_every=1)
    folder = kept.outputs["checkpoint"]
    names = [word for name in "abcdefghij" for word in ("--class", name)]
    told = run("stamp", folder, "--model", "lenet", *names)
    assert told.exit_code == 0, told.exception
    for which in ("newest", "previous", "best"):
        step, _ = load_parameters(folder, which)
        assert step in {1, 2}
        identity = read_identity(folder, which)
        assert identity is not None and identity.classes == tuple("abcdefghij")


def hub_llama(folder: Path, **more: Any) -> Any:
    """Write a Hugging Face folder of a random Llama; return its sizes."""
    entry = get_model("llama")
    sizes = entry.check_sizes({**CHOSEN, **more})
    torch.manual_seed(1)
    save_hub_folder(entry.build(**sizes), entry, sizes, folder)
    return sizes


@pytest.mark.parametrize(
    ("name", "value", "words"),
    first_short([
        ("is_tied", False, r"is_tied \(tie_word_embeddings\): false in the checkpoint .*, true in the PEF"),
        ("epsilon", 1e-6, "epsilon: 1e-06 in the checkpoint .*, 1e-05 in the PEF"),
        ("window", 32, r"window \(sliding_window\): 32 in the checkpoint .*, 0 in the PEF"),
    ]),
)  # fmt: skip
def test_a_converted_llama_is_refused_by_what_the_box_computes_otherwise(
    name: str, value: Any, words: str, llama_pef: Path, tmp_path: Path
) -> None:
    sizes = hub_llama(tmp_path / "hub", **{name: value})
    assert run("convert", tmp_path / "hub", tmp_path / "m.safetensors").exit_code == 0
    refused(words, lambda: TextProgram(llama_pef, tmp_path / "m.safetensors"))
    fitting = run_verb(
        "llama", "compile", tmp_path / "fit", purpose="serve", precision="f32", **CHOSEN, **{name: value}
    )
    with TextProgram(fitting.outputs["pef"], tmp_path / "m.safetensors") as program:
        found = program.start([1, 2, 3])
    model = get_model("llama").build(**sizes)
    model.load_state_dict(load_file(tmp_path / "m.safetensors"))
    with torch.no_grad():
        np.testing.assert_allclose(found, model(torch.tensor([[1, 2, 3]]))[0], rtol=1e-3, atol=1e-4)


def test_a_hugging_face_file_without_its_tables_and_one_with_two_heads_are_refused(
    llama_pef: Path, tmp_path: Path
) -> None:
    hub_llama(tmp_path / "hub")
    refused(
        "no tensor for .*rotary.*rdukit checkpoint convert",
        lambda: TextProgram(llama_pef, tmp_path / "hub" / "model.safetensors"),
    )
    assert run("convert", tmp_path / "hub", tmp_path / "m.safetensors").exit_code == 0
    tensors = load_file(tmp_path / "m.safetensors")
    save_file({**tensors, "lm_head.weight": tensors["lm_head.weight"] + 1}, tmp_path / "untied.safetensors")
    refused("tie_word_embeddings", lambda: TextProgram(llama_pef, tmp_path / "untied.safetensors"))
    loaded = read_pef(llama_pef).pef
    said = {k: v for k, v in json.loads(loaded.metadata[BOX_KEY]).items() if k not in {"identity", "buffers", "tied"}}
    earlier = replace(loaded, metadata={**loaded.metadata, BOX_KEY: json.dumps(said)})
    assert match_parameters(earlier, tensors) == match_parameters(loaded, tensors)
    stored = load_file(tmp_path / "hub" / "model.safetensors")
    refused("no tensor for .*rotary", lambda: match_parameters(earlier, stored))


def test_classes_of_texts_travel_with_the_checkpoint(tmp_path: Path) -> None:
    lines = [f"good day {n},pos\nbad day {n},neg" for n in range(10)]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    small: dict[str, Any] = {"context_length": 24, "num_classes": 2}
    columns = {"text_column": "text", "label_column": "label"}
    data = {"data": tmp_path / "texts.csv"}
    made = run_verb("bert-classifier", "preprocess", tmp_path / "data", data, **small, **columns)
    pef = run_verb("bert-classifier", "compile", tmp_path / "pef", batch_size=4, **small).outputs["pef"]
    asked = {"pef": pef, "dataset": made.outputs["dataset"]}
    kept = run_verb("bert-classifier", "train", tmp_path / "run", asked, max_steps=1).outputs["checkpoint"]
    identity = read_identity(kept)
    assert identity is not None and (identity.classes, identity.tokenizer) == (("neg", "pos"), "bytes")
    assert (
        run("convert", kept, tmp_path / "hub", "--model", "bert_classifier", "--size", "context_length=24").exit_code
        == 0
    )
    assert json.loads((tmp_path / "hub" / "config.json").read_text())["id2label"] == {"0": "neg", "1": "pos"}
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *lines]).replace("pos", "awful") + "\n")
    other = run_verb("bert-classifier", "preprocess", tmp_path / "other", data, **small, **columns)
    asked |= {"dataset": other.outputs["dataset"], "checkpoint": kept}
    refused(
        "classes: neg, pos in the checkpoint .*, awful, neg in the PEF with its data set",
        lambda: run_verb("bert-classifier", "evaluate", tmp_path / "no", asked),
    )

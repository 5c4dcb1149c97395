"""``rdukit finetune --job``: the box that fine-tunes a folder, checks before a request is sent, and a job."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file

from rdukit.errors import Conflict, InvalidArgument
from rdukit_modelbox.cli.finetune import finetune
from rdukit_modelbox.contract.box import Verb, find_box_file, load_box
from rdukit_modelbox.contract.check_parameters import check_parameters
from rdukit_modelbox.contract.metrics import find_undeclared
from rdukit_modelbox.finetune.job import options_of, parameters_of, run_finetune
from rdukit_modelbox.finetune.options import FinetuneOptions
from support import shows
from support.boxes import RecordingContext
from support.forked import run_rdukit_forked
from support.hub_folders import CONTEXT, write_data, write_model
from support.platform.processes import platform_under_test, short_folder

pytestmark = shows("finetune")

pytest.importorskip("transformers", reason="the extra `models` is not installed")

WORDS = ("--context", str(CONTEXT), "--max-steps", "2", "--lora", "2", "--lora-layers", "q_proj,v_proj")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))
    write_model(tmp_path / "model", "llama")
    return tmp_path


def test_the_box_trains_a_folder_and_continues_an_attempt(folder: Path) -> None:
    box = load_box(find_box_file("finetune"))
    asked = FinetuneOptions(lora=2, lora_layers=("q_proj", "v_proj"), context=CONTEXT, max_steps=2)
    assert options_of(check_parameters(box, Verb.TRAIN, parameters_of(asked))) == asked
    parameters = check_parameters(box, Verb.TRAIN, parameters_of(asked))
    inputs, output = {"folder": folder / "model", "data": write_data(folder)}, folder / "out"
    output.mkdir()
    made = run_finetune(RecordingContext(box), parameters, inputs, output)
    assert not find_undeclared(box, Verb.TRAIN, made.figures)
    assert {"held_out_loss", "held_out_loss_before", "perplexity"} <= set(made.figures)
    assert sorted(made.outputs) == sorted(slot.name for slot in box.slots_of(Verb.TRAIN).outputs)
    first = load_file(made.outputs["folder"] / "model.safetensors")
    context = RecordingContext(box)
    again = run_finetune(context, parameters, inputs, output)
    assert again.figures == made.figures
    assert any("resumed from step 2" in line for line in context.lines)
    second = load_file(again.outputs["folder"] / "model.safetensors")
    assert all(second[name].equal(value) for name, value in first.items())


def test_an_adapter_brings_its_base_as_an_input(folder: Path) -> None:
    box = load_box(find_box_file("finetune"))
    adapter = folder / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folder / "model")}))
    with pytest.raises(InvalidArgument, match="the input folder is an adapter; expected its base as the input base"):
        run_finetune(
            RecordingContext(box), check_parameters(box, Verb.TRAIN, {}),
            {"folder": adapter, "data": write_data(folder)}, folder / "out",
        )  # fmt: skip


def test_what_cannot_be_used_is_refused_before_anything_is_sent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setenv("RDUKIT_GATEWAY_URL", "http://127.0.0.1:9")  # nothing listens there
    bad = folder / "bad.jsonl"
    bad.write_text('{"prompt": "a", "completion": "b"}\n' * 3 + '{"prompt": "a"}\n')
    words = [str(folder / "model"), str(bad), "--output", str(folder / "out"), "--job", *WORDS]
    with pytest.raises(InvalidArgument, match=r"bad\.jsonl.*4"):
        CliRunner().invoke(finetune, words, catch_exceptions=False)
    (folder / "out").mkdir()
    with pytest.raises(Conflict, match="out exists already"):
        CliRunner().invoke(finetune, words, catch_exceptions=False)


@pytest.mark.long
def test_a_job_of_the_platform_becomes_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, out = write_data(folder), folder / "out"
    words = ["finetune", str(folder / "model"), str(data), "--output", str(out), "--job", "--json", *WORDS]
    with short_folder() as home, platform_under_test(home, None, {"RDUKIT_KERNELS": "portable"}) as platform:
        monkeypatch.setenv("RDUKIT_HOME", str(home))
        done = run_rdukit_forked(words, timeout_s=600.0)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert (told["steps"], told["folder"]) == (2, str(out))
        assert json.loads((out / "finetune.json").read_text())["reached"]["steps"] == 2
        assert not (out / ".finetune").exists()
        for name in ("config.json", "model.safetensors", "tokenizer.json", "adapter/adapter_config.json"):
            assert (out / name).is_file(), name
        (job,) = platform.client.get("/v1/jobs")["jobs"]
        assert (job["box"], job["verb"], job["state"]) == ("finetune", "train", "succeeded")
        assert any("loss" in point["values"] for point in platform.client.metrics(job["id"]))

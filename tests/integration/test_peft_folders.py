"""Adapters as PEFT writes them: trained on, merged into their base, and refused with what was expected.

Numbers are in f32: a merged weight differs from torch's own sum by 1e-6, a held-out loss by 1e-5.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from rdukit.errors import Conflict, InvalidArgument, NotFound
from rdukit_modelbox.finetune.export import merge_folder
from rdukit_modelbox.finetune.options import FinetuneOptions
from rdukit_modelbox.finetune.peft_folder import read_peft_folder
from rdukit_modelbox.finetune.run import box_for, open_model
from rdukit_modelbox.finetune.run import finetune as run
from rdukit_zoo.checkpoints.cli import checkpoint
from support import shows
from support.boxes import RecordingContext
from support.hub_folders import CONTEXT, losses_of_transformers, our_losses, write_data, write_model

pytestmark = shows("finetune", "checkpoints")

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

LAYERS = ("model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj")
RANK, ALPHA = 4, 6.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))
    return tmp_path


def write_adapter(folder: Path, base: Path | str, **changes: Any) -> Path:
    """Write updates of both layers' queries in PEFT's format."""
    folder.mkdir()
    torch.manual_seed(1)
    tensors = {}
    for layer in LAYERS:
        tensors[f"base_model.model.{layer}.lora_A.weight"] = torch.randn(RANK, 32) / 8
        tensors[f"base_model.model.{layer}.lora_B.weight"] = torch.randn(32, RANK) / 8
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(base), "r": RANK,
        "lora_alpha": ALPHA, "target_modules": ["q_proj"], "bias": "none", **changes,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_an_adapter_is_merged_into_its_base_in_the_bases_dtype(folder: Path) -> None:
    model = write_model(folder / "model", "llama").to(torch.bfloat16)
    model.save_pretrained(folder / "model")
    adapter = write_adapter(folder / "adapter", folder / "model")
    done = CliRunner().invoke(checkpoint, ["merge", str(adapter), str(folder / "merged")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "llama of" in done.output
    assert "the updates of 2 layers" in done.output
    wanted, updates = model.state_dict(), load_file(adapter / "adapter_model.safetensors")
    for layer in LAYERS:
        down, up = (updates[f"base_model.model.{layer}.lora_{half}.weight"] for half in "AB")
        weight = wanted[f"{layer}.weight"].float() + ALPHA / RANK * (up @ down)
        wanted[f"{layer}.weight"] = weight.to(torch.bfloat16)
    found = transformers.AutoModelForCausalLM.from_pretrained(folder / "merged", dtype="auto").state_dict()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name
    for name in ("tokenizer.json", "LICENSE.txt", "generation_config.json"):
        assert (folder / "merged" / name).is_file(), name
    with pytest.raises(Conflict, match="exists already; name another target"):
        merge_folder(adapter, folder / "merged")


def test_a_training_goes_on_from_an_adapter_beside_its_frozen_base(folder: Path) -> None:
    write_model(folder / "model", "llama")
    adapter, data = write_adapter(folder / "adapter", folder / "model"), write_data(folder)
    box = box_for(adapter)
    context = RecordingContext(box)
    first = run(adapter, data, folder / "one", FinetuneOptions(context=CONTEXT, max_steps=4, lr=0.01), context)
    assert first.trained_parameters == len(LAYERS) * RANK * 64
    assert first.after["held_out_loss"] < first.before["held_out_loss"]
    assert (folder / "one" / "metrics.csv").read_text().startswith("step,loss,lr,")
    (said,) = [line for line in context.lines if line.startswith("llama: ")]
    assert "width 32" in said
    assert "window" not in said, "a size that is the default is not printed"
    config = json.loads((folder / "one" / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (RANK, ALPHA, ["self_attn.q_proj"])
    options = FinetuneOptions(context=CONTEXT, max_steps=1, lora=RANK)
    second = run(folder / "one" / "adapter", data, folder / "two", options, RecordingContext(box))
    assert second.before["held_out_loss"] == pytest.approx(first.after["held_out_loss"], abs=1e-5)
    merge_folder(folder / "one" / "adapter", folder / "merged")
    merged, written = (load_file(folder / name / "model.safetensors") for name in ("merged", "one"))
    for name, value in written.items():
        torch.testing.assert_close(merged[name], value, atol=1e-6, rtol=1e-6)


def test_layers_are_chosen_and_a_box_checkpoint_with_updates_is_merged(folder: Path) -> None:
    write_model(folder / "model", "llama")
    options = FinetuneOptions(lora=2, lora_layers=("v_proj",), context=CONTEXT, max_steps=2, lr=0.01)
    box = box_for(folder / "model")
    made = run(folder / "model", write_data(folder), folder / "out", options, RecordingContext(box))
    assert made.trained_parameters == 2 * 2 * (32 + 16)
    trained = folder / "out" / ".finetune" / "train" / "checkpoint"
    merge_folder(trained, folder / "merged", folder / "model")
    merged, written = (load_file(folder / name / "model.safetensors") for name in ("merged", "out"))
    for name, value in written.items():
        torch.testing.assert_close(merged[name], value, atol=1e-6, rtol=1e-6)
    with pytest.raises(InvalidArgument, match=r"has no adapter_config\.json; name the folder of its base weights"):
        merge_folder(trained, folder / "other")
    shutil.copytree(folder / "merged", folder / "written")
    with pytest.raises(InvalidArgument, match=r"was trained with other base weights than .*written: .* differs"):
        merge_folder(trained, folder / "other", folder / "written")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_dora": True}, "use_dora is True, which is not supported; expected False"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"r": 0}, "r is 0"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern is"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', which changes the base's weights; expected"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens is .1., which is not supported"),
        ({"lora_alpha": None}, "adapter_config.json is damaged"),
        (
            {"base_model_name_or_path": "meta/llama"},
            "is 'meta/llama', which is not a local folder with config.json; name",
        ),
    ],
)
def test_an_adapter_that_cannot_be_used_is_refused_by_its_option(
    folder: Path, changes: dict[str, Any], words: str
) -> None:
    write_model(folder / "model", "llama")
    adapter = write_adapter(folder / "adapter", folder / "model", **changes)
    with pytest.raises((InvalidArgument, NotFound), match=words):
        merge_folder(adapter, folder / "merged")
    assert not (folder / "merged").exists()


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"x.lora_A.weight": torch.ones(4, 32)}, "x.lora_A.weight does not belong to llama; expected"),
        ({f"{LAYERS[0]}.lora_A.weight": torch.ones(4, 32)}, r"q_proj lacks a half; expected"),
        ({f"{LAYERS[0]}.lora_A.weight": torch.ones(4, 31)}, r"has the shape \[4, 31\]; the model has \[4, 32\]"),
        ({f"{LAYERS[0]}.lora_A.weight": torch.ones(4, 32), f"{LAYERS[0]}.lora_B.weight": torch.ones(32, 3)},
         r"its ranks are \[3, 4\]; expected"),
    ],
)  # fmt: skip
def test_tensors_that_are_no_updates_of_the_model_are_refused(
    folder: Path, tensors: dict[str, torch.Tensor], words: str
) -> None:
    write_model(folder / "model", "llama")
    adapter = write_adapter(folder / "adapter", folder / "model")
    save_file({f"base_model.model.{n}": v for n, v in tensors.items()}, adapter / "adapter_model.safetensors")
    with pytest.raises(InvalidArgument, match=words):
        read_peft_folder(adapter, open_model(adapter))


@pytest.mark.parametrize("part", ["lora_A.weight", "weight"])
def test_an_adapter_of_one_of_two_equal_tensors_is_refused(folder: Path, part: str) -> None:
    write_model(folder / "model", "llama-tied")
    adapter = write_adapter(folder / "adapter", folder / "model", modules_to_save=["lm_head"])
    save_file({f"base_model.model.lm_head.{part}": torch.ones(4, 32)}, adapter / "adapter_model.safetensors")
    with pytest.raises(InvalidArgument, match=r"lm_head.*changes one of the tensors that the base ties"):
        merge_folder(adapter, folder / "merged")


def test_what_an_adapter_fixes_is_not_asked_for_otherwise(folder: Path) -> None:
    write_model(folder / "model", "llama")
    adapter, data = write_adapter(folder / "adapter", folder / "model"), write_data(folder)
    context = RecordingContext(box_for(adapter))
    with pytest.raises(InvalidArgument, match=r"--lora is 8, but the adapter .* has rank 4"):
        run(adapter, data, folder / "out", FinetuneOptions(lora=8), context)
    with pytest.raises(InvalidArgument, match="sets its own layers and alpha, 6"):
        run(adapter, data, folder / "out", FinetuneOptions(lora_alpha=3.0), context)
    with pytest.raises(InvalidArgument, match="--base is only for an adapter"):
        open_model(folder / "model", folder / "model")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*:FutureWarning")  # peft's own
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_peft_reads_the_adapter_and_trains_with_the_same_losses(folder: Path, kind: str) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    write_model(folder / "model", kind)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    targets = ["c_attn"] if kind == "gpt2" else ["q_proj", "v_proj"]
    config = peft.LoraConfig(
        r=RANK, lora_alpha=ALPHA, target_modules=targets, task_type="CAUSAL_LM", fan_in_fan_out=kind == "gpt2"
    )
    model = peft.get_peft_model(base, config)
    model.save_pretrained(folder / "adapter")
    options = FinetuneOptions(context=CONTEXT, epochs=9, max_steps=12, lr=0.01)
    box = box_for(folder / "adapter")
    run(folder / "adapter", write_data(folder), folder / "out", options, RecordingContext(box))
    updates = [value for name, value in model.named_parameters() if "lora_" in name]
    theirs = losses_of_transformers(model.train(), folder / "out", 0.01, lambda _: updates)
    assert our_losses(folder / "out") == pytest.approx(theirs, abs=1e-3)
    fresh = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    read = peft.PeftModel.from_pretrained(fresh, folder / "out" / "adapter").eval()
    merged = transformers.AutoModelForCausalLM.from_pretrained(folder / "out").eval()
    tokens = torch.arange(2, 22)[None]
    with torch.no_grad():
        torch.testing.assert_close(read(tokens).logits, merged(tokens).logits, atol=1e-5, rtol=1e-5)

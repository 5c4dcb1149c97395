"""LoRA on GPT-2: the losses of eager torch, frozen weights, and one checkpoint for every kind of PEF."""

import json
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
import torch

from rdukit.errors import InvalidArgument
from rdukit.pef import read_pef
from rdukit_modelbox.tasks.adapters import ADAPTER_PARTS, add_adapters, fit_adapters
from rdukit_modelbox.tasks.texts import open_texts
from rdukit_serving.device.parameters import load_parameters, merge_adapters
from rdukit_serving.shape import shape_of
from rdukit_zoo.registry import get_model
from sambaflow.samba import utils
from support import shows
from support.boxes import run_verb

pytestmark = [shows("training", "gpt2"), pytest.mark.long]

RANK, ALPHA, STEPS, BATCH = 4, 8.0, 15, 8
SIZES: dict[str, Any] = {
    "width": 32, "layers": 2, "heads": 2, "vocabulary": 257, "context_length": 32, "prompt_length": 16,
    "precision": "f32", "batch_size": BATCH,
}  # fmt: skip
RATES = {"lr": 0.01, "schedule": "constant", "warmup_steps": 0, "epochs": 9, "max_steps": STEPS}


@pytest.fixture(autouse=True)
def portable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kernels that need no compiler, and a home of its own."""
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))


def compiled(folder: Path, **options: Any) -> Path:
    return run_verb("gpt2", "compile", folder, clip_gradients=False, **SIZES, **options).outputs["pef"]


def test_adapters_train_as_in_eager_torch_and_the_checkpoint_fits_every_pef(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "debugger.txt").write_text(topics["debugger"], encoding="utf-8")
    made = run_verb("gpt2", "preprocess", tmp_path / "data", {"data": tmp_path / "texts"}, max_seq_length=32)
    dataset = made.outputs["dataset"]
    full = compiled(tmp_path / "full")
    adapted = compiled(tmp_path / "adapted", lora_rank=RANK, lora_alpha=ALPHA)
    with pytest.raises(InvalidArgument, match="needs frozen weights; pass the input checkpoint"):
        run_verb("gpt2", "train", tmp_path / "none", {"pef": adapted, "dataset": dataset}, **RATES)
    base = run_verb("gpt2", "train", tmp_path / "base", {"pef": full, "dataset": dataset}, **RATES).outputs[
        "checkpoint"
    ]
    inputs = {"pef": adapted, "dataset": dataset, "checkpoint": base}
    tuned = run_verb("gpt2", "train", tmp_path / "tuned", inputs, continue_as="weights", **RATES)
    lines = [json.loads(line) for line in tuned.outputs["metrics"].read_text().splitlines()]
    losses = [line["loss"] for line in lines if "lr" in line]

    entry = get_model("gpt2")
    utils.set_seed(0)
    shape = shape_of(read_pef(adapted).pef, "gpt2")
    model = entry.build(**entry.check_sizes(shape.sizes))
    add_adapters(model, RANK, ALPHA, 257)
    before = dict(load_parameters(base)[1])
    model.load_state_dict(dict(fit_adapters(before, {k: v.clone() for k, v in model.state_dict().items()})))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert sum(p.numel() for p in trained) < 0.2 * sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.AdamW(trained, 0.01, betas=(0.9, 0.95), weight_decay=0.01)
    expected = []
    for batch, _ in zip(open_texts(shape, dataset).batches(BATCH, 0, 0, 0), range(STEPS), strict=False):
        optimizer.zero_grad()
        loss = model(*map(torch.from_numpy, batch))
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    np.testing.assert_allclose(losses, expected, rtol=1e-3)

    after = load_parameters(tuned.outputs["checkpoint"])[1]
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert any(after[name].any() for name in after if name.endswith("lora_B"))
    merged = merge_adapters(after)
    assert merged.keys() == before.keys()
    assert any(not torch.equal(merged[name], value) for name, value in before.items())
    serving = compiled(tmp_path / "serve", purpose="serve")
    found = [
        run_verb(
            "gpt2", "infer", tmp_path / f"judged-{number}",
            {"pef": pef, "dataset": dataset, "checkpoint": tuned.outputs["checkpoint"]}, limit=4,
        ).figures["perplexity"]
        for number, pef in enumerate((adapted, full, serving))
    ]  # fmt: skip
    assert found == pytest.approx([found[0]] * 3, rel=1e-4)
    inputs["checkpoint"] = tuned.outputs["checkpoint"]
    judged = run_verb("gpt2", "evaluate", tmp_path / "evaluated", inputs).figures
    assert {name: judged[name] for name in ("held_out_loss", "perplexity", "split")} == {
        name: tuned.figures[name] for name in ("held_out_loss", "perplexity", "split")
    }


def test_a_rank_that_saves_nothing_and_a_broken_adapter_are_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    with pytest.raises(InvalidArgument, match="lora_rank is 4; expected 0 to 3"):
        add_adapters(model, 4, 8.0, 0)
    with pytest.raises(InvalidArgument, match="no linear layer"):
        add_adapters(torch.nn.Sequential(torch.nn.Conv2d(1, 1, 3)), 1, 8.0, 0)
    add_adapters(model, 2, 8.0, 0)
    state = dict(model.state_dict())
    assert {name for name in state if name.endswith(ADAPTER_PARTS)} == {"0.lora_A", "0.lora_B", "0.lora_scale"}
    x, wanted = torch.randn(3, 8), torch.nn.Sequential(torch.nn.Linear(8, 4))
    with torch.no_grad():
        model[0].lora_B.normal_()  # type: ignore[operator, union-attr]
    wanted.load_state_dict(dict(merge_adapters(model.state_dict())))
    torch.testing.assert_close(wanted(x), model(x))
    del state["0.lora_B"]
    with pytest.raises(InvalidArgument, match=r"adapter for 0 without '0\.lora_B'"):
        merge_adapters(state)

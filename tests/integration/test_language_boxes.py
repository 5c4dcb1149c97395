"""Boxes of language models: trained with one PEF, served with another, held against plain torch; published variants."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from rdukit.errors import InvalidArgument
from rdukit_modelbox.contract.box import find_box_file, load_box
from rdukit_modelbox.contract.models import chosen_sizes, entry_of
from rdukit_serving.device.parameters import load_parameters
from rdukit_serving.text.program import TextProgram, generate_all
from rdukit_serving.text.sampling import Sampler, SamplingOptions
from rdukit_zoo.language.decoder import Decoder, generate_by_recomputing
from rdukit_zoo.registry import get_model
from support import first_short, shows
from support.boxes import run_verb

pytestmark = [
    shows("bloom", "deepseek-coder", "falcon", "genslm", "gpt2", "llama2", "llama3", "mistral", "training", "portable"),
    pytest.mark.long,
]

BOXES = ("bloom", "deepseek-coder", "falcon", "genslm", "gpt2", "llama2", "llama3", "mistral")
TINY: dict[str, Any] = {
    "width": 32, "layers": 2, "heads": 2, "vocabulary": 300, "context_length": 24, "prompt_length": 8, "batch_size": 4,
}  # fmt: skip


@pytest.fixture(autouse=True)
def portable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that need no compiler."""
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    lines = [{"prompt": f"{i} and {j}:", "completion": f"{i + j}"} for i in range(12) for j in range(6)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = run_verb(
        "gpt2", "preprocess", folder / "data", {"data": folder / "sums.jsonl"}, max_seq_length=24,
        input_packing_config="greedy::drop", dev_ratio=0.2,
    )  # fmt: skip
    return made.outputs["dataset"]


@pytest.mark.parametrize("name", first_short(BOXES))
def test_a_box_trains_and_generates_what_plain_torch_does(name: str, dataset: Path, tmp_path: Path) -> None:
    box = load_box(find_box_file(name))
    pefs = {
        purpose: run_verb(name, "compile", tmp_path / purpose, purpose=purpose, **TINY).outputs["pef"]
        for purpose in ("train", "serve")
    }
    torch.manual_seed(7)
    entry = entry_of(box)
    sizes = {key: value for key, value in TINY.items() if key != "batch_size"}
    model = entry.build(**chosen_sizes(box, entry, {"variant": "tiny", **sizes}))
    assert isinstance(model, Decoder)
    for parameter in model.parameters():  # so large that attention decides
        torch.nn.init.normal_(parameter, std=0.3)
    save_file({key: value.clone() for key, value in model.state_dict().items()}, tmp_path / "start.safetensors")
    trained = run_verb(
        name, "train", tmp_path / "run",
        {"pef": pefs["train"], "dataset": dataset, "checkpoint": tmp_path / "start.safetensors"},
        max_steps=6, epochs=9, lr=0.01, warmup_steps=0, continue_as="weights",
    )  # fmt: skip
    lines = [json.loads(line) for line in trained.outputs["metrics"].read_text().splitlines()]
    losses = [line["loss"] for line in lines if "lr" in line]
    assert len(losses) == 6 and losses[-1] < losses[0]
    model.load_state_dict(dict(load_parameters(trained.outputs["checkpoint"])[1]))
    model.eval()
    with TextProgram(pefs["serve"], trained.outputs["checkpoint"], is_raw=True) as program:
        for size in (3, 8, 11):
            torch.manual_seed(size)
            prompt = torch.randint(257, (1, size))
            greedy = Sampler(SamplingOptions(temperature=0.0))
            ((_, found),) = generate_all(program, [(prompt[0].tolist(), greedy)], 8)
            assert found == generate_by_recomputing(model, prompt, 8)


@pytest.mark.parametrize("name", BOXES)
def test_a_variant_has_its_published_sizes_and_the_context_that_is_asked_for(name: str) -> None:
    box = load_box(find_box_file(name))
    entry = get_model(str(box.model))
    (parameter,) = (p for p in box.parameters if p.name == "variant")
    assert set(parameter.legal.enum or ()) <= {"tiny", *entry.variants}
    for variant in set(parameter.legal.enum or ()) - {"tiny"}:
        asked = {p.name: p.default for p in box.parameters if "compile" in p.verbs}
        found = chosen_sizes(box, entry, {**asked, "variant": variant, "context_length": 64, "prompt_length": 16})
        assert found == {**entry.sizes_of(str(variant)), "context_length": 64, "prompt_length": 16}


def test_sizes_beside_a_variant_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="valid only when variant is tiny"):
        run_verb("gpt2", "compile", tmp_path, variant="small", width=128)

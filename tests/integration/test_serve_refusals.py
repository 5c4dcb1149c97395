"""``rdukit serve`` as a program, given a checkpoint of another model: it ends and names what differs."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from rdukit.pef.identity import metadata_of
from rdukit_modelbox.preprocessing.tokenizer import byte_level_tokenizer
from rdukit_zoo.registry import get_model
from support import shows
from support.boxes import run_verb

pytestmark = shows("serve", "checkpoints", "llama")

RDUKIT = Path(sys.executable).with_name("rdukit")
SIZES: dict[str, Any] = {
    "width": 16, "layers": 1, "heads": 4, "key_value_heads": 2, "feed_forward": 16, "vocabulary": 257,
    "context_length": 32, "prompt_length": 16, "is_tied": False,
}  # fmt: skip
#: Sizes of the other checkpoint → words of the refusal. Shapes of all tensors are those of the PEF's model.
OTHERS: dict[str, dict[str, Any]] = {
    "heads": {"heads": 2, "key_value_heads": 1}, "epsilon": {"epsilon": 1e-6}, "window": {"window": 8},
    "rotary_base": {"rotary_base": 5e5},
}  # fmt: skip


@pytest.fixture(scope="module")
def pef(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama that answers texts, by kernels that need no compiler."""
    folder = tmp_path_factory.mktemp("refusals")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_KERNELS", "portable")
        patch.setenv("RDUKIT_HOME", str(folder / "home"))
        return Path(run_verb("llama", "compile", folder, purpose="serve", **SIZES).outputs["pef"])


def refusal(pef: Path, checkpoint: Path) -> str:
    """Return what the program says as it ends."""
    home = pef.parent / "home"
    checkpoint.with_name("tokenizer.json").write_bytes(byte_level_tokenizer().json)
    ended = subprocess.run(
        [RDUKIT, "serve", pef, "--checkpoint", checkpoint, "--rest-port", "0", "--grpc-port", "0"],
        env={**os.environ, "RDUKIT_KERNELS": "portable", "RDUKIT_HOME": str(home)},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert ended.returncode not in (0, 1), ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stderr


def weights(name: str, sizes: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return a model's parameters and tables."""
    return {key: value.clone() for key, value in get_model(name).build(**sizes).state_dict().items()}


@pytest.mark.parametrize("size", [pytest.param(s, marks=() if s == "epsilon" else pytest.mark.long) for s in OTHERS])
def test_a_checkpoint_of_other_sizes_is_refused_by_their_names(pef: Path, tmp_path: Path, size: str) -> None:
    entry = get_model("llama")
    other = {**SIZES, **OTHERS[size]}
    state = weights("llama", SIZES)
    save_file(state, tmp_path / "other.safetensors", metadata_of(entry.identity(other)))
    said = refusal(pef, tmp_path / "other.safetensors")
    assert size in said and "other.safetensors" in said


def without_a_weight(state: dict[str, torch.Tensor]) -> str:
    name = next(key for key in state if key.endswith("q_proj.weight"))
    del state[name]
    return name


def with_another_shape(state: dict[str, torch.Tensor]) -> str:
    name = next(key for key in state if key.endswith("q_proj.weight"))
    state[name] = state[name][:8].contiguous()
    return name


@pytest.mark.long
@pytest.mark.parametrize("damage", [without_a_weight, with_another_shape])
def test_a_checkpoint_that_lacks_a_weight_or_has_another_shape_is_refused_by_its_name(
    pef: Path, tmp_path: Path, damage: Callable[[dict[str, torch.Tensor]], str]
) -> None:
    state = weights("llama", SIZES)
    name = damage(state)
    save_file(state, tmp_path / "partial.safetensors", metadata_of(get_model("llama").identity(SIZES)))
    assert name.replace(".", "__") in refusal(pef, tmp_path / "partial.safetensors")


@pytest.mark.long
def test_a_checkpoint_of_another_model_is_refused_by_its_name(pef: Path, tmp_path: Path) -> None:
    entry = get_model("gpt2")
    sizes = {key: value for key, value in SIZES.items() if key in entry.sizes}
    save_file(weights("gpt2", sizes), tmp_path / "gpt2.safetensors", metadata_of(entry.identity(sizes)))
    said = refusal(pef, tmp_path / "gpt2.safetensors")
    assert "gpt2" in said and "llama" in said

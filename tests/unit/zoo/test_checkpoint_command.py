"""``rdukit checkpoint``: show, diff and convert, on files and folders of a small GPT-2."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from rdukit.errors import Conflict, InvalidArgument, NotFound
from rdukit.pef.checkpoint_files import PREFIX, TRAINING_KEY, read_header
from rdukit_zoo.checkpoints.cli import checkpoint
from rdukit_zoo.checkpoints.folder import drawing_nothing, save_hub_folder
from rdukit_zoo.registry import get_model
from support import shows

pytestmark = shows("checkpoint", "checkpoints", "huggingface", "gpt2")

SIZES = {"width": 8, "layers": 1, "heads": 2, "vocabulary": 11, "context_length": 6, "prompt_length": 4}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as transformers writes it."""
    entry = get_model("gpt2")
    torch.manual_seed(0)
    sizes = entry.check_sizes(SIZES)
    save_hub_folder(entry.build(**sizes), entry, sizes, tmp_path / "folder")
    return tmp_path / "folder"


def run(*arguments: object, raises: bool = True) -> Result:
    return CliRunner().invoke(checkpoint, [str(a) for a in arguments], catch_exceptions=not raises)


def test_show_says_which_model_and_lists_the_tensors(folder: Path) -> None:
    found = json.loads(run("show", folder, "--json").output)
    assert (found["model"], found["architecture"], found["tensors"]) == ("gpt2", "GPT2LMHeadModel", 16)
    assert {"name": "transformer.wte.weight", "shape": [11, 8], "dtype": "float32"} in found["listed"]
    assert "transformer.h.0.attn.c_attn.weight" in run("show", folder).output


def test_a_folder_becomes_a_file_and_the_file_the_same_folder_again(folder: Path, tmp_path: Path) -> None:
    assert "of gpt2" in run("convert", folder, tmp_path / "file.safetensors").output
    assert load_file(tmp_path / "file.safetensors")["transformer.h.0.attn.c_attn.weight"].shape == (24, 8)
    sizes = [word for key, value in SIZES.items() for word in ("--size", f"{key}={value}")]
    run("convert", tmp_path / "file.safetensors", tmp_path / "again", "--model", "gpt2", *sizes)
    assert run("diff", folder, tmp_path / "again").output == "16 tensors are the same\n"
    assert (folder / "config.json").read_text() == (tmp_path / "again" / "config.json").read_text()
    with pytest.raises(Conflict, match="exists already"):
        run("convert", folder, tmp_path / "again")
    with pytest.raises(InvalidArgument, match="name its model of the zoo by --model"):
        run("convert", tmp_path / "file.safetensors", tmp_path / "other")
    with pytest.raises(InvalidArgument, match="width: 8 in the checkpoint, 16 in the options"):
        run("convert", tmp_path / "file.safetensors", tmp_path / "other", "--model", "gpt2", "--size", "width=16")
    with pytest.raises(InvalidArgument, match=r"--size width=a: expected NAME=VALUE with a value of type int"):
        run("convert", tmp_path / "file.safetensors", tmp_path / "other", "--model", "gpt2", "--size", "width=a")
    assert not (tmp_path / "other").exists()


def test_sizes_that_an_earlier_training_wrote_down_are_kept_by_convert_and_stamp(tmp_path: Path) -> None:
    entry = get_model("gpt2")
    sizes = entry.check_sizes(SIZES)
    tensors = {f"{PREFIX}{name}": value.clone() for name, value in entry.build(**sizes).state_dict().items()}
    training = {"step": 1, "identity": {"model": "gpt2", "sizes": sizes}}
    save_file(tensors, tmp_path / "old.safetensors", metadata={TRAINING_KEY: json.dumps(training)})
    words = r"heads \(num_attention_heads\): 2 in the checkpoint.*, 4 in the options"
    with pytest.raises(InvalidArgument, match=words):
        run("convert", tmp_path / "old.safetensors", tmp_path / "no", "--model", "gpt2", "--size", "heads=4")
    with pytest.raises(InvalidArgument, match=words):
        run("stamp", tmp_path / "old.safetensors", "--model", "gpt2", "--size", "heads=4")
    run("convert", tmp_path / "old.safetensors", tmp_path / "folder", "--model", "gpt2")
    assert json.loads((tmp_path / "folder" / "config.json").read_text())["n_positions"] == 6
    run("stamp", tmp_path / "old.safetensors", "--model", "gpt2")
    assert read_header(tmp_path / "old.safetensors").identity == entry.identity(sizes)


def test_diff_names_what_differs_and_exits_with_1(tmp_path: Path) -> None:
    one = {"same": torch.ones(2), "value": torch.zeros(3), "shape": torch.zeros(2), "first": torch.zeros(1)}
    other = {"same": torch.ones(2), "value": torch.tensor([0.0, 0.5, 0.0]), "shape": torch.zeros(2, 1)}
    save_file(one, tmp_path / "one.safetensors")
    save_file(other, tmp_path / "other.safetensors")
    result = run("diff", tmp_path / "one.safetensors", tmp_path / "other.safetensors", "--json")
    assert result.exit_code == 1
    assert json.loads(result.output)["different"] == [
        {"name": "first", "difference": "only in the first"},
        {"name": "shape", "difference": "float32 [2] against float32 [2, 1]"},
        {"name": "value", "difference": "by up to 0.5"},
    ]
    with pytest.raises(NotFound, match="there is no checkpoint"):
        run("show", tmp_path / "nothing")
    (tmp_path / "damaged.safetensors").write_bytes(b"x" * 20)
    with pytest.raises(InvalidArgument, match="is not a safetensors file, or is damaged"):
        run("show", tmp_path / "damaged.safetensors")


def test_nothing_is_drawn_where_weights_will_be_replaced() -> None:
    drawn = torch.nn.Parameter(torch.full((8, 4), 0.5))
    with drawing_nothing():
        for draw in (torch.nn.init.kaiming_uniform_, torch.nn.init.normal_, torch.nn.init.trunc_normal_):
            draw(drawn)
        # What lay in the memory before is out of the bounds of a truncated normal: it draws until that is gone.
        torch.nn.init.trunc_normal_(left := torch.nn.Parameter(torch.full((8, 4), 1e9)), std=0.02)
        assert torch.equal(drawn, torch.full((8, 4), 0.5))
    assert left.abs().max() < 2

"""Checkpoints: what is saved reads back bit by bit, and a half-written one is never taken."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rdukit.errors import InvalidArgument, NotFound
from rdukit_modelbox.training.checkpoints import (
    Checkpoint,
    Identity,
    TrainingTotals,
    has_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from rdukit_serving.device.parameters import load_parameters
from support import shows

pytestmark = shows("training")


def make(step: int, seed: int = 0) -> Checkpoint:
    torch.manual_seed(step)
    weight = torch.randn(3, 4)
    return Checkpoint(
        step=step,
        parameters={"layer.weight": weight, "layer.tied": weight},
        optimizer={
            "state": {0: {"momentum_buffer": torch.randn(3, 4)}, 1: {"momentum_buffer": None}},
            "param_groups": [{"lr": 0.1, "params": [0, 1]}],
        },
        random=torch.get_rng_state(),
        identity=Identity("logreg", {"num_features": 4}, 16, "d" * 64, seed),
        totals=TrainingTotals(1.25, 0.5, 7, 0.1 + 0.2, 3),
    )


def test_everything_reads_back_exactly(tmp_path: Path) -> None:
    made = make(5)
    assert not has_checkpoint(tmp_path)
    save_checkpoint(tmp_path, made)
    found = load_checkpoint(tmp_path)
    assert (found.step, found.identity, found.totals) == (5, made.identity, made.totals)
    assert {k: torch.equal(v, made.parameters[k]) for k, v in found.parameters.items()} == {
        "layer.weight": True, "layer.tied": True,
    }  # fmt: skip
    assert torch.equal(found.optimizer["state"][0]["momentum_buffer"], made.optimizer["state"][0]["momentum_buffer"])
    assert found.optimizer["param_groups"] == made.optimizer["param_groups"]
    assert torch.equal(found.random, made.random)


def test_only_the_newest_two_files_stay(tmp_path: Path) -> None:
    for step in (8, 9, 10, 11):
        save_checkpoint(tmp_path, make(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "latest.json", "step-10.safetensors", "step-11.safetensors",
    ]  # fmt: skip
    assert load_checkpoint(tmp_path).step == 11


def test_a_file_beside_latest_is_not_taken_before_latest_names_it(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, make(1))
    (tmp_path / "step-2.safetensors").write_bytes(b"half")
    assert load_checkpoint(tmp_path).step == 1


def test_the_best_stays_beside_the_newest_two_until_a_better_one_comes(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save_checkpoint(tmp_path, make(step), is_best=step == 1)
    assert load_checkpoint(tmp_path, "best").step == 1
    names = [path.name for path in sorted(tmp_path.glob("*.safetensors"))]
    assert names == ["step-1.safetensors", "step-3.safetensors", "step-4.safetensors"]
    save_checkpoint(tmp_path, make(5), is_best=True)
    names = [path.name for path in sorted(tmp_path.glob("*.safetensors"))]
    assert names == ["step-4.safetensors", "step-5.safetensors"]
    assert {path.stat().st_nlink for path in tmp_path.iterdir()} == {1}, "outputs with hard links are refused"
    step, parameters = load_parameters(tmp_path, "best")
    assert step == 5 and parameters.keys() == {"layer.weight", "layer.tied"}
    assert torch.equal(parameters["layer.weight"], make(5).parameters["layer.weight"])
    save_file({"layer.weight": torch.ones(2)}, tmp_path / "plain.safetensors")
    step, parameters = load_parameters(tmp_path / "plain.safetensors")
    assert (step, list(parameters)) == (0, ["layer.weight"])
    with pytest.raises(InvalidArgument, match="expected newest, previous, best"):
        load_checkpoint(tmp_path, "luckiest")


def test_the_best_of_an_earlier_version_stays_until_a_better_one_comes(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, make(1), is_best=True).rename(tmp_path / "best-1.safetensors")
    named = json.loads((tmp_path / "best.json").read_text())
    (tmp_path / "best.json").write_text(json.dumps({**named, "file": "best-1.safetensors"}))
    save_checkpoint(tmp_path, make(2))
    assert load_checkpoint(tmp_path, "best").step == 1
    save_checkpoint(tmp_path, make(3), is_best=True)
    assert load_checkpoint(tmp_path, "best").step == 3 and not (tmp_path / "best-1.safetensors").exists()


def test_all_pointers_resolve_after_an_attempt_that_was_killed_between_them(tmp_path: Path) -> None:
    for step in (5, 6):
        save_checkpoint(tmp_path, make(step))
    latest = (tmp_path / "latest.json").read_bytes()
    save_checkpoint(tmp_path, make(10), is_best=True)
    (tmp_path / "latest.json").write_bytes(latest)  # killed after best.json
    save_checkpoint(tmp_path, make(6))
    save_checkpoint(tmp_path, make(8))
    found = {which: load_checkpoint(tmp_path, which).step for which in ("newest", "previous", "best")}
    assert found == {"newest": 8, "previous": 6, "best": 10}
    again = make(10)
    save_checkpoint(tmp_path, replace(again, totals=replace(again.totals, host_seconds=9.0)))
    assert load_checkpoint(tmp_path, "best").totals.host_seconds == 9, "done again, so with another digest"
    assert load_checkpoint(tmp_path, "previous").step == 8


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="not a checkpoint folder"):
        load_checkpoint(tmp_path)
    path = save_checkpoint(tmp_path, make(1))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InvalidArgument, match="does not match"):
        load_checkpoint(tmp_path)
    (tmp_path / "latest.json").write_text(json.dumps({"file": "../../etc/passwd", "sha256": ""}))
    with pytest.raises(InvalidArgument, match="missing"):
        load_checkpoint(tmp_path)
    (tmp_path / "latest.json").write_text("{")
    with pytest.raises(InvalidArgument, match="damaged"):
        load_checkpoint(tmp_path)


def test_the_one_before_a_damaged_checkpoint_can_be_read(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, make(1))
    with pytest.raises(InvalidArgument, match="damaged"):
        load_checkpoint(tmp_path, "previous")
    newest = save_checkpoint(tmp_path, make(2))
    save_checkpoint(tmp_path, make(2))  # the last step may be written twice
    newest.write_bytes(b"")
    assert load_checkpoint(tmp_path, "previous").step == 1


def test_trainings_differ_by_what_changes_their_steps() -> None:
    one, other = make(1).identity, make(2, seed=3).identity
    assert one.find_difference(make(9).identity) is None
    assert one.find_difference(other) == "seed 3 against 0"


def test_a_hugging_face_folder_in_place_of_a_checkpoint_names_the_command_that_converts_it(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="it is not a checkpoint folder written by train"):
        load_parameters(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(NotFound, match=r"it is a Hugging Face folder: rdukit checkpoint convert .* FILE\.safetensors"):
        load_parameters(tmp_path)

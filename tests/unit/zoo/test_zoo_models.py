"""The registry and its command: every model is listed, builds, and names its inputs."""

import json

import pytest
import torch
from click.testing import CliRunner

from rdukit.errors import InvalidArgument
from rdukit_zoo.cli import zoo
from rdukit_zoo.registry import get_model, model_names


@pytest.mark.parametrize("name", model_names())
def test_a_model_builds_and_gives_a_loss_and_logits(name: str) -> None:
    entry = get_model(name)
    inputs = entry.make_inputs(4, **entry.sizes)
    assert [tensor.sn_name for tensor in inputs] == ["image", "label"]
    torch.manual_seed(0)
    loss, logits = entry.build(**entry.sizes)(*inputs)
    assert loss.shape == ()
    assert tuple(logits.shape) == (4, entry.sizes["num_classes"])


def test_an_unknown_model_is_refused_with_the_names() -> None:
    with pytest.raises(InvalidArgument, match="legal: ffn, logreg"):
        get_model("gpt5")


def test_list_as_json_has_every_model() -> None:
    result = CliRunner().invoke(zoo, ["list", "--json"])
    assert [model["name"] for model in json.loads(result.output)] == list(model_names())


def test_show_prints_the_programs_path() -> None:
    result = CliRunner().invoke(zoo, ["show", "--model", "logreg"])
    assert "logreg.py" in result.output

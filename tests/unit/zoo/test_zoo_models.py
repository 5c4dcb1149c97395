"""The registry and its command: every model is listed, builds, and has the inputs and outputs of its task."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import rdukit_zoo
from rdukit.errors import InvalidArgument
from rdukit_zoo.cli import zoo
from rdukit_zoo.registry import ModelEntry, get_model, model_names
from support import shows
from support.tiers import every_third_short

pytestmark = shows("zoo", "every box")


@pytest.mark.parametrize("name", [name for name in model_names() if get_model(name).task == "classification"])
def test_a_classifier_gives_loss_and_logits_and_without_labels_logits_alone(name: str) -> None:
    entry = get_model(name)
    inputs = entry.make_inputs(4, **entry.sizes)
    assert [tensor.sn_name for tensor in inputs][1:] == ["label"]
    torch.manual_seed(0)
    built = entry.build(**entry.sizes)
    loss, logits = built(*inputs)
    assert loss.shape == ()
    assert tuple(logits.shape) == (4, entry.sizes["num_classes"])
    torch.testing.assert_close(built(inputs[0]).torch(), logits.torch())


@pytest.mark.parametrize("name", [name for name in model_names() if get_model(name).task == "language-modelling"])
def test_a_language_model_gives_a_loss_near_that_of_chance_and_serves_with_the_same_names(name: str) -> None:
    entry = get_model(name)
    inputs = entry.make_inputs(4, **entry.sizes)
    assert [tensor.sn_name for tensor in inputs] == ["tokens", "labels"]
    torch.manual_seed(0)
    built = entry.build(**entry.sizes)
    assert built(*inputs).torch().item() == pytest.approx(math.log(entry.sizes["vocabulary"]), abs=0.2)
    assert entry.text_serving is not None
    assert entry.text_serving.build(texts=2, **entry.sizes).state_dict().keys() == built.state_dict().keys()


def test_an_unknown_model_task_or_size_is_refused_with_what_is_legal() -> None:
    with pytest.raises(InvalidArgument, match=f"expected {', '.join(model_names())}"):
        get_model("chess")
    entry = get_model("mlp")
    with pytest.raises(InvalidArgument, match="no size depth; expected num_features, hidden_size, num_classes"):
        entry.check_sizes({"depth": 3})
    assert entry.check_sizes({"num_classes": 3}) == {"num_features": 64, "hidden_size": 256, "num_classes": 3}
    with pytest.raises(InvalidArgument, match="expected classification, language-modelling, "):
        ModelEntry("x", "x", "chess", "x", "x", {}, entry.build, entry.make_inputs)


def test_list_as_json_has_every_model() -> None:
    result = CliRunner().invoke(zoo, ["list", "--json"])
    assert [model["name"] for model in json.loads(result.output)] == list(model_names())


def test_the_table_has_each_model() -> None:
    output = CliRunner().invoke(zoo, ["list"]).output
    assert all(name in output for name in model_names())


def test_show_prints_the_programs_path() -> None:
    result = CliRunner().invoke(zoo, ["show", "logreg"])
    assert "logreg.py" in result.output and "python -m rdukit_zoo.logreg" in result.output


def test_show_prints_published_variants_with_their_parameters() -> None:
    output = CliRunner().invoke(zoo, ["show", "gpt2"]).output
    assert "rdukit box run gpt2" in output and "124,439,808" in output


@pytest.mark.parametrize(
    ("name", "variant"),
    every_third_short((name, variant) for name in model_names() for variant in get_model(name).variants),
)
def test_a_variant_has_exactly_the_published_number_of_parameters(name: str, variant: str) -> None:
    entry = get_model(name)
    with torch.device("meta"):
        model = entry.build(**entry.sizes_of(variant))
    assert sum(parameter.numel() for parameter in model.parameters()) == entry.variants[variant].parameters


@pytest.mark.parametrize(
    "name",
    every_third_short(
        n for n in model_names() if get_model(n).generate and get_model(n).task not in ("embedding", "generative")
    ),
)
def test_drawn_data_fits_the_inputs_and_gives_a_loss_that_falls(name: str) -> None:
    entry = get_model(name)
    assert entry.generate is not None
    arrays = entry.generate(8, 3, **entry.sizes)
    inputs = entry.make_inputs(8, **entry.sizes)
    assert [(t.sn_name, tuple(t.shape)) for t in inputs] == [(key, value.shape) for key, value in arrays.items()]
    again = entry.generate(8, 3, **entry.sizes)
    assert all(np.array_equal(arrays[key], again[key]) for key in arrays)
    torch.manual_seed(0)
    model = entry.build(**entry.sizes)
    given = [torch.from_numpy(value) for value in arrays.values()]
    assert [value.dtype for value in given] == [tensor.torch().dtype for tensor in inputs]
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss, _ = model(*given)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_every_model_has_measured_differences_from_eager_torch_within_the_bars() -> None:
    known = json.loads(Path(str(rdukit_zoo.__file__)).with_name("parity.json").read_text())
    assert sorted(known) == list(model_names())
    losses = {name: max(row.get(mode, 0.0) for mode in ("o0", "o1", "o3")) for name, row in known.items()}
    assert max(losses.values()) < 1e-3

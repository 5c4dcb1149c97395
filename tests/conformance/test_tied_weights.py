"""Weights that several places share: the same at a compile without values and at a run with them, or refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from rdukit.errors import PefMismatch, TraceError
from sambaflow import samba
from sambaflow.samba import utils
from support import shows

pytestmark = shows("pytorch", "surface", "training-loops-model")

WORDS, WIDTH, STEPS = 16, 8, 3


class Tied(nn.Module):
    """A language model whose output layer is its embedding; ``shares`` says how."""

    def __init__(self, shares: str = "tied") -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        if shares == "tied":
            self.head.weight = self.words.weight
        elif shares == "memory":
            self.head.weight = nn.Parameter(self.words.weight.data)
        elif shares == "frozen":
            self.head.weight = nn.Parameter(self.words.weight.data, requires_grad=False)

    def forward(self, tokens: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(self.head(torch.tanh(self.words(tokens))), targets)


class Copied(Tied):
    """The output layer reads a buffer over the embedding's memory."""

    def __init__(self) -> None:
        super().__init__("apart")
        del self.head
        self.register_buffer("table", self.words.weight.data)

    def head(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.table)


class Interleaved(nn.Module):
    """Two parameters that are every other column of one memory: no element belongs to both."""

    def __init__(self) -> None:
        super().__init__()
        memory = torch.randn(WIDTH, 2 * WORDS)
        self.even, self.odd = nn.Parameter(memory[:, ::2]), nn.Parameter(memory[:, 1::2])

    def forward(self, tokens: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(self.even.t()[tokens] @ self.odd, targets)


@contextmanager
def without_values() -> Iterator[None]:
    """Build parameters on the meta device as modules register them, each place with an object of its own."""

    def empty(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        return None if parameter is None else nn.Parameter(parameter.to("meta"))

    hook = register_module_parameter_registration_hook(empty)
    try:
        yield
    finally:
        hook.remove()


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def inputs() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(0)
    tokens, targets = (torch.randint(WORDS, (4,), generator=generator) for _ in range(2))
    return samba.from_torch_tensor(tokens, name="tokens"), samba.from_torch_tensor(targets, name="targets")


def optimizer_of(model: nn.Module) -> Any:
    return samba.optim.SGD(model.parameters(), lr=0.5, momentum=0.0)


def compile_model(model: nn.Module, folder: Path, trains: bool = True) -> str:
    samba.from_torch_model_(model)
    config = {"output_folder": str(folder), "pef_name": "t", "precision": "f32", "log_level": "error"}
    pef = samba.session.compile(model, inputs(), optimizer_of(model) if trains else None, config_dict=config)
    samba.session.reset()
    return str(pef)


def losses_on_device(model: nn.Module, pef: str) -> list[float]:
    samba.from_torch_model_(model)
    given = inputs()
    outputs = utils.trace_graph(model, given, optimizer_of(model), pef=pef)
    return [samba.to_torch(samba.session.run(given, outputs)[0]).item() for _ in range(STEPS)]


def losses_on_host(model: nn.Module) -> list[float]:
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.5), []
    tokens, targets = (tensor.torch_tensor() for tensor in inputs())
    for _ in range(STEPS):
        loss = model(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_a_compile_without_values_serves_a_run_with_tied_weights(tmp_path: Path) -> None:
    with without_values():
        empty = Tied()
    assert empty.head.weight is not empty.words.weight
    pef = compile_model(empty, tmp_path)
    model, gold = Tied(), Tied()
    gold.load_state_dict(model.state_dict())
    # f32 sums of at most 16 terms in another order, over three steps: 1e-5 relative.
    assert losses_on_device(model, pef) == pytest.approx(losses_on_host(gold), rel=1e-5)


def test_weights_without_values_that_are_not_tied_stay_apart(tmp_path: Path) -> None:
    with without_values():
        pef = compile_model(Tied("apart"), tmp_path)
    model, gold = Tied("apart"), Tied("apart")
    gold.load_state_dict(model.state_dict())
    assert losses_on_device(model, pef) == pytest.approx(losses_on_host(gold), rel=1e-5)


def test_a_run_that_ties_what_was_trained_apart_says_so(tmp_path: Path) -> None:
    pef = compile_model(Tied("apart"), tmp_path)
    with pytest.raises(PefMismatch, match=r"ties 'tied__head__weight' to 'tied__words__weight'.*own gradient only"):
        losses_on_device(Tied(), pef)


def test_inference_gives_the_one_value_to_both_parameters_that_were_compiled_apart(tmp_path: Path) -> None:
    pef = compile_model(Tied("apart"), tmp_path, trains=False)
    model = Tied()
    samba.from_torch_model_(model)
    given = inputs()
    tokens, targets = (tensor.torch_tensor() for tensor in given)
    outputs = utils.trace_graph(model, given, None, pef=pef)

    def check(model: Tied) -> None:
        # f32 sums of at most 16 terms in another order: 1e-5 relative
        found = samba.to_torch(samba.session.run(given, outputs)[0]).item()
        assert found == pytest.approx(model(tokens, targets).item(), rel=1e-5)

    assert model.head.weight is model.words.weight
    check(model)
    with torch.no_grad():
        model.words.weight.mul_(2.0)
    check(model)
    model.head.weight.data = model.head.weight.data + 1.0
    check(model)
    other = Tied()
    samba.from_torch_model_(other)
    samba.session.to_device()
    check(other)


def test_a_training_pef_is_not_run_with_tied_weights_for_inference_either(tmp_path: Path) -> None:
    pef = compile_model(Tied("apart"), tmp_path)
    model = Tied()
    samba.from_torch_model_(model)
    with pytest.raises(PefMismatch, match="ties 'tied__head__weight'"):
        utils.trace_graph(model, inputs(), None, pef=pef)


@pytest.mark.parametrize("model", [Tied("memory"), Tied("frozen"), Copied()], ids=["both", "frozen", "buffer"])
def test_memory_of_a_trained_weight_has_one_name(model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="shares memory"):
        compile_model(model, tmp_path)


def test_memory_that_is_not_trained_may_have_two_names(tmp_path: Path) -> None:
    assert Path(compile_model(Tied("memory"), tmp_path, trains=False)).is_file()


def test_columns_of_one_memory_are_trained_apart(tmp_path: Path) -> None:
    model, gold = Interleaved(), Interleaved()
    gold.load_state_dict(model.state_dict())
    assert losses_on_device(model, compile_model(model, tmp_path)) == pytest.approx(losses_on_host(gold), rel=1e-5)

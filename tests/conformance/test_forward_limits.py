"""What forward cannot do on the device is refused with what would be legal; what comes from the host is told."""

import copy
import importlib
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rdukit.errors import RdukitError, TraceError, UnsupportedOperator
from sambaflow import samba
from support import shows
from support.programs import compare_step, compile_model, load_model

pytestmark = shows("pytorch")


class Model(nn.Module):
    """lin → ``function``."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self._function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self._function(self, self.lin(x))


def branching(m: Any, y: Any) -> Any:
    return torch.cond(y.sum() > 0, lambda t: t * 2, lambda t: t * 3, (y,))


def looping(m: Any, y: Any) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(lambda i, t: t.sum() < i, lambda i, t: (i - 1, t * 2), (torch.tensor(3.0), y))[1]


def seeding(m: Any, y: Any) -> Any:
    torch.manual_seed(0)
    return y + torch.rand(3, 4)


def with_a_generator(m: Any, y: Any) -> Any:
    return y + torch.rand(3, 4, generator=torch.Generator().manual_seed(3))


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")  # torch's own, as it imports its control flow
@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (branching, TraceError, r"uses torch's cond in module 'forward' \(test_\w+\.py:\d+.*torch\.where"),
        (looping, TraceError, r"uses torch's while_loop .*fixed number of steps"),
        (seeding, UnsupportedOperator, r"calls torch\.manual_seed.*set_seed before session\.run"),
        (with_a_generator, UnsupportedOperator, r"torch\.Generator of its own.*leave out generator="),
        (lambda m, y: y * y.tolist()[0][0], TraceError, r"needs a tensor's value.*in module 'forward' \(test_\w+"),
        (lambda m, y: y * float(f"{y.sum():.3f}"), TraceError, r"needs a tensor's value.*\(test_\w+\.py:\d+"),
        (lambda m, y: y * float(y.sum()), TraceError, r"needs a tensor's value.*\(test_\w+\.py:\d+"),
        (lambda m, y: y if bool(y.sum()) else -y, TraceError, r"control flow.*torch\.where"),
    ],
)
def test_what_depends_on_data_or_seeds_is_refused_with_its_place(
    function: Any, error: type[RdukitError], text: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=text):
        compile_model(Model(function), samba.randn(3, 4, name="x"), None, tmp_path)
    assert torch.manual_seed(0) is not None, "torch's own again"


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")
def test_a_module_of_torch_jit_is_refused_and_a_function_is_not(tmp_path: Path) -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = torch.jit.trace(nn.Linear(4, 4), torch.randn(3, 4))

        def forward(self, x: torch.Tensor) -> Any:
            return self.part(x)

    with pytest.raises(UnsupportedOperator, match=r"module 'part' is a \w+ of torch\.jit.*use the original module"):
        compile_model(Holder(), samba.randn(3, 4, name="x"), None, tmp_path)


def test_numbers_that_the_host_draws_are_told_and_those_of_torch_are_drawn_in_every_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net = Model(lambda m, y: y * 0 + torch.rand(3, 4))
    loaded = load_model(net, samba.randn(3, 4, name="x"), tmp_path)
    first = loaded.run()[0].data
    assert not torch.equal(first, loaded.run()[0].data)
    assert "draws from" not in caplog.text
    compile_model(Model(lambda m, y: y * random.random()), samba.randn(3, 4, name="x"), None, tmp_path)
    assert "forward of model draws from Python's random only while it is traced" in caplog.text


@pytest.mark.parametrize("draws", [False, True], ids=["imports", "draws"])
def test_numpy_random_that_forward_is_the_first_to_import_is_told_only_if_it_draws(
    draws: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = importlib.import_module("numpy.random")
    generator.set_state(generator.RandomState().get_state())
    monkeypatch.delitem(sys.modules, "numpy.random")

    def importing(m: Any, y: Any) -> Any:
        sys.modules["numpy.random"] = generator
        return y + (generator.rand(4) > 2).sum() if draws else y

    compile_model(Model(importing), samba.randn(3, 4, name="x"), None, tmp_path)
    assert ("draws from numpy.random" in caplog.text) is draws


def test_a_copy_that_forward_makes_has_no_gradient_as_in_torch(tmp_path: Path) -> None:
    net = Model(lambda m, y: copy.deepcopy(m.lin)(y) + m.lin(y))
    compare_step(net, samba.randn(3, 4, name="x"), tmp_path)


def test_a_tensor_that_forward_prints_has_no_values_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def printing(m: Any, y: Any) -> Any:
        print("SEEN", y)
        return y

    load_model(Model(printing), samba.randn(3, 4, name="x"), tmp_path).run()
    assert "SEEN FakeTensor(..., size=(3, 4))" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("function", "argument"),
    [(lambda x: nn.functional.one_hot((x > 0).long()), "num_classes"),
     (lambda x: torch.repeat_interleave(x, (x[:, 0] > 0).long(), 0), "output_size")],
    ids=["one_hot", "repeat_interleave"],
)  # fmt: skip
def test_a_shape_that_depends_on_data_is_refused_with_the_argument_that_gives_it(
    function: Callable[[Any], Any], argument: str, tmp_path: Path
) -> None:
    class Shapeless(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    with pytest.raises(TraceError, match=f"depends on data; pass {argument}"):
        compile_model(Shapeless(), samba.randn(4, 3, name="x"), None, tmp_path)

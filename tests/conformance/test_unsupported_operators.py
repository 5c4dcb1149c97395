"""Operators that the device does not have: refused with their place in the program, or run on the host if asked."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rdukit.errors import RdukitError, TraceError, UnsupportedOperator
from rdukit.pef.file import read_pef
from sambaflow import samba
from support import shows
from support.programs import compile_model, load_model

pytestmark = shows("pytorch", "operators", "settings", "o0", "o1", "o3")


def sgd(parameters: Any) -> Any:
    return samba.optim.SGD(parameters, lr=0.1)


# -- where in the program ----------------------------------------------------------------------------------------------


class Deep(nn.Module):
    """``function`` runs in module ``layers.1``."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), Inner(function), nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class Inner(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.lin(x))


def cubes(x: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = torch.ops.rdukit_tests.cube(x)
    return made


def shapeless(x: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = torch.ops.rdukit_tests.shapeless(x)
    return made


def inverts(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.inv(x @ x.transpose(0, 1) + torch.eye(4))


@pytest.fixture(scope="module", autouse=True)
def cube_library() -> Any:
    """Operators of a library of the program's own: ``cube`` with a shape and a gradient, ``shapeless`` without."""
    library = torch.library.Library("rdukit_tests", "DEF")
    library.define("cube(Tensor x) -> Tensor")
    library.define("shapeless(Tensor x) -> Tensor")
    for key in ("CPU", "Meta"):
        library.impl("cube", lambda x: x * x * x, key)
    library.impl("shapeless", lambda x: x + 1, "CPU")
    torch.library.register_autograd(
        "rdukit_tests::cube", lambda ctx, g: 3 * ctx.saved_tensors[0] ** 2 * g,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs), lib=library,
    )  # fmt: skip
    yield library
    library._destroy()


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda x: x if x.sum() > 0 else -x, TraceError, r"in module 'layers\.1' \(test_\w+.py:\d+: .*control"),
        (lambda x: x * x.max().item(), TraceError, r"in module 'layers\.1' .*cannot depend on data"),
        (lambda x: x[: int(x[0, 0])], TraceError, r"in module 'layers\.1' .*cannot depend on data"),
        (lambda x: x[x > 0], TraceError, r"in module 'layers\.1' .*shapes"),
        (lambda x: x.nonzero(), TraceError, r"in module 'layers\.1' .*shapes"),
        (lambda x: x.unique(), TraceError, r"in module 'layers\.1' .*shapes"),
        (lambda x: x if torch.allclose(x, x) else -x, TraceError, r"in module 'layers\.1' .*control flow"),
        (lambda x: torch.as_tensor(x.detach().numpy()), TraceError, r"in module 'layers\.1' .*numpy"),
        (lambda x: x.view(5, 5), TraceError, r"failed in module 'layers\.1' \(test_\w+.py:\d+.*RuntimeError"),
        (lambda x: x.to_sparse(), UnsupportedOperator, r"in module 'layers\.1'.*sparse.*only dense tensors"),
        (lambda x: torch.add(x, 1, out=torch.empty(4, 4)), UnsupportedOperator, r"'layers\.1'.*add has out="),
        (inverts, UnsupportedOperator, r"'linalg_inv' in module 'layers\.1'.*nearest.*matmul.*--host-fallback"),
        (torch.linalg.eigvalsh, UnsupportedOperator, r"'linalg_eigvalsh' .*RDUKIT_HOST_FALLBACK=1"),
        (cubes, UnsupportedOperator, r"'rdukit_tests.cube.default' in module 'layers\.1'.*nearest supported"),
        (shapeless, UnsupportedOperator,
         r"'rdukit_tests.shapeless.default' in module 'layers\.1' .*register_fake.*--host-fallback"),
    ],
)  # fmt: skip
def test_a_forward_that_cannot_be_compiled_is_refused_with_its_place(
    function: Callable[..., Any], error: type[RdukitError], text: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=text):
        compile_model(Deep(function), samba.randn(4, 4, name="x"), None, tmp_path)
    assert not (tmp_path / "out").exists()


# -- the opt-in --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
@pytest.mark.parametrize("function", [cubes, inverts])
def test_with_the_opt_in_an_unsupported_operator_trains_on_the_host_in_a_section_of_its_own(
    function: Callable[..., Any], mode: str, tmp_path: Path
) -> None:
    net = Deep(function)
    reference = copy.deepcopy(net)
    loaded = load_model(
        net, samba.randn(4, 4, name="x"), tmp_path, sgd, optim_level=mode, precision="f32", host_fallback=True
    )
    (out,) = loaded.run(section_types=["fwd", "bckwd"])
    gold = reference(loaded.inputs.data)
    gold.backward(torch.ones_like(gold))
    # f32, and the same operators of torch as on the host
    assert torch.allclose(out.data, gold, atol=1e-5)
    for ours, theirs in zip(net.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(ours.sn_grad, theirs.grad, rtol=1e-4, atol=1e-5)
    sections = [s for s in read_pef(loaded.pef).pef.sections if s.heuristic == "host"]
    assert [s.type.value for s in sections] == ["fwd", "bckwd"]
    for section in sections:
        assert section.name.startswith("host_deep__layers__1")
        assert re.search(r"in module layers\.1 is not supported on the RDU and runs on the host", section.why)
        assert section.resources.tiles == 0
    assert len(sections[0].operators) == 1
    log = (tmp_path / "out" / "model" / "model.samba.log").read_text()
    assert f"section {sections[0].name}: operator" in log


def test_an_operator_of_the_program_that_was_changed_is_differentiated_again(tmp_path: Path) -> None:
    class Powers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.full((4,), 2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.ops.rdukit_powers.power(self.w)

    gradients = []
    for power in (2, 3):
        library = torch.library.Library("rdukit_powers", "DEF")
        library.define("power(Tensor x) -> Tensor")
        for key in ("CPU", "Meta"):
            library.impl("power", lambda x, power=power: x**power, key)
        torch.library.register_autograd(
            "rdukit_powers::power", lambda ctx, g, power=power: power * ctx.saved_tensors[0] ** (power - 1) * g,
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs), lib=library,
        )  # fmt: skip
        net = Powers()
        loaded = load_model(net, samba.randn(4, name="x"), tmp_path, sgd, precision="f32", host_fallback=True)
        loaded.run(section_types=["fwd", "bckwd"])
        gradients.append(net.w.sn_grad[0].item())
        samba.session.reset()
        library._destroy()
    assert gradients == [4.0, 12.0]


def test_the_opt_in_is_an_option_of_every_program_and_a_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sambaflow.samba.utils.argparser import parse_app_args

    assert parse_app_args(["compile", "--host-fallback"]).host_fallback is True
    assert parse_app_args(["compile"]).host_fallback is False
    monkeypatch.setenv("RDUKIT_HOST_FALLBACK", "1")
    assert Path(compile_model(Deep(cubes), samba.randn(4, 4, name="x"), None, tmp_path)).exists()


def test_a_host_section_computes_in_f32_between_sections_in_bf16(tmp_path: Path) -> None:
    net = Deep(inverts)
    reference = copy.deepcopy(net)
    loaded = load_model(net, samba.randn(4, 4, name="x"), tmp_path, host_fallback=True)
    (out,) = loaded.run()
    gold = reference(loaded.inputs.data)
    assert torch.equal(out.data, out.data.bfloat16().float())
    assert (out.data - gold).abs().max() / gold.abs().max() < 3e-2  # bf16: a dozen roundings of 2^-9

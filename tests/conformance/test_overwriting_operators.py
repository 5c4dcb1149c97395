"""In-place operators: of every kind, spelled in every way, and with the dtype of what they overwrite."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rdukit.errors import SectionFailed, UnsupportedOperator
from rdukit_compiler.capture.replaced_functions import find_single
from rdukit_compiler.operators.naming import callable_of, find_functional, name_of
from rdukit_compiler.torch_private import trace_functional
from sambaflow import samba
from sambaflow.samba.sambatensor import SambaTensor
from support import shows
from support.programs import compare_step, compile_model, load_model

pytestmark = shows("pytorch", "operators", "o0", "o3")

Forward = Callable[[Any, Any], Any]
ATEN = sorted({str(n).split("::")[1].split(".")[0] for n in torch._C._dispatch_get_all_op_names() if "aten::" in n})

#: In-place operators on one tensor that have no form that overwrites nothing; a program that calls them is refused.
WITHOUT_FORM = {
    "_fill_mem_eff_dropout_mask_", "_flash_attention_forward_no_dropout_inplace", "_index_put_impl_",
    "_sobol_engine_ff_", "_sobol_engine_initialize_state_", "_sobol_engine_scramble_", "fill_diagonal_",
    "record_stream", "requires_grad_", "retain_grad", "set_", "set_data", "sort",
}  # fmt: skip
#: These have one of another name or with arguments in another order.
OTHER_FORM = {"copy_", "normal_", "polygamma_"}


class Writing(nn.Module):
    """``function(module, x)`` beside lin and two buffers."""

    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 6)
        self.register_buffer("m", torch.ones(6))
        self.register_buffer("n", torch.full((6,), 2.0))
        self._function = function

    def forward(self, x: Any) -> Any:
        return self._function(self, x)


def check(function: Forward, folder: Path, **config: Any) -> None:
    torch.manual_seed(0)
    compare_step(Writing(function), samba.from_torch_tensor(torch.randn(4, 6), name="x"), folder, **config)


def overloads_of(word: str) -> list[Any]:
    packet = getattr(torch.ops.aten, word, None)
    return [] if packet is None else [getattr(packet, name) for name in packet.overloads()]


def scaled_list(s: Any, x: Any) -> Any:
    a = s.lin(x) * 1
    torch._foreach_mul_([a], 2.0)
    return a


def lists_of_several(s: Any, x: Any) -> Any:
    a, b = s.lin(x) * 1, x * 1
    torch._foreach_lerp_([a, b], [x, x], 0.3)
    torch._foreach_addcmul_([a, b], [x, x], [x, x], [0.1, 0.2])
    with torch.no_grad():
        torch._foreach_maximum_([s.m, s.n], 1.5)
    torch._foreach_neg_([b])
    torch._foreach_add_([a], [x], alpha=3)
    return a, b, s.lin(x) * s.m


def one_tensor_twice(s: Any, x: Any) -> Any:
    """Torch's own gradient of this is another one."""
    a = x * 1
    torch._foreach_mul_([a, a], [2.0, 3.0])
    return s.lin(x) * a


def lists_of_buffers(s: Any, x: Any) -> Any:
    with torch.no_grad():
        torch._foreach_mul_([s.m, s.n], 0.5)
        torch._foreach_add_([s.m], [x.mean(0)])
        torch._foreach_copy_([s.n], [s.m])
        torch._foreach_zero_([s.m[:2]])
    return s.lin(x) * s.m + s.n


@pytest.mark.parametrize("mode", ["o0", "o3"])
@pytest.mark.parametrize("function", [scaled_list, lists_of_several, one_tensor_twice, lists_of_buffers])
def test_operators_that_write_into_lists_of_tensors_are_compiled(function: Forward, mode: str, tmp_path: Path) -> None:
    check(function, tmp_path, optim_level=mode)


@pytest.mark.parametrize("training", [False, True])
def test_a_list_with_a_parameter_is_refused_as_the_parameter_is(training: bool, tmp_path: Path) -> None:
    def function(s: Any, x: Any) -> Any:
        torch._foreach_mul_([s.lin.weight], 0.5)
        return s.lin(x)

    model = samba.from_torch_model_(Writing(function))
    optimizer = samba.optim.SGD(model.parameters(), lr=0.1) if training else None
    with pytest.raises(UnsupportedOperator, match="overwrites 'writing__lin__weight'; parameters cannot be"):
        compile_model(model, samba.randn(4, 6, name="x"), optimizer, tmp_path)


def test_each_operator_on_lists_stands_for_one_on_a_tensor() -> None:
    found = [o for word in ATEN if word.startswith("_foreach_") and word.endswith("_") for o in overloads_of(word)]
    mutable = [overload for overload in found if overload._schema.is_mutable]
    assert len(mutable) > 60
    assert [str(overload) for overload in mutable if find_single(overload) is None] == []


@pytest.mark.parametrize("returns", [False, True])
def test_a_custom_operator_that_overwrites_its_argument_is_refused(returns: bool, tmp_path: Path) -> None:
    with torch.library._scoped_library("rdukit_test_writes", "DEF") as library:
        library.define(f"double(Tensor(a!) x) -> {'Tensor' if returns else '()'}")
        library.impl("double", lambda x: x.mul_(2) + 1 if returns else None, "Meta")
        double = torch.ops.rdukit_test_writes.double

        def function(s: Any, x: Any) -> Any:
            y = s.lin(x) * 1
            made = double(y)
            return y if made is None else y + made

        with pytest.raises(UnsupportedOperator, match=r"double overwrites its arguments x; .*mutates_args=\(\)"):
            compile_model(Writing(function), samba.randn(4, 6, name="x"), None, tmp_path, host_fallback=True)


def test_a_custom_operator_that_returns_nothing_is_refused(tmp_path: Path) -> None:
    with torch.library._scoped_library("rdukit_test_silent", "DEF") as library:
        library.define("show(Tensor x) -> ()")
        library.impl("show", lambda x: None, "Meta")

        def function(s: Any, x: Any) -> Any:
            torch.ops.rdukit_test_silent.show(x)
            return s.lin(x)

        with pytest.raises(UnsupportedOperator, match=r"show\.default' returns nothing, so no graph can hold it"):
            compile_model(Writing(function), samba.randn(4, 6, name="x"), None, tmp_path)


def test_an_assertion_about_data_is_checked_in_each_run(tmp_path: Path) -> None:
    def function(s: Any, x: Any) -> Any:
        torch._assert_async((x < 100).all())
        return s.lin(x)

    x = samba.from_torch_tensor(torch.ones(4, 6), name="x")
    loaded = load_model(Writing(function), x, tmp_path)
    assert loaded.run()[0].shape == (4, 6)
    loaded.inputs = samba.from_torch_tensor(torch.full((4, 6), 200.0), name="x")
    with pytest.raises(SectionFailed, match="_assert_async"):
        loaded.run()


def test_what_wraps_an_operator_that_overwrites_is_found_in_a_record() -> None:
    @torch.library.custom_op("rdukit_test_wrapped::double", mutates_args=("x",))
    def double(x: torch.Tensor) -> None:
        x.mul_(2)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = x.clone()
        double(y)
        return [y]

    with pytest.raises(UnsupportedOperator, match=r"overwrites a tensor, and no variant of it returns a new one"):
        trace_functional(function, [torch.empty(4, 3)])


def test_every_operator_that_overwrites_a_tensor_has_a_form_that_does_not_or_is_listed() -> None:
    refused = set()
    for overload in (o for word in ATEN if not word.startswith(("_foreach_", "_fused_")) for o in overloads_of(word)):
        schema = overload._schema
        written = [argument.name for argument in schema.arguments if argument.is_write]
        if not schema.is_mutable or written != [schema.arguments[0].name] or schema.arguments[0].kwarg_only:
            continue
        found = find_functional(name_of(overload))
        if found is None:
            refused.add(schema.name.removeprefix("aten::"))
            continue
        types = [str(argument.type) for argument in schema.arguments]
        other = callable_of(found)._schema  # type: ignore[attr-defined]
        assert not other.is_mutable
        assert [str(argument.type) for argument in other.arguments] == types, f"{overload} as {found}"
    assert refused == WITHOUT_FORM | OTHER_FORM


#: Augmented assignment → what is written: both operands are made of x.
def integers(x: Any) -> Any:
    return (x * 4).long()


OPERANDS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    **{f"__i{word}__": (integers, 1) for word in ("and", "or", "xor", "lshift", "rshift")},
    **{f"__i{word}__": (lambda x: x * 3, 0.7) for word in ("add", "sub", "mul", "div", "truediv", "mod", "floordiv")},
    "__ipow__": (lambda x: x * 3, 2),
}
#: Words of ``dir(torch.Tensor)`` that begin like those and are something else.
NOT_IN_PLACE = {
    "__index__", "__init__", "__init_subclass__", "__int__", "__invert__", "__iter__",
}  # fmt: skip


def test_each_augmented_assignment_of_torch_is_one_of_a_samba_tensor() -> None:
    assert {name for name in dir(torch.Tensor) if name.startswith("__i")} - NOT_IN_PLACE == set(OPERANDS)
    assert set(OPERANDS) <= set(vars(SambaTensor))


@pytest.mark.parametrize("name", OPERANDS)
def test_augmented_assignments_overwrite_what_other_names_show(name: str, tmp_path: Path) -> None:
    make, other = OPERANDS[name]

    def function(s: Any, x: Any) -> Any:
        value, constant = make(x), make(torch.full((6,), 1.5))
        kept, kept_constant = value, constant
        assert getattr(value, name)(other) is value
        getattr(constant, name)(other)
        return s.lin(x) * kept, s.lin(x) * kept_constant

    check(function, tmp_path)


def test_an_augmented_assignment_that_torch_has_not_makes_a_new_tensor(tmp_path: Path) -> None:
    def function(s: Any, x: Any) -> Any:
        y = s.lin(x) * 1
        kept = y
        y @= s.lin.weight
        return y + kept

    check(function, tmp_path)


def test_a_samba_tensor_of_the_host_is_overwritten_as_torchs() -> None:
    mask = samba.from_torch_tensor(torch.tensor([True, False]), name="mask")
    kept = mask
    mask &= torch.tensor([False, True])
    assert kept is mask and kept.tolist() == [False, False]
    with pytest.raises(TypeError):
        mask &= object()


def to_powers(s: Any, x: Any) -> Any:
    a, b, c = s.lin(x) * 1, s.lin(x).abs() + 1, s.lin(x).abs() + 1
    a.pow_(2)
    b.pow_(x)
    c.polygamma_(1)
    return a, b, c, (s.lin(x) * 1).ldexp_(torch.tensor(2))


def floats_into_integers(s: Any, x: Any) -> Any:
    whole, mask, small = torch.zeros(4, 6, dtype=torch.long), x > 0, torch.zeros(4, 6, dtype=torch.uint8)
    whole.copy_(s.lin(x).detach() * 3)
    mask.copy_(s.lin(x).detach())
    small.add_(250).add_((x > 0) * 10)
    return s.lin(x) * whole, s.lin(x) * mask, s.lin(x) * small


def into_narrow_floats(s: Any, x: Any) -> Any:
    a, b = torch.zeros(4, 6, dtype=torch.bfloat16), torch.zeros(4, 6, dtype=torch.bfloat16)
    a.copy_(s.lin(x).detach())
    b.add_(s.lin(x).detach())
    return s.lin(x) * a.float(), s.lin(x) * b.float()


def comparisons(s: Any, x: Any) -> Any:
    y, z = x * 1, (x * 2).long()
    return s.lin(x) * y.gt_(0.1) / 3, s.lin(x) * z.logical_not_().sub_(3)


@pytest.mark.parametrize("mode", ["o0", "o3"])
@pytest.mark.parametrize("function", [to_powers, floats_into_integers, into_narrow_floats, comparisons])
def test_what_is_overwritten_keeps_its_dtype(function: Forward, mode: str, tmp_path: Path) -> None:
    check(function, tmp_path, optim_level=mode)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_a_whole_number_to_a_whole_power_is_one_in_native_kernels_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "native")
    check(lambda s, x: torch.ldexp(s.lin(x), torch.tensor(2)), tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_operators_that_write_another_dtype_than_their_operands_are_known() -> None:
    """Of floating operands: what they write is converted."""
    from torch.testing._internal.common_methods_invocations import op_db

    from rdukit_compiler.capture.mutation import _OTHER_DTYPE

    found = set()
    for info in op_db:
        if not info.inplace_variant or info.method_variant is None or torch.float32 not in info.dtypes:
            continue
        sample = next(iter(info.sample_inputs("cpu", torch.float32)))
        made = info.method_variant(sample.input, *sample.args, **sample.kwargs)
        if isinstance(made, torch.Tensor) and made.dtype != torch.float32:
            found.add(info.inplace_variant.__name__.removesuffix("_"))
    assert found <= _OTHER_DTYPE


DIAGONALS: dict[str, Forward] = {
    "square": lambda s, x: (s.lin(x)[:, :4] * 1).fill_diagonal_(0.5),
    "wide": lambda s, x: (s.lin(x) * 1).fill_diagonal_(0.5, wrap=True),
    "tall": lambda s, x: (s.lin(x).t() * 1).fill_diagonal_(0.5),
    "tall-wrapped": lambda s, x: (s.lin(x).reshape(12, 2) * 1).fill_diagonal_(-1, wrap=True),
    "cube": lambda s, x: (s.lin(x).reshape(-1)[:8].view(2, 2, 2) * 1).fill_diagonal_(2),
    "of-a-view": lambda s, x: (y := s.lin(x) * 1, y[1:, 2:].fill_diagonal_(3.0))[0],
}


@pytest.mark.parametrize("case", DIAGONALS)
def test_a_diagonal_is_filled(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    check(DIAGONALS[case], tmp_path, optim_level="o3")

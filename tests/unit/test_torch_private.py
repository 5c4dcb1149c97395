"""Self-test of the private names of torch that we use: each is there and does what we rely on."""

import importlib
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from support import shows

pytestmark = shows("project", "native")

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("sambaflow.tracing.torch_private", "rdukit_compiler.torch_private", "rdukit_runtime.engine.torch_private")
#: The modules that stand in for torch's are named where they are made.
STAND_INS = "lazy_torch_imports.py"
#: Repairs of torch's code generator name what they mend.
REPAIRS = "inductor_repairs.py"
PRIVATE = re.compile(r"\btorch\._[a-z_A-Z]|from torch import _[a-z]")
#: What torch itself documents with an underscore, and names of files.
PUBLIC = re.compile(r"torch\.__(version|file)__|``torch\.\S+``")


@pytest.mark.parametrize("module", MODULES)
def test_this_torch_has_every_private_name(module: str) -> None:
    try:
        importlib.import_module(module)
    except (ImportError, AttributeError) as cause:
        pytest.fail(f"torch {torch.__version__} lacks a private name that {module} takes: {cause}")


@pytest.mark.parametrize("root", ["sdk", "compiler", "runtime"])
def test_private_names_of_torch_stand_in_one_module(root: str) -> None:
    assert len(list((ROOT / root).rglob("torch_private.py"))) == 1
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in sorted((ROOT / root).rglob("*.py"))
        if file.name not in {"torch_private.py", STAND_INS, REPAIRS}
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if PRIVATE.search(PUBLIC.sub("", line))
    ]
    assert found == [], "take these from torch_private.py"


def test_functions_of_subclasses_can_be_switched_off() -> None:
    from sambaflow.tracing import torch_private as private

    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_: object, **__: object) -> str:  # type: ignore[override]
            return "asked"

    loud = torch.ones(2).as_subclass(Loud)
    assert torch.neg(loud) == "asked"
    for context in (private.DisableTorchFunctionSubclass, private.DisableTorchFunction):
        with context():
            assert isinstance(torch.neg(loud), torch.Tensor)

    class Quiet(torch.Tensor):
        __torch_function__ = private.disabled_torch_function  # type: ignore[assignment]

    assert type(torch.neg(torch.ones(2).as_subclass(Quiet))) is torch.Tensor


def test_fake_tensors_have_no_values_and_can_be_left() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from sambaflow.tracing.torch_private import FakeTensor, unset_fake_temporarily

    with FakeTensorMode():
        assert type(torch.ones(2)) is FakeTensor
        with unset_fake_temporarily():
            assert type(torch.ones(2)) is torch.Tensor
    assert "_samba" not in vars(FakeTensor)


def test_a_parameter_is_rebuilt_from_data() -> None:
    from sambaflow.tracing.torch_private import rebuild_parameter

    made = rebuild_parameter(torch.ones(2), False, {})
    assert isinstance(made, nn.Parameter) and not made.requires_grad


def test_modules_that_are_known_by_name_can_be_found() -> None:
    from sambaflow.tracing import torch_private as private

    assert importlib.util.find_spec(private.DYNAMO) is not None
    assert hasattr(importlib.import_module(private.ASSOCIATIVE_SCAN), "associative_scan")
    assert private.FakeTensor.__module__.startswith(private.FAKE_TENSORS)


def test_fused_updates_are_those_of_the_formulas() -> None:
    from rdukit_runtime.engine import torch_private as private

    weight, slope, momentum = torch.ones(4), torch.full((4,), 2.0), torch.zeros(4)
    private.fused_sgd_(
        [weight], [slope], [momentum], weight_decay=0.0, momentum=0.5, lr=0.1, dampening=0.0, nesterov=False,
        maximize=False, is_first_step=False,
    )  # fmt: skip
    assert torch.allclose(weight, torch.full((4,), 0.8)) and torch.allclose(momentum, slope)
    weight, mean, spread, count = torch.ones(4), torch.zeros(4), torch.zeros(4), torch.ones(())
    private.fused_adamw_(
        [weight], [slope], [mean], [spread], [], [count], lr=0.1, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=0.0,
        amsgrad=False, maximize=False,
    )  # fmt: skip
    assert torch.allclose(weight, torch.full((4,), 0.9))
    private.foreach_add_([weight], 1)
    assert torch.allclose(weight, torch.full((4,), 1.9))


def test_int8_products_add_up_in_int32() -> None:
    from rdukit_runtime.engine.torch_private import int_mm

    made = int_mm(torch.full((32, 64), 100, dtype=torch.int8), torch.full((64, 32), 100, dtype=torch.int8))
    assert made.dtype == torch.int32 and made[0, 0] == 640_000


def test_handles_of_tensors_come_back_as_the_same_memory() -> None:
    from rdukit_runtime.engine.torch_private import alloc_handles, steal_handles

    tensor = torch.arange(4.0)
    (back,) = steal_handles(alloc_handles([tensor]))
    assert back.data_ptr() == tensor.data_ptr() and torch.equal(back, tensor)


def test_the_compiler_sees_modes_and_transformations() -> None:
    from rdukit_compiler import torch_private as private

    assert private.current_fake_mode() is None and not private.are_transforms_active()
    with private.FakeTensorMode() as mode:
        assert private.current_fake_mode() is mode
    seen: list[bool] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(private.are_transforms_active() and private.is_functorch_wrapped_tensor(x))
        return x.sum()

    torch.func.grad(function)(torch.ones(2))
    assert seen == [True]
    assert "aten::add.Tensor" in private.all_operator_names()
    assert private.has_kernel_for_key("aten::matmul", "CompositeImplicitAutograd")


def test_operators_and_stores_are_known() -> None:
    from rdukit_runtime.engine.torch_private import HashStore, OpOverload, has_cuda_kernel

    assert isinstance(torch.ops.aten.add.Tensor, OpOverload)
    assert has_cuda_kernel(torch.ops.aten.add.Tensor) in {True, False}
    store = HashStore()
    store.set("a", "b")
    assert store.get("a") == b"b"


def test_records_hold_the_gradients_and_views_that_the_compiler_looks_for() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from rdukit_compiler.capture.record import record_forward
    from rdukit_compiler.torch_private import trace_aten

    def joint(primal: torch.Tensor, tangent: torch.Tensor) -> list[torch.Tensor]:
        out = primal.tanh() * 2
        return [out, *torch.autograd.grad([out], [primal], [tangent])]

    traced = trace_aten(joint, [torch.ones(3, requires_grad=True), torch.ones(3)])
    assert any(str(node.target) == "aten.tanh_backward.default" for node in traced.graph.nodes)
    with FakeTensorMode():
        values = [torch.empty(3, 4)]
    recorded = record_forward(lambda tensors: [tensors[0].t() + 1, tensors[0].t() + 1], values)
    made = [(str(node.target), node.meta["val"].shape) for node in recorded.graph.nodes if node.op == "call_function"]
    assert made == [("aten.t.default", (4, 3)), ("aten.add.Tensor", (4, 3))] * 2

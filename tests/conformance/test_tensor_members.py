"""SambaTensor's members and operators against torch's on the same values; and what only a SambaTensor has."""

import copy
import operator
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sambaflow import samba
from sambaflow.samba.sambatensor import DimInfo, SambaTensor, SambaTensors, wrap
from support import shows
from support.programs import load_model

pytestmark = shows("surface")

PLAIN = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)) + 0.1

#: ``member arguments…``, integers.
MEMBERS = """float;bfloat16;half;int;short;long;bool;double;t;abs;sum;mean;max;min;argmax;relu;sigmoid;tanh;exp;neg;
square;any;all;clone;detach;contiguous;flatten;squeeze;cumsum 0;softmax -1;log_softmax -1;unsqueeze 1;topk 2;split 2;
chunk 2;repeat 2 2;expand 4 6;view 6 4;reshape -1;permute 1 0;transpose 0 1;std;norm;argsort;sort;median;
clamp 0 1;narrow 0 1 2;unbind 0;flip 0;triu;tril;sign;floor;roll 1;repeat_interleave 2 0;matmul_self;type_as_self"""

DESCRIBED = "shape dtype device requires_grad is_leaf grad_fn grad ndim nbytes T mT".split()
ASKED = "size dim numel tolist stride is_contiguous is_floating_point element_size".split()

OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "1 + x": lambda x: 1 + x,
    "x - 1": lambda x: x - 1,
    "2 / x": lambda x: 2 / x,
    "x // 2": lambda x: x // 2,
    "x % 2": lambda x: x % 2,
    "x ** 2": lambda x: x**2,
    "2 ** x": lambda x: 2**x,
    "-x": operator.neg,
    "torch * x": lambda x: PLAIN * x,
    "x * torch": lambda x: x * PLAIN,
    "x @ torch": lambda x: x @ PLAIN.t(),
    "torch @ x": lambda x: PLAIN.t() @ x,
    "==": lambda x: x == PLAIN,
    "<": lambda x: x < 0,
    ">=": lambda x: x >= 0,
    "& and |": lambda x: (x > 0) & (x < 1) | (x < -1),
    "~": lambda x: ~(x > 0),
    "^": lambda x: (x > 0) ^ (x > 1),
    "x[1]": lambda x: x[1],
    "slices": lambda x: x[1:3, -2:],
    "negative": lambda x: x[-1, :-1],
    "mask": lambda x: x[x > 0],
    "None": lambda x: x[:, None],
    "ellipsis": lambda x: x[..., 0],
    "list": lambda x: x[[0, 2]],
    "indices": lambda x: x[torch.tensor([0, 1])],
    "torch.max": lambda x: torch.max(x, 1),
    "cat": lambda x: torch.cat([x, PLAIN]),
    "stack": lambda x: torch.stack((x, x)),
    "where": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "einsum": lambda x: torch.einsum("bf,gf->bg", x, PLAIN),
    "linear": lambda x: nn.functional.linear(x, PLAIN),
    "layer norm": lambda x: nn.functional.layer_norm(x, (6,)),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
    "one_hot": lambda x: nn.functional.one_hot(x.argmax(1), 6),
    "to": lambda x: x.to("cpu", torch.int32),
    "gather": lambda x: x.gather(1, torch.zeros(4, 1, dtype=torch.long)),
    "interpolate": lambda x: nn.functional.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "iteration": list,
    "len": len,
    "float": lambda x: float(x[0, 0]),
    "item": lambda x: x[0, 0].item(),
    "truth": lambda x: bool((x > -100).all()),
    "numpy": lambda x: x.numpy().sum() == np.asarray(x).sum(),
}


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, list | tuple):
        return len(ours) == len(theirs) and all(same(a, b) for a, b in zip(ours, theirs, strict=True))
    if isinstance(theirs, torch.Tensor):
        assert isinstance(ours, SambaTensor)
        return ours.dtype == theirs.dtype and torch.equal(ours.torch(), theirs)
    return bool(ours == theirs)


@pytest.mark.parametrize("member", MEMBERS.replace("\n", "").split(";"))
def test_members_behave_as_in_torch_and_give_samba_tensors(member: str) -> None:
    name, *numbers = member.strip().split()
    arguments: list[Any] = [int(n) for n in numbers]
    if name.endswith("_self"):
        name, arguments = name.removesuffix("_self"), [PLAIN.t() if "matmul" in name else PLAIN.double()]
    ours, theirs = (getattr(x, name)(*arguments) for x in (samba.from_torch_tensor(PLAIN.clone()), PLAIN))
    assert same(ours, theirs)


@pytest.mark.parametrize("name", DESCRIBED + ASKED)
def test_questions_get_torchs_answers(name: str) -> None:
    ours, theirs = (getattr(x, name) for x in (SambaTensor(PLAIN), PLAIN))
    assert same(ours() if callable(ours) else ours, theirs() if callable(theirs) else theirs)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operators_and_functions_take_samba_tensors_on_either_side(operation: str) -> None:
    assert same(OPERATIONS[operation](SambaTensor(PLAIN)), OPERATIONS[operation](PLAIN))


@pytest.mark.parametrize("name", "cat stack sigmoid add abs addmm bmm cumsum argmax bitwise_not cross_entropy".split())
def test_samba_has_the_functions_and_refuses_out(name: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {
        "cat": ([PLAIN, PLAIN],), "stack": ([PLAIN, PLAIN],), "add": (PLAIN, PLAIN), "cumsum": (PLAIN, 1),
        "addmm": (PLAIN[0], PLAIN, torch.eye(6)), "bmm": (PLAIN[None], PLAIN.t()[None]), "bitwise_not": (PLAIN > 0,),
        "cross_entropy": (PLAIN, torch.tensor([0, 1, 2, 3])),
    }  # fmt: skip
    given = arguments.get(name, (PLAIN,))
    wrapped = tuple(wrap(a) for a in given)
    function = getattr(torch, name, None) or getattr(nn.functional, name)
    assert same(getattr(samba, name)(*wrapped), function(*given))
    with pytest.raises(TypeError, match="out="):
        getattr(samba, name)(*wrapped, out=torch.empty(()))


def test_items_can_be_set_and_the_wrapped_tensor_sees_it() -> None:
    plain = torch.zeros(3)
    tensor = samba.from_torch(plain, name="x")
    tensor[1], tensor[2:] = 5, SambaTensor(torch.ones(1))
    tensor.__setitem__(0, tensor.__getitem__(0))
    tensor += 1
    assert plain.tolist() == [1, 6, 2]


def test_autograd_runs_through_samba_tensors_on_the_host() -> None:
    x = samba.randn(3, name="x", requires_grad=True)
    assert x.is_leaf and x.requires_grad and (x * 2).grad_fn is not None
    (x * x).sum().backward()
    assert torch.equal(x.grad, 2 * x.data)
    assert not x.requires_grad_(False).requires_grad


def test_a_change_of_dtype_keeps_name_dims_and_region() -> None:
    made = samba.randn(2, 3, name="x", batch_dim=0, named_dims=("B", None), sized_dims=(2, 3), region_name="r")
    made.host_memory, made.mem_type = False, "DDR"
    for cast in (
        made.bfloat16().float(),
        made.to(torch.bfloat16),
        made.half(),
        made.int(),
        made.to("cpu", torch.int16),
    ):
        assert (cast.sn_name, cast.sn_region_name, cast.batch_dim) == ("x", "r", 0)
        assert (cast.named_dims, cast.sized_dims, cast.host_memory) == (("B", None), (2, 3), False)


def test_tensors_can_be_copied_pickled_extended_and_emptied() -> None:
    made = samba.ones(2, 3, name="x")
    made.anything = "goes"
    for twin in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert (twin.sn_name, twin.anything, twin.data_ptr() != made.data_ptr()) == ("x", "goes", True)
    made.clear_data()
    assert not made.has_data and made.shape == (2, 3) and "x" in repr(made)


def test_a_collection_of_named_tensors_keeps_its_order() -> None:
    made = samba.from_named_dict({"b": torch.ones(1), "a": samba.zeros(2), "none": None})
    assert isinstance(made, SambaTensors)
    assert [t.sn_name for t in made] == ["b", "a"]
    assert DimInfo(7).max == 7


def test_a_tensor_moves_between_host_and_device(tmp_path: Path) -> None:
    net = nn.Linear(6, 2)
    x = samba.from_torch_tensor(PLAIN.clone(), name="x")
    loaded = load_model(net, x, tmp_path, precision="f32")
    x.rdu()
    assert torch.equal(x.sn_data, PLAIN)
    loaded.run(input_tensors=None)
    out = loaded.outputs[0]
    assert torch.equal(out.cpu().torch(), out.sn_data)
    x.data.zero_()
    assert torch.equal(x.cpu_().torch(), PLAIN), "the host's copy is the device's again"
    with torch.no_grad():
        net.weight.fill_(1)
    net.weight.rdu()
    assert bool((net.weight.sn_data == 1).all())

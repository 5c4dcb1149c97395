"""SambaTensor: what programs do with one on the host (SDK reference 5)."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from rdukit.errors import InvalidArgument
from sambaflow import samba
from sambaflow.samba.sambatensor import SambaTensor
from support import shows

pytestmark = shows("surface")


def image(*shape: int) -> SambaTensor:
    return samba.randn(*(shape or (2, 3)), name="image", batch_dim=0, named_dims=("B", "F"))


def test_it_wraps_without_copying() -> None:
    values = torch.zeros(3)
    wrapped = samba.from_torch_tensor(values, name="x")
    values[0] = 7
    assert wrapped.data[0].item() == 7
    assert wrapped.data_ptr() == values.data_ptr()
    assert not isinstance(wrapped, torch.Tensor)


@pytest.mark.parametrize("cast", ["float", "bfloat16", "half", "double", "int", "long", "short", "bool"])
def test_a_cast_keeps_name_and_dims(cast: str) -> None:
    made = getattr(image(), cast)()
    assert (made.sn_name, made.batch_dim, made.named_dims) == ("image", 0, ("B", "F"))
    assert made.to(torch.float32).sn_name == "image"


def test_rounding_through_bf16_keeps_the_name_and_makes_the_values_representable() -> None:
    made = samba.randn(4, 1, 28, 28, name="image", batch_dim=0, named_dims=("B", "C", "H", "W")).bfloat16().float()
    assert (made.sn_name, made.batch_dim, made.dtype) == ("image", 0, torch.float32)
    assert torch.equal(made.data, made.data.bfloat16().float())


def test_mixed_expressions_work_in_both_orders() -> None:
    plain, wrapped = torch.arange(6.0).reshape(2, 3), samba.from_torch_tensor(torch.ones(2, 3), name="x")
    for made in (plain + wrapped, wrapped + plain, plain * wrapped, plain @ wrapped.t(), wrapped @ plain.T, 2 - wrapped,
                 plain == wrapped, torch.add(plain, wrapped), torch.cat([plain, wrapped]), wrapped**2, -wrapped,
                 torch.where(plain > 1, plain, wrapped), torch.nn.functional.relu(wrapped)):  # fmt: skip
        assert isinstance(made, SambaTensor)
    assert torch.equal((2 - wrapped).data, torch.ones(2, 3))
    values, index = torch.max(wrapped.data, 1)
    assert isinstance(values, torch.Tensor)
    assert isinstance(index, torch.Tensor)


def test_operators_exist_under_their_samba_names() -> None:
    x = samba.from_torch_tensor(torch.tensor([[1.0, -2.0], [3.0, 4.0]]), name="x")
    assert samba.cat([x, x]).shape == (4, 2)
    assert samba.stack([x, x], 1).shape == (2, 2, 2)
    assert torch.equal(samba.abs(x).data, x.data.abs())
    assert torch.equal(samba.sigmoid(x).data, x.data.sigmoid())
    assert samba.argmax(x).item() == 3
    assert samba.cross_entropy(x, torch.tensor([0, 1])).shape == ()
    with pytest.raises(TypeError, match="out= is not supported"):
        samba.add(x, x, out=torch.empty(2, 2))
    with pytest.raises(AttributeError, match="no_such_operator"):
        _ = samba.no_such_operator


def test_addmm_takes_a_transposed_matrix() -> None:
    bias, a, b = torch.randn(3), torch.randn(2, 4), torch.randn(3, 4)
    made = samba.addmm(samba.from_torch_tensor(bias), a, b, is_transposed=True)
    assert torch.allclose(made.data, torch.addmm(bias, a, b.t()))
    assert torch.allclose(
        samba.addmm(bias, a, b.t(), beta=2, alpha=3).data, torch.addmm(bias, a, b.t(), beta=2, alpha=3)
    )


def test_indexing_takes_numbers_slices_masks_and_tensors() -> None:
    x = samba.from_torch_tensor(torch.arange(12.0).reshape(3, 4), name="x")
    assert x[1, -1].item() == 7
    assert x[:, -2:].shape == (3, 2)
    assert x[x > 5].shape == (6,)
    assert x[samba.tensor([2, 0])].data[0, 0] == 8
    x[0] = samba.zeros(4)
    x[x > 10] = -1
    assert x.data[0].sum() == 0
    assert x.data[2, 3] == -1


def test_iteration_length_and_unpacking() -> None:
    x = samba.from_torch_tensor(torch.arange(4.0).reshape(2, 2), name="x")
    first, second = x
    assert isinstance(first, SambaTensor)
    assert second.tolist() == [2.0, 3.0]
    assert len(x) == 2
    assert x.size() == x.shape == (2, 2)
    assert (x.size(0), x.dim(), x.numel(), x.ndim) == (2, 2, 4, 2)


def test_in_place_operators_change_the_wrapped_tensor_and_return_the_same_object() -> None:
    values = torch.ones(3)
    x = samba.from_torch_tensor(values, name="x")
    same = x
    x += 1
    x *= samba.from_torch_tensor(torch.full((3,), 2.0))
    x -= 1
    x /= 3
    assert x is same
    assert values.tolist() == [1.0, 1.0, 1.0]
    assert x.add_(1) is x
    assert x.sn_name == "x"
    assert values.tolist() == [2.0, 2.0, 2.0]


def test_numpy_reads_it() -> None:
    x = samba.from_torch_tensor(torch.arange(3.0), name="x")
    assert np.asarray(x).tolist() == x.numpy().tolist() == [0.0, 1.0, 2.0]
    assert np.asarray(x, dtype=np.int32).dtype == np.int32
    assert float(x[1]) == int(x[1]) == 1
    assert bool(x[2])
    assert samba.to_torch(x).numpy().shape == (3,)


def test_autograd_works_as_in_torch() -> None:
    x = samba.from_torch_tensor(torch.tensor([1.0, 2.0]), name="x").requires_grad_()
    assert x.is_leaf
    y = (x * x).sum()
    assert y.grad_fn is not None
    y.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 4.0]
    assert not x.detach().requires_grad


def test_an_empty_tensor_knows_its_shape_and_can_be_filled_later() -> None:
    empty = SambaTensor(shape=(2, 3), dtype=torch.bfloat16, name="cache", region_name="kv")
    assert not empty.has_data
    assert (empty.shape, empty.dtype, empty.dim(), empty.numel(), empty.size(1)) == ((2, 3), torch.bfloat16, 2, 6, 3)
    assert len(empty) == 2
    assert empty.device == torch.device("cpu")
    assert not empty.requires_grad
    assert not hasattr(empty, "no_such_attribute")
    assert empty.sn_region_name == "kv"
    assert "cache" in repr(empty)
    for read in ("item", "tolist", "numpy", "torch_tensor", "__bool__"):
        with pytest.raises(InvalidArgument, match="'cache' is empty"):
            getattr(empty, read)()
    empty.data = torch.ones(2, 3)
    assert empty.has_data
    assert empty.sum().item() == 6


def test_functions_of_empty_tensors_infer_shape_and_dtype() -> None:
    k = SambaTensor(shape=(2, 3), dtype=torch.bfloat16, name="k")
    for made, shape, dtype in (
        (torch.add(k, k), (2, 3), torch.bfloat16),
        (samba.add(k, 1), (2, 3), torch.bfloat16),
        (torch.ones(2, 3) * k, (2, 3), torch.float32),
        (k.float() @ k.float().t(), (2, 2), torch.float32),
        (k[:, :1], (2, 1), torch.bfloat16),
        (k == 0, (2, 3), torch.bool),
        (torch.cat([k, k]).T, (3, 4), torch.bfloat16),
        (k.topk(1)[1], (2, 1), torch.int64),
    ):
        assert isinstance(made, SambaTensor) and not made.has_data
        assert (tuple(made.shape), made.dtype) == (shape, dtype)


def test_mixed_floating_dtypes_promote_in_methods_operators_and_functions() -> None:
    narrow, wide = SambaTensor(torch.ones(2, 2).bfloat16()), torch.ones(2, 2)
    for made in (
        narrow @ wide,
        wide @ narrow,
        narrow.matmul(wide),
        torch.matmul(wide, narrow),
        samba.add(narrow, wide),
    ):
        assert made.dtype == torch.float32
    linear = nn.Linear(2, 2)
    samba.from_torch_model_(linear)
    assert (linear.weight @ narrow).dtype == torch.float32


def test_other_libraries_take_a_samba_tensor_as_an_array() -> None:
    tensor = SambaTensor(torch.arange(6.0).reshape(2, 3))
    assert torch.equal(torch.as_tensor(tensor), tensor.torch())
    assert torch.as_tensor(SambaTensor(torch.tensor(3.0))).item() == 3
    with pytest.raises(TypeError, match="0-d"):
        len(SambaTensor(torch.tensor(3.0)))


def test_a_materializer_gives_the_values_when_they_are_needed() -> None:
    lazy = SambaTensor(
        shape=(2,), dtype=torch.float32, name="w", materializer=lambda t, _: torch.full(tuple(t.shape), 5.0)
    )
    assert not lazy.has_data
    assert lazy.sum().item() == 10
    alone = SambaTensor(shape=(2,), dtype=torch.bfloat16, materializer=lambda t: torch.ones(tuple(t.shape)))
    assert alone.torch().dtype == torch.bfloat16


def test_a_tensor_without_values_or_shape_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="a shape and a dtype"):
        SambaTensor(name="x")


def test_repr_shows_values_and_a_summary_and_never_fails() -> None:
    text = repr((image(), SambaTensor(shape=(), dtype=torch.int32)))
    assert "name=image" in text.replace("'", "")
    assert "named_dims=('B', 'F')" in text
    assert "batch_dim=0" in text
    meta = samba.from_torch_tensor(torch.empty(2, device="meta"), name="m")
    assert "m" in repr(meta)
    assert not meta.has_data


def test_names_are_generated_where_none_is_given() -> None:
    first, second = samba.zeros(1), samba.zeros(1)
    assert first.sn_name.startswith("sambatensor_")
    assert first.sn_name != second.sn_name
    first.sn_name = "mine"
    assert first.sn_name == first.sn_region_name == "mine"


def test_it_survives_pickling_and_copying_with_its_name_and_extra_attributes() -> None:
    x = image()
    x.host_memory, x.remark = True, "kept"
    for made in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert (made.sn_name, made.batch_dim, made.host_memory, made.remark) == ("image", 0, True, "kept")
        assert torch.equal(made.data, x.data)
        assert made.data_ptr() != x.data_ptr()
    empty = pickle.loads(pickle.dumps(SambaTensor(shape=(3,), dtype=torch.float32, name="e")))
    assert (empty.sn_name, empty.shape, empty.has_data) == ("e", (3,), False)


def test_attributes_of_any_name_may_be_set() -> None:
    x = image()
    x.anything = [1, 2]
    assert x.anything == [1, 2]


def test_clear_data_leaves_shape_and_dtype() -> None:
    x = image()
    x.clear_data()
    assert (x.shape, x.dtype, x.has_data) == ((2, 3), torch.float32, False)


def test_both_spellings_give_the_torch_tensor() -> None:
    x = image()
    assert x.torch() is x.torch_tensor() is samba.to_torch(x)
    assert samba.to_torch([x, x.data])[0] is x.torch()
    parameter = nn.Parameter(torch.ones(1))
    assert torch.equal(samba.to_torch(parameter), torch.ones(1))


def test_creation_takes_torch_arguments_and_names() -> None:
    samba.set_seed(3)
    first = samba.randn((2, 2), name="a", dtype=torch.float64)
    samba.set_seed(3)
    assert torch.equal(first.data, torch.randn(2, 2, dtype=torch.float64))
    assert samba.randint(2, 5, (3,), name="b").dtype == torch.int64
    assert samba.randint(5, (3,)).shape == (3,)
    assert samba.full((2,), 3.0, name="f").tolist() == [3.0, 3.0]
    assert samba.arange(3).tolist() == [0, 1, 2]
    assert samba.normal(0.0, 1.0, (2, 3), name="n").shape == (2, 3)
    assert samba.randn_like(first).dtype == torch.float64
    assert samba.rand(2, requires_grad=True).requires_grad
    assert samba.tensor([1, 2], name="t").tolist() == [1, 2]
    assert samba.ones(2).tolist() == [1.0, 1.0]


def test_a_named_dict_gives_tensors_in_its_order() -> None:
    named = samba.from_named_dict({"b": torch.ones(1), "a": samba.zeros(2, name="other")})
    assert [t.sn_name for t in named] == ["b", "a"]
    assert named["a"].shape == (2,)


def test_the_python_modules_resolve_in_all_three_spellings() -> None:
    import sambaflow.samba as first
    from sambaflow import samba as second
    from sambaflow.samba import SambaTensor as third
    from sambaflow.samba.utils.utils import trace_graph

    assert first is second
    assert third is first.SambaTensor
    assert first.utils.trace_graph is trace_graph
    assert first.session.run is not None
    assert first.optim.adam.AdamW is first.optim.AdamW

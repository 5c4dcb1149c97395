"""Arguments of operators that are legal and rare: sizes of zero, masks, lists of booleans, defaults, complex values."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rdukit.errors import CompileError, SectionFailed, UnsupportedOperator
from sambaflow import samba
from support import shows
from support.programs import load_model

pytestmark = shows("operators", "precision", "o0", "o3", "native", "portable")

#: weight [3, 4], input → output.
Function = Callable[[torch.Tensor, Any], torch.Tensor]
REAL = torch.randn(3, 4, generator=torch.Generator().manual_seed(3))
WHOLE = torch.arange(12).reshape(3, 4)


class Calls(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.weight = nn.Parameter(REAL.flip(0) + 0.5)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.weight, x)


def put(index: Callable[[Any], Any], value: Callable[[torch.Tensor], Any]) -> Function:
    """A write of ``value(weight)`` at ``index(x)`` into twice the weight."""

    def write(weight: torch.Tensor, x: Any) -> torch.Tensor:
        made = weight * 2
        made[index(x)] = value(weight)
        return made

    return write


CASES: dict[str, tuple[Function, torch.Tensor]] = {
    "shift left": (lambda w, x: w * (x << 2), WHOLE),
    "shift right": (lambda w, x: w * (x >> 1), WHOLE),
    "and, or, xor": (lambda w, x: w * ((x & 3) ^ (x | 4)), WHOLE),
    "list of booleans": (lambda w, x: w[[True, False, True]] * x[[True, True, False]], REAL),
    "list of booleans, axis 1": (lambda w, x: (w * x)[:, [True, False, True, True]], REAL),
    "mask that forward makes": (lambda w, x: (w * x)[torch.arange(3) > 0], REAL),
    "mask, one value": (put(lambda x: x > 0, lambda w: w[0, 0]), REAL),
    "mask, constant": (put(lambda x: x > 0, lambda w: 0.5), REAL),
    "mask over rows": (put(lambda x: x[:, 0] > -9, lambda w: w * w), REAL),
    "mask over rows, one row": (put(lambda x: x[:, 0] > 0, lambda w: w[0]), REAL),
    "mask over columns": (put(lambda x: (slice(None), x[0] > -9), lambda w: w * w), REAL),
    "mask over columns, one": (put(lambda x: (slice(None), x[0] > 0), lambda w: w[:, :1]), REAL),
    "mask, accumulated": (lambda w, x: torch.index_put(w * 1, (x > -9,), (w * w).flatten(), accumulate=True), REAL),
    "index_fill, value followed": (lambda w, x: x.index_fill(1, torch.tensor([0, 2]), w.sum()), REAL),
    "index_fill of a number": (lambda w, x: w.sum().index_fill(0, torch.tensor([0]), 2.0) + x, REAL),
    "index_select of a number": (lambda w, x: w.sum().index_select(0, torch.tensor([0])) + x, REAL),
    "slice with defaults": (lambda w, x: torch.ops.aten.slice(w) * x, REAL),
    "product of no rows": (lambda w, x: torch.cat([w[:0] @ x.t(), w @ x.t()]), REAL),
    "product over nothing": (lambda w, x: w[:, :0] @ x.t()[:0] + w.sum(), REAL),
    "addmm of no rows": (lambda w, x: torch.addmm(w[:0, :3], x[:0], x.t()).sum() + w, REAL),
    "convolution of no channels": (lambda w, x: F.conv1d(x[None, :0], torch.ones(2, 0, 1)).sum() + w, REAL),
    "bilinear of no rows": (lambda w, x: F.bilinear(x[:0], w[:0], torch.ones(2, 4, 4)).sum() + w, REAL),
    "fourier": (lambda w, x: torch.fft.fft(w * x).abs(), REAL),
    "fourier over time and back": (
        lambda w, x: torch.istft(torch.stft((w * x).flatten(), 4, 1, window=torch.hann_window(4), return_complex=True),
                                 4, 1, window=torch.hann_window(4)), REAL),
    "ctc, lengths as numbers": (
        lambda w, x: F.ctc_loss(w.reshape(3, 2, 2).log_softmax(-1), x[:2, 1:2] * 0 + 1, (3, 3), (1, 1)), WHOLE),
    "ctc, lengths as tensors of forward": (
        lambda w, x: F.ctc_loss(w.reshape(3, 2, 2).log_softmax(-1), x[:2, 1:3] * 0 + 1, torch.full((2,), 3),
                                torch.tensor([1, 2]), zero_infinity=True), WHOLE),
    "unfold": (lambda w, x: F.unfold((w * x)[None, None], (2, 2), padding=(1, 2)), REAL),
    "complex product": (lambda w, x: (torch.complex(w, x).conj() * torch.complex(x, w)).imag, REAL),
    "complex constant": (lambda w, x: torch.view_as_real(torch.complex(w, x) * (2 - 3j)), REAL),
    "polar": (lambda w, x: torch.view_as_real(torch.polar(w.abs(), x)), REAL),
    "sign of a complex number": (lambda w, x: torch.view_as_real(torch.sgn(torch.complex(w, x))), REAL),
    "sign": (lambda w, x: torch.sgn(w) * x, REAL),
    "histc": (lambda w, x: torch.histc(x, bins=5, min=-2, max=2) + w.sum(), REAL),
    "covariance": (lambda w, x: torch.cov(w * x) + torch.corrcoef(w), REAL),
    "covariance, weights": (
        lambda w, x: torch.cov(w * x, fweights=torch.tensor([1, 2, 1, 1]), aweights=torch.tensor([0.5, 1, 2, 1])),
        REAL,
    ),
    "gaussian loss": (lambda w, x: F.gaussian_nll_loss(w, x, x.abs() + 1, full=True), REAL),
    "gaussian loss, variance followed": (lambda w, x: F.gaussian_nll_loss(x, x * 2, w.abs(), eps=0.5), REAL),
    "draws, generator=None": (
        lambda w, x: w * x + 0 * (torch.randn(3, 4, generator=None) + torch.rand(3, 4, generator=None)
                                  + torch.randint(5, (3, 4), generator=None)
                                  + torch.randint(2, 5, (3, 4), generator=None)), REAL),
    "uint16": (lambda w, x: w * x.to(torch.uint16).float(), WHOLE),
    "complex128": (lambda w, x: (w * x).to(torch.complex128).real.float(), REAL),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["o0", "o3"])
@pytest.mark.parametrize("case", CASES)
def test_rare_arguments_give_torchs_numbers_and_gradients(case: str, mode: str, tmp_path: Path) -> None:
    function, x = CASES[case]
    net, reference = Calls(function), Calls(function)
    inputs = samba.from_torch_tensor(x.clone(), name="x")
    loaded = load_model(
        net, inputs, tmp_path, lambda p: samba.optim.SGD(p, lr=0.0), optim_level=mode, precision="f32"
    )  # fmt: skip
    gold = reference(x)
    seed = torch.linspace(-1, 1, gold.numel()).reshape(gold.shape)
    (out,) = loaded.run(section_types=["fwd", "bckwd"], grad_of_outputs=[seed])
    # f32, sums in another order at most
    assert torch.allclose(out.data, gold.detach(), atol=1e-5)
    gold.backward(seed)
    assert torch.allclose(samba.to_torch(net.weight.sn_grad), reference.weight.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        torch.cdist,
        lambda w, x: (torch.fft.fft(w) * torch.fft.rfft(x, n=6)).imag,
        lambda w, x: torch.complex(w, x).abs(),
        lambda w, x: F.pdist(w * x),
        lambda w, x: F.avg_pool3d((w * x).reshape(1, 1, 1, 3, 4), (1, 2, 2)),
    ],
)
def test_what_torch_has_no_bf16_form_of_is_computed_in_f32_at_default_precision(
    function: Function, tmp_path: Path
) -> None:
    x = REAL.bfloat16().float()
    net, reference = Calls(function), Calls(function)
    reference.weight.data = reference.weight.data.bfloat16().float()
    loaded = load_model(
        net, samba.from_torch_tensor(x.clone(), name="x"), tmp_path, lambda p: samba.optim.SGD(p, lr=0.0)
    )  # fmt: skip
    (out,) = loaded.run(section_types=["fwd", "bckwd"])
    gold = reference(x)
    gold.backward(torch.ones_like(gold))
    gradient = samba.to_torch(net.weight.sn_grad)
    # a few roundings of 2^-9 each, of the largest value
    assert (out.data - gold.detach()).abs().max() <= 2**-6 * gold.abs().max()
    assert (gradient - reference.weight.grad).abs().max() <= 2**-6 * reference.weight.grad.abs().max()


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (
            lambda w, x: torch.ops.aten._native_batch_norm_legit(w, None, None, x[0], x[1], True, 0.1, 1e-5)[0],
            r"'forward': _native_batch_norm_legit overwrites its arguments running_mean, running_var",
        ),
        (
            lambda w, x: F.ctc_loss(w.reshape(3, 2, 2), torch.ones(2, 1).long(), x[0, :2].long(), x[1, :2].long()),
            r"ctc_loss has lengths that depend on data; pass constant numbers",
        ),
        (lambda w, x: torch.histogramdd(w * x, [2] * 4)[0], r"'forward': histogramdd returns a list"),
        (
            lambda w, x: (w * x).to(torch.float8_e5m2),
            r"'forward': to returns a tensor of dtype float8_e5m2; the RDU takes.*complex64",
        ),
    ],
)
def test_what_a_graph_cannot_hold_is_refused_with_what_would_be_legal(
    function: Function, text: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedOperator, match=text):
        load_model(Calls(function), samba.from_torch_tensor(REAL.clone(), name="x"), tmp_path)


@pytest.mark.parametrize("mode", ["o0", "o3"])
def test_an_instance_norm_keeps_its_statistics(mode: str, tmp_path: Path) -> None:
    net = nn.Sequential(nn.InstanceNorm2d(3, affine=True, track_running_stats=True, momentum=0.3))
    reference = copy.deepcopy(net)
    loaded = load_model(
        net, samba.randn(2, 3, 5, 4, name="x"), tmp_path, lambda p: samba.optim.SGD(p, lr=0.0),
        optim_level=mode, precision="f32",
    )  # fmt: skip
    for _ in range(2):
        (out,) = loaded.run(section_types=["fwd", "bckwd"])
        gold = reference(loaded.inputs.data)
    samba.session.to_cpu(net)
    assert torch.allclose(out.data, gold.detach(), atol=1e-5)  # f32, sums in another order
    for ours, theirs in zip(net.buffers(), reference.buffers(), strict=True):
        assert torch.allclose(samba.to_torch(ours), theirs, atol=1e-6)


def test_a_sparse_tensor_is_refused_by_name(tmp_path: Path) -> None:
    inputs = samba.from_torch_tensor(REAL.to_sparse_coo(), name="x")
    with pytest.raises(CompileError, match=r"'x' has layout torch\.sparse_coo; .*to_dense\(\)"):
        load_model(Calls(lambda w, x: x @ w.t()), inputs, tmp_path)


def test_a_negative_variance_or_weight_which_torch_refuses_makes_nan(tmp_path: Path) -> None:
    def losses(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([F.gaussian_nll_loss(w, w, x), torch.cov(w[0], aweights=x[0])])

    loaded = load_model(
        Calls(losses), samba.from_torch_tensor(-REAL.abs(), name="x"), tmp_path, precision="f32"
    )  # fmt: skip
    (out,) = loaded.run()
    assert torch.isnan(out.data).all()


@pytest.mark.parametrize("mode", ["o0", "o3"])
@pytest.mark.parametrize("kernels", ["portable", "native"])
def test_an_index_beyond_its_table_is_an_error_that_names_the_section(
    kernels: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", kernels)
    net = Calls(lambda w, x: F.embedding(x, w) * 2)
    loaded = load_model(net, samba.from_torch_tensor(torch.tensor([0, 7]), name="x"), tmp_path, optim_level=mode)
    with pytest.raises(SectionFailed, match=r"section '\w+' failed: .*index.*calls__embedding.*within their tables"):
        loaded.run()
    loaded.inputs = samba.from_torch_tensor(torch.tensor([0, 2]), name="x")
    (out,) = loaded.run()
    assert torch.equal(out.data[1], 2 * net.weight.data[2].bfloat16().float())


def test_a_gradient_that_depends_on_data_is_refused_with_its_operator(tmp_path: Path) -> None:
    def mixed(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.index_put(w * 1, (torch.tensor([0, 0]), x[0] > 0), w[:2, 0])

    inputs = samba.from_torch_tensor(REAL.clone(), name="x")
    with pytest.raises(UnsupportedOperator, match=r"'index_put' in module 'forward'.*depends on data.*torch\.where"):
        load_model(Calls(mixed), inputs, tmp_path, lambda p: samba.optim.SGD(p, lr=0.0))


def test_what_torch_refuses_while_it_is_traced_is_refused_with_torchs_reason(tmp_path: Path) -> None:
    def shifts(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return w << x  # of floating numbers

    inputs = samba.from_torch_tensor(REAL.clone(), name="x")
    with pytest.raises(CompileError, match=r"in module 'forward' \(test_operator_arguments.py.*lshift: Expected"):
        load_model(Calls(shifts), inputs, tmp_path, precision="f32")

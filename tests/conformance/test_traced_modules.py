"""Modules of torch that look at values in forward: on the device they compute what eager torch computes."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from rdukit.errors import InvalidArgument, TraceError
from sambaflow import samba
from sambaflow.tracing import static_forms as orthogonal_maps
from support import shows
from support.programs import compare_step, load_model

pytestmark = shows("pytorch", "precision", "o0", "o1", "o3")


class Layered(nn.Module):
    """A linear layer before ``layer``, and a nonlinearity behind it."""

    def __init__(self, layer: nn.Module, width: int = 4) -> None:
        super().__init__()
        self.before = nn.Linear(6, width)
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(self.before(x)).tanh()


class Convolved(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 2)
        self.norm = norm

    def forward(self, x: torch.Tensor) -> Any:
        return self.norm(self.conv(x.view(2, 2, 2, 3))).relu()


MAPS = ["matrix_exp", "cayley", "householder"]
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "batch-norm-cumulative": lambda: Layered(nn.BatchNorm1d(4, momentum=None)),
    "batch-norm-2d-cumulative": lambda: Convolved(nn.BatchNorm2d(3, momentum=None, affine=False)),
    "spectral-norm": lambda: Layered(parametrizations.spectral_norm(nn.Linear(4, 5))),
    "spectral-norm-3-steps": lambda: Layered(parametrizations.spectral_norm(nn.Linear(4, 5), n_power_iterations=3)),
    "spectral-norm-old": lambda: Layered(spectral_norm(nn.Linear(4, 5))),
    "spectral-norm-conv": lambda: Convolved(parametrizations.spectral_norm(nn.Conv2d(3, 4, 1))),
    "weight-norm": lambda: Layered(parametrizations.weight_norm(nn.Linear(4, 5))),
    **{
        f"orthogonal-{word}-{rows}x{columns}{'-plain' if not trivial else ''}": lambda word=word, rows=rows,
        columns=columns, trivial=trivial: Layered(
            parametrizations.orthogonal(nn.Linear(columns, rows), orthogonal_map=word, use_trivialization=trivial),
            columns,
        )
        for word in MAPS
        for rows, columns, trivial in ((5, 5, True), (6, 3, True), (3, 6, False))
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("case", "mode"),
    [(case, mode) for case in LAYERS for mode in (("o0", "o1", "o3") if "orthogonal" not in case else ("o1", "o3"))],
)
def test_a_step_leaves_what_eager_torch_leaves(case: str, mode: str, tmp_path: Path) -> None:
    compare_step(LAYERS[case](), samba.randn(4, 6, name="x"), tmp_path, optim_level=mode, tolerance=2e-5)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
def test_old_weight_norm_computes_and_trains_as_in_torch(tmp_path: Path) -> None:
    torch.manual_seed(3)
    net = Layered(weight_norm(nn.Linear(4, 5)))
    torch.manual_seed(3)
    reference = Layered(weight_norm(nn.Linear(4, 5)))  # torch cannot copy such a layer
    compare_step(net, samba.randn(4, 6, name="x"), tmp_path, reference=reference)


@pytest.mark.parametrize("mode", ["o0", "o3"])
def test_cumulative_statistics_are_means_over_all_batches(mode: str, tmp_path: Path) -> None:
    net = LAYERS["batch-norm-cumulative"]()
    reference = copy.deepcopy(net)
    batches = [samba.randn(4, 6, name="x") for _ in range(4)]
    loaded = load_model(
        net, batches[0], tmp_path, lambda p: samba.optim.SGD(p, lr=0.0), optim_level=mode, precision="f32"
    )
    for batch in batches:
        loaded.run(input_tensors=batch)
        reference(batch.data)
    samba.session.to_cpu(net)
    assert net.layer.num_batches_tracked.item() == 4
    assert torch.allclose(net.layer.running_mean, reference.layer.running_mean, atol=1e-6)
    assert torch.allclose(net.layer.running_var, reference.layer.running_var, rtol=1e-5)


def test_cumulative_statistics_of_infinite_numbers_are_infinite(tmp_path: Path) -> None:
    net = LAYERS["batch-norm-cumulative"]()
    reference = copy.deepcopy(net)
    batch = torch.randn(4, 6)
    batch[0, 0] = torch.inf
    loaded = load_model(net, samba.from_torch_tensor(batch, name="x"), tmp_path, precision="f32")
    loaded.run()
    reference(batch)
    samba.session.to_cpu(net)
    assert reference.layer.running_mean.isinf().any()
    assert torch.equal(net.layer.running_mean, reference.layer.running_mean)


def test_power_iterations_go_on_from_step_to_step(tmp_path: Path) -> None:
    net = LAYERS["spectral-norm"]()
    reference = copy.deepcopy(net)
    loaded = load_model(
        net, samba.randn(4, 6, name="x"), tmp_path, lambda p: samba.optim.SGD(p, lr=0.1), precision="f32"
    )
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(5):
        (out,) = loaded.run()
        optimizer.zero_grad()
        gold = reference(loaded.inputs.data)
        gold.backward(torch.ones_like(gold))
        optimizer.step()
        assert torch.allclose(out.data, gold, atol=1e-5)


@pytest.mark.parametrize("word", MAPS)
def test_in_bf16_the_map_is_computed_in_f32_and_stays_orthogonal(word: str, tmp_path: Path) -> None:
    class Weight(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = parametrizations.orthogonal(nn.Linear(8, 8, bias=False), orthogonal_map=word)

        def forward(self, x: torch.Tensor) -> Any:
            return x @ self.layer.weight.t()

    eye = samba.from_torch_tensor(torch.eye(8), name="x")
    (out,) = load_model(Weight(), eye, tmp_path).run()
    assert (out.data @ out.data.t() - torch.eye(8)).abs().max() < 3e-2, "bf16 rounds each element of Q once"


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 30.0, 500.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_maps_agree_with_torchs_own_for_small_and_large_values(scale: float, dtype: torch.dtype) -> None:
    x = (torch.randn(3, 7, 7, dtype=torch.float64) * scale).requires_grad_()
    weights = torch.randn(3, 7, 7, dtype=torch.float64)
    skew, identity = x - x.mT, torch.eye(7, dtype=torch.float64)
    pairs = [
        (orthogonal_maps.matrix_exp(skew.to(dtype)), torch.matrix_exp(skew)),
        (
            orthogonal_maps.solve_near_identity((identity - skew / 2).to(dtype), (identity + skew / 2).to(dtype)),
            torch.linalg.solve(identity - skew / 2, identity + skew / 2),
        ),
        (
            orthogonal_maps.householder_product(
                x.tril(-1).to(dtype), (2 / (1 + x.tril(-1).square().sum(-2))).to(dtype)
            ),
            torch.linalg.householder_product(x.tril(-1), 2 / (1 + x.tril(-1).square().sum(-2))),
        ),
    ]
    # The exponential's relative error grows with the norm, in any method: each squaring doubles it.
    limit = (1e-11 if dtype == torch.float64 else 1e-5) * (1 + 30 * scale)
    for ours, theirs in pairs:
        assert (ours - theirs).abs().max() < limit
        (found,) = torch.autograd.grad((ours * weights).sum(), x, retain_graph=True)
        (wanted,) = torch.autograd.grad((theirs * weights).sum(), x, retain_graph=True)
        assert (found - wanted).abs().max() < limit * max(1.0, float(wanted.abs().max()))


def test_values_that_are_out_of_reach_give_nan_and_no_wrong_number() -> None:
    huge = torch.full((2, 2), 1e6).triu(1)
    assert orthogonal_maps.matrix_exp(huge - huge.mT).isnan().all()
    assert orthogonal_maps.solve_near_identity(torch.ones(2, 2), torch.eye(2)).isnan().all()


def test_after_a_trace_the_hosts_modules_are_torchs_own(tmp_path: Path) -> None:
    forward, normalize = nn.BatchNorm1d.forward, nn.functional.normalize
    net = LAYERS["spectral-norm-old"]()
    load_model(net, samba.randn(4, 6, name="x"), tmp_path)
    assert nn.BatchNorm1d.forward is forward
    assert nn.functional.normalize is normalize
    assert type(net.layer.weight) is torch.Tensor, "a weight that a hook computes is the host's"
    assert torch.isfinite(samba.to_torch(net(torch.randn(4, 6)))).all()


def test_attention_takes_a_mask_that_is_an_input(tmp_path: Path) -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
            return self.attention(x, x, x, attn_mask=mask)[0]

    given = samba.randn(2, 5, 8, name="x"), samba.from_torch_tensor(torch.zeros(5, 5).fill_diagonal_(-1e9), name="mask")
    compare_step(Attending(), given, tmp_path)


def test_a_library_that_asks_for_torch_tensors_gets_them(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
            if not (isinstance(mask, torch.Tensor) and mask.dim() == 3):
                mask = mask[:, None, :, None].expand(2, 5, 5)
            return self.lin(x).tanh() * mask.sum(-1, keepdim=True)

    compare_step(Masked(), (samba.randn(2, 5, 4, name="x"), samba.ones(2, 5, 5, name="mask")), tmp_path)


def test_the_first_failure_is_told(tmp_path: Path) -> None:
    class Named(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.reshape(len(x.sn_name), 7)

    with pytest.raises(TraceError, match="shape '\\[5, 7\\]' is invalid"):
        load_model(Named(), samba.randn(2, 5, name="given"), tmp_path)


def test_a_parametrization_after_conversion_is_refused_at_the_line() -> None:
    layer = nn.Linear(4, 5)
    samba.from_torch_model_(layer)
    with pytest.raises(InvalidArgument, match=r"before samba\.from_torch_model_"):
        parametrizations.weight_norm(layer)
    assert parametrizations.weight_norm(nn.Linear(4, 5)).weight.shape == (5, 4), "torch's own are as they were"

"""What a training program may change at compile and at run: rates, clipping, accumulation, mapping, precision, updates.

Numbers under the f32 switch equal torch's to 1e-5 relative: the same operators in the same dtype.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit.pef import read_pef
from sambaflow import samba
from sambaflow.samba import utils
from support import shows
from support.programs import Loaded, LogReg, classifier_inputs, load_model

pytestmark = shows("surface", "precision", "o0", "o1", "o3")


class Regression(nn.Module):
    """(x [B, 8], y [B, 2]) → (loss [], out [B, 2])."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.a = nn.Linear(8, 16)
        self.d = nn.Dropout(rate)
        self.b = nn.Linear(16, 2)
        self.c = nn.MSELoss()

    def forward(self, x: Any, y: Any) -> Any:
        out = self.b(self.d(torch.tanh(self.a(x))))
        return self.c(out, y), out


def regression_inputs(batch: int = 4) -> tuple[samba.SambaTensor, samba.SambaTensor]:
    return samba.randn(batch, 8, name="x", batch_dim=0), samba.randn(batch, 2, name="y", batch_dim=0)


def sgd(parameters: Any) -> Any:
    return samba.optim.SGD(parameters, lr=0.1)


def assert_same(net: nn.Module, gold: nn.Module, tolerance: float = 1e-5) -> None:
    samba.session.to_cpu(net)
    for (name, ours), theirs in zip(net.named_parameters(), gold.parameters(), strict=True):
        error = (ours.torch_tensor() - theirs.detach()).abs().max() / theirs.detach().abs().max()
        assert error <= tolerance, f"{name}: {error}"


# -- dropout rates at run --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
def test_a_run_sets_every_dropout_rate_by_p_and_one_by_its_own_name(tmp_path: Path, mode: str) -> None:
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 64), nn.Dropout(0.25))
    loaded = load_model(net, (samba.ones(32, 64, name="x"),), tmp_path, sgd, optim_level=mode, precision="f32")
    first, second = samba.session.get_dropout_rate_argin_names()

    def zeros(**scalars: float) -> float:
        (out,) = loaded.run(hyperparam_dict=scalars, section_types=["fwd"])
        return float((out.torch() == 0).float().mean())

    assert zeros() == pytest.approx(0.25, abs=0.05)
    assert zeros(p=0.9) == pytest.approx(0.9, abs=0.05)
    assert zeros(p=0.0) == 0
    assert zeros(**{first: 0.9, second: 0.0}) == 0
    assert zeros(p=1.0) == 1
    assert zeros(**{second: 0.75}) == pytest.approx(0.75, abs=0.05)
    assert zeros() == pytest.approx(0.25, abs=0.05), "without p the compiled-in rate counts again"


def test_dropout_keeps_the_mean_and_backward_has_the_same_mask(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Dropout(0.25))
    x = samba.ones(64, 64, name="x")
    x.requires_grad_()
    scale = nn.Parameter(torch.ones(64, 64))

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.drop = scale, net[0]

        def forward(self, x: Any) -> Any:
            return self.drop(x * self.scale)

    loaded = load_model(Scaled(), (samba.ones(64, 64, name="x"),), tmp_path, sgd, precision="f32")
    (out,) = loaded.run(section_types=["fwd", "bckwd"])
    assert out.torch().mean().item() == pytest.approx(1, abs=0.05)
    assert torch.equal(out.torch(), scale.sn_grad), "out = mask * 1 / (1 - p), and so is the gradient of ones"


def test_a_pef_lists_dropout_rates_with_the_other_scalars(tmp_path: Path) -> None:
    loaded = load_model(Regression(0.3), regression_inputs(), tmp_path, sgd)
    assert read_pef(loaded.pef).pef.hyperparameters["regression__d__dropout__p"] == 0.3


# -- gradients: accumulation and clipping ----------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["grad_accumulation_steps", "gradient_accumulation_steps"])
def test_backwards_add_up_until_the_optimizer_runs(tmp_path: Path, option: str) -> None:
    net = Regression()
    gold = copy.deepcopy(net)
    theirs = torch.optim.SGD(gold.parameters(), lr=0.1)
    loaded = load_model(net, regression_inputs(), tmp_path, sgd, precision="f32", **{option: 3})
    for _ in range(2):
        theirs.zero_grad()
        for _ in range(3):
            batch = regression_inputs()
            loaded.run(input_tensors=batch, section_types=["fwd", "bckwd"])
            gold(*(t.torch() for t in batch))[0].backward()
        assert torch.allclose(net.a.weight.sn_grad, gold.a.weight.grad, rtol=1e-5, atol=1e-7)
        loaded.run(section_types=["opt"])
        theirs.step()
    assert_same(net, gold)


def test_a_whole_step_begins_from_fresh_gradients_with_and_without_accumulation(tmp_path: Path) -> None:
    for steps in (1, 4):
        net = Regression()
        utils.set_seed(1)
        loaded = load_model(net, regression_inputs(), tmp_path, sgd, precision="f32", grad_accumulation_steps=steps)
        gold = copy.deepcopy(net)
        theirs = torch.optim.SGD(gold.parameters(), lr=0.1)
        for _ in range(3):
            loaded.run()
            theirs.zero_grad()
            gold(*loaded.inputs)[0].torch().backward()
            theirs.step()
        assert torch.allclose(net.a.weight.sn_grad, gold.a.weight.grad, rtol=1e-5, atol=1e-7), "readable after opt"
        assert_same(net, gold)
        samba.session.reset()


def test_gradients_of_all_groups_and_optimizers_are_clipped_to_their_joint_norm(tmp_path: Path) -> None:
    net = Regression()
    gold = copy.deepcopy(net)
    samba.from_torch_model_(net)
    decay, rest = [net.a.weight, net.b.weight], [net.a.bias, net.b.bias]
    made = [
        samba.optim.AdamW([{"params": decay, "weight_decay": 0.1}], lr=0.01, max_grad_norm=0.05),
        samba.optim.AdamW(rest, lr=0.01, max_grad_norm=0.05),
    ]
    theirs = torch.optim.AdamW(
        [{"params": [gold.a.weight, gold.b.weight], "weight_decay": 0.1}, {"params": [gold.a.bias, gold.b.bias]}],
        lr=0.01, betas=(0.9, 0.997), weight_decay=0.0,
    )  # fmt: skip
    inputs = regression_inputs()
    config = {"pef_name": "x", "log_level": "error", "precision": "f32"}
    pef = samba.session.compile(net, inputs, made, config_dict=config)
    outputs = utils.trace_graph(net, inputs, made, pef=pef)
    assert [s.name for s in read_pef(pef).pef.sections if s.type == "gradnorm"] == ["gradnorm_adamw0"]
    for _ in range(5):
        samba.session.run(inputs, outputs, section_types=["fwd", "bckwd", "gradnorm", "opt"])
        theirs.zero_grad()
        gold(*(t.torch() for t in inputs))[0].backward()
        nn.utils.clip_grad_norm_(gold.parameters(), 0.05)
        theirs.step()
    assert_same(net, gold)


# -- optimizers ------------------------------------------------------------------------------------------------------

UPDATES: list[tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = [
    ("nesterov", lambda p: samba.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
     lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)),
    ("adam", lambda p: samba.optim.Adam(p, lr=0.01, weight_decay=0.1),
     lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1)),
    ("adam amsgrad", lambda p: samba.optim.Adam(p, lr=0.01, amsgrad=True),
     lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True)),
    ("adamw amsgrad", lambda p: samba.optim.AdamW(p, lr=0.01, amsgrad=True, weight_decay=0.1),
     lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.9, 0.997), amsgrad=True, weight_decay=0.1)),
    ("adagrad", lambda p: samba.optim.Adagrad(p, lr=0.1, lr_decay=0.01, initial_accumulator_value=0.1),
     lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.01, initial_accumulator_value=0.1)),
    ("sparse", lambda p: samba.optim.SparseAdamW(p, lr=0.01, weight_decay=0.1),
     lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.9, 0.997), weight_decay=0.1)),
]  # fmt: skip


@pytest.mark.parametrize(("ours", "theirs"), [row[1:] for row in UPDATES], ids=[row[0] for row in UPDATES])
def test_optimizers_update_as_torch_does_and_keep_their_states(tmp_path: Path, ours: Any, theirs: Any) -> None:
    net = Regression()
    gold = copy.deepcopy(net)
    loaded = load_model(net, regression_inputs(), tmp_path, ours, precision="f32")
    optimizer = theirs(gold.parameters())
    for _ in range(6):
        loaded.run()
        optimizer.zero_grad()
        gold(*(t.torch() for t in loaded.inputs))[0].backward()
        optimizer.step()
    assert_same(net, gold)
    loaded.optimizer.cpu()
    for mine, gold_parameter in zip(net.parameters(), gold.parameters(), strict=True):
        for key, value in optimizer.state[gold_parameter].items():
            assert torch.allclose(loaded.optimizer.state[mine][key].double(), value.double(), rtol=1e-4, atol=1e-7), key


def test_sparse_adamw_leaves_rows_without_a_gradient_alone(tmp_path: Path) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(10, 4)

        def forward(self, ids: Any) -> Any:
            return self.emb(ids).pow(2).mean()

    net = Words()
    before = net.emb.weight.detach().clone()
    ids = samba.from_torch_tensor(torch.tensor([1, 3]), name="ids")
    loaded = load_model(
        net, (ids,), tmp_path, lambda p: samba.optim.SparseAdamW(p, lr=0.1, weight_decay=0.1), precision="f32"
    )
    loaded.run()
    samba.session.to_cpu(net)
    moved = (net.emb.weight.torch_tensor() != before).any(-1)
    assert moved.nonzero().flatten().tolist() == [1, 3]


def test_an_update_that_is_not_supported_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="dampening"):
        samba.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1, dampening=0.5)


# -- mapping and microbatches ----------------------------------------------------------------------------------------


def spatial(tmp_path: Path, batches: int, **config: Any) -> tuple[Loaded, nn.Module]:
    net = Regression()
    gold = copy.deepcopy(net)
    samba.from_torch_model_(net)
    made = samba.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    options = {"pef_name": "s", "log_level": "error", "mapping": "spatial", "precision": "f32", **config}
    pef = samba.session.compile(net, regression_inputs(4), made, config_dict=options)
    inputs = regression_inputs(4 * batches)
    return Loaded(net, inputs, made, pef, utils.trace_graph(net, inputs, made, pef=pef, mapping="spatial")), gold


@pytest.mark.parametrize("batches", [1, 3])
def test_spatial_mapping_makes_one_step_per_batch_of_a_call(tmp_path: Path, batches: int) -> None:
    loaded, gold = spatial(tmp_path, batches)
    theirs = torch.optim.SGD(gold.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        loss, out = loaded.run()
        golden = []
        for x, y in zip(*(t.torch().split(4) for t in loaded.inputs), strict=True):
            theirs.zero_grad()
            golden.append(gold(x, y))
            golden[-1][0].backward()
            theirs.step()
        assert torch.allclose(out.torch(), torch.cat([g[1].detach() for g in golden]), rtol=1e-5, atol=1e-6)
        means = torch.stack([g[0].detach() for g in golden])
        assert torch.allclose(loss.torch().reshape(-1), means, rtol=1e-5)
    assert tuple(loaded.outputs[1].shape) == (4 * batches, 2)
    assert_same(loaded.model, gold)


def test_gradients_set_for_a_spatial_call_are_those_of_all_its_batches(tmp_path: Path) -> None:
    loaded, gold = spatial(tmp_path, 2)
    weights = torch.arange(1.0, 17.0).reshape(8, 2)
    loaded.outputs[0].sn_grad = torch.zeros(2)
    loaded.outputs[1].sn_grad = weights
    loaded.run()
    theirs = torch.optim.SGD(gold.parameters(), lr=0.1, momentum=0.9)
    for x, y, weight in zip(*(t.torch().split(4) for t in loaded.inputs), weights.split(4), strict=True):
        theirs.zero_grad()
        (gold(x, y)[1] * weight).sum().backward()
        theirs.step()
    assert_same(loaded.model, gold)


def test_a_spatial_call_takes_whole_batches_only(tmp_path: Path) -> None:
    loaded, _ = spatial(tmp_path, 2)
    samba.session.reset()
    with pytest.raises(PefMismatch, match=r"'x' is \[6, 8\].*batches of \[4, 8\]"):
        utils.trace_graph(loaded.model, regression_inputs(6), loaded.optimizer, pef=loaded.pef, mapping="spatial")


def test_microbatches_divide_the_batch_and_change_no_number(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="microbatch-size 3"):
        load_model(LogReg(), classifier_inputs(8), tmp_path, sgd, batch_size=8, microbatch_size=3)
    losses = []
    for size in (None, 2):
        utils.set_seed(3)
        loaded = load_model(LogReg(), classifier_inputs(8), tmp_path, sgd, batch_size=8, microbatch_size=size)
        losses.append([loaded.run()[0].item() for _ in range(3)])
        samba.session.reset()
    assert losses[0] == losses[1]


# -- precision -------------------------------------------------------------------------------------------------------


class Mixed(nn.Module):
    """(x [B, 64]) → (softmax [B, 64], out [B, 8]); the softmax and what feeds it are outside of GraphAMP."""

    def __init__(self, scoped: bool = True) -> None:
        super().__init__()
        self.scoped = scoped
        self.a, self.n, self.b = nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 8)

    def forward(self, x: Any) -> Any:
        hidden = torch.relu(self.a(x))
        if self.scoped:
            with samba.session.disable_graphamp():
                chances = torch.softmax(self.n(hidden) * torch.ones(64), -1)
        else:
            chances = torch.softmax(self.n(hidden) * torch.ones(64), -1)
        return chances, self.b(hidden + chances)


def is_rounded(tensor: torch.Tensor) -> bool:
    return torch.equal(tensor.bfloat16().float(), tensor)


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
@pytest.mark.parametrize(
    ("scoped", "config", "rounded"),
    [
        (False, {}, (True, True)),
        (True, {}, (False, True)),
        (False, {"graphamp_preset": "default"}, (True, True)),
        (False, {"graphamp_preset": "mp0"}, (False, False)),
        (False, {"graphamp_preset": "mp1"}, (False, False)),
        (False, {"graphamp_preset": "mp4"}, (True, True)),
        (False, {"enable_mixed_precision_ops": ["gemm", "softmax"]}, (True, True)),
        (False, {"disable_bf16_conversion": True}, (False, False)),
    ],
)
def test_presets_families_and_scopes_decide_what_is_rounded(
    tmp_path: Path, mode: str, scoped: bool, config: dict[str, Any], rounded: tuple[bool, bool]
) -> None:
    net = Mixed(scoped)
    gold = copy.deepcopy(net)
    loaded = load_model(net, (samba.randn(4, 64, name="x"),), tmp_path, optim_level=mode, **config)
    chances, out = (t.torch() for t in loaded.run())
    assert (is_rounded(chances), is_rounded(out)) == rounded
    exact = gold(loaded.inputs[0].torch())[1].detach()
    error = float((out - exact).abs().max() / exact.abs().max())
    assert error < (2e-2 if config.get("graphamp_preset") != "mp0" else 1e-6)  # bf16 has 8 bits; mp0 rounds nothing


def test_a_scope_reads_f32_weights_and_gives_f32_gradients(tmp_path: Path) -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.full((4,), 1.001))  # not a bf16 number

        def forward(self, x: Any) -> Any:
            with samba.session.disable_graphamp():
                return (x * self.w).sum()

    net = Scale()
    loaded = load_model(net, (samba.from_torch_tensor(torch.full((4,), 3.003), name="x"),), tmp_path, sgd)
    (loss,) = loaded.run(section_types=["fwd", "bckwd"])
    assert loss.item() == pytest.approx(4 * 1.001 * 3.003, rel=1e-6)
    assert net.w.sn_grad[0].item() == pytest.approx(3.003, rel=1e-6)

"""Training loops of plain PyTorch, with the step on the device: each equals eager PyTorch, or is refused at the line.

Numbers under the f32 switch equal torch's to 1e-5 relative: the same operators in the same dtype.
"""

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import backward as imported_early

from rdukit.errors import InvalidArgument, PefMismatch
from sambaflow import samba
from support import shows
from support.loops import ADAM, SGD, STEPS, assert_equal, batch, eager_step, load, step, train_both

pytestmark = shows("surface", "precision", "training-loops")

# -- param_groups ----------------------------------------------------------------------------------------------------

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.3),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, STEPS),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=STEPS + 1),
    "warm up, then plateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0),
}


@pytest.mark.parametrize(
    "name", [n if n in {"step", "one cycle"} else pytest.param(n, marks=pytest.mark.long) for n in SCHEDULERS]
)
def test_the_device_follows_a_scheduler(tmp_path: Path, name: str) -> None:
    loaded, gold = load(tmp_path, lambda n: samba.optim.AdamW(n.parameters(), **ADAM))
    theirs = torch.optim.AdamW(gold.parameters(), **ADAM)
    made = {id(o): SCHEDULERS[name](o) for o in (loaded.optimizer, theirs)}

    def after(optimizer: Any, number: int, loss: Any) -> None:
        made[id(optimizer)].step(*([float(loss)] if name.endswith("plateau") else []))

    train_both(loaded, gold, theirs, after)


CHANGES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "SGD": ("SGD", SGD, {"lr": 0.02, "momentum": 0.5, "weight_decay": 0.2}),
    "nesterov switched off": ("SGD", {**SGD, "nesterov": True}, {"nesterov": False}),
    "AdamW": ("AdamW", ADAM, {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.3}),
    "Adam": ("Adam", ADAM, {"lr": torch.tensor(0.05), "betas": [0.7, 0.9]}),
    "Adagrad": ("Adagrad", {"lr": 0.1}, {"lr": 0.01, "lr_decay": 0.1, "eps": 1e-4, "weight_decay": 0.1}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_device_follows_values_that_a_program_writes_into_a_group(tmp_path: Path, name: str) -> None:
    kind, options, changed = CHANGES[name]
    loaded, gold = load(tmp_path, lambda n: getattr(samba.optim, kind)(n.parameters(), **options))
    theirs = getattr(torch.optim, kind)(gold.parameters(), **options)
    train_both(loaded, gold, theirs, lambda o, number, _: o.param_groups[0].update(changed) if number == 2 else None)


def test_values_that_change_inside_a_tensor_or_a_list_are_followed_too(tmp_path: Path) -> None:
    loaded, gold = load(tmp_path, lambda n: samba.optim.AdamW(n.parameters(), **ADAM))
    theirs = torch.optim.AdamW(gold.parameters(), **ADAM)

    def after(optimizer: Any, number: int, loss: Any) -> None:
        group = optimizer.param_groups[0]
        if number == 0:
            group["lr"], group["betas"] = torch.tensor(0.1), [0.9, 0.9]
        else:
            group["lr"].mul_(0.5)
            group["betas"][1] -= 0.05

    train_both(loaded, gold, theirs, after)


def test_groups_are_followed_one_by_one_and_hyperparam_dict_wins(tmp_path: Path) -> None:
    def groups(net: Any) -> list[dict[str, Any]]:
        return [{"params": list(net.a.parameters()), "lr": 0.1}, {"params": list(net.b.parameters()), "momentum": 0.0}]

    loaded, gold = load(tmp_path, lambda n: samba.optim.SGD(groups(n), **SGD))
    theirs = torch.optim.SGD(groups(gold), **SGD)

    def after(optimizer: Any, number: int, loss: Any) -> None:
        optimizer.param_groups[number % 2]["lr"] *= 0.5

    train_both(loaded, gold, theirs, after)
    before = [p.detach().clone() for p in loaded.model.parameters()]
    step(loaded, 0, hyperparam_dict={"lr": 0.0})
    samba.session.to_cpu(loaded.model)
    assert all(map(torch.equal, before, loaded.model.parameters()))


def test_the_optimizer_of_the_run_decides_the_values(tmp_path: Path) -> None:
    loaded, gold = load(
        tmp_path, lambda n: samba.optim.SGD(n.parameters(), lr=0.0), lambda n: samba.optim.SGD(n.parameters(), **SGD)
    )
    train_both(loaded, gold, torch.optim.SGD(gold.parameters(), **SGD), lambda *_: None)


@pytest.mark.parametrize("change", [{"nesterov": True}, {"maximize": True}, {"max_grad_norm": 1.0}])
def test_an_optimizer_of_the_run_that_needs_another_update_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(PefMismatch, match="compile"):
        load(
            tmp_path, lambda n: samba.optim.SGD(n.parameters(), **SGD),
            lambda n: samba.optim.SGD(n.parameters(), **SGD, **change),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"), [("nesterov", True), ("maximize", True), ("dampening", 0.5), ("max_grad_norm", 1.0)]
)
def test_a_group_that_asks_for_another_update_is_refused_by_the_next_run(tmp_path: Path, key: str, value: Any) -> None:
    loaded, _ = load(tmp_path, lambda n: samba.optim.SGD(n.parameters(), **SGD))
    step(loaded, 0)
    loaded.optimizer.param_groups[0][key] = value
    with pytest.raises(InvalidArgument, match=key):
        step(loaded, 1)
    step(loaded, 1, section_types=["fwd"])
    loaded.optimizer.param_groups[0][key] = 0
    if key != "max_grad_norm":
        step(loaded, 1)


# -- options of groups -----------------------------------------------------------------------------------------------

OPTIONS = [
    ("SGD", SGD, {"maximize": True}), ("SGD", SGD, {"nesterov": True}), ("AdamW", ADAM, {"maximize": True}),
    ("AdamW", ADAM, {"amsgrad": True}), ("AdamW", ADAM, {"decoupled_weight_decay": False}),
    ("Adam", ADAM, {"decoupled_weight_decay": True}), ("Adagrad", {"lr": 0.1}, {"maximize": True}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "special"), OPTIONS)
@pytest.mark.parametrize("of_group", [True, pytest.param(False, marks=pytest.mark.long)])
def test_options_that_change_the_update_are_compiled_of_a_group_and_of_all(
    tmp_path: Path, kind: str, options: dict[str, Any], special: dict[str, Any], of_group: bool
) -> None:
    if special == {"decoupled_weight_decay": False} and not of_group:
        return  # torch's AdamW has no such keyword

    def make(library: Any, net: Any) -> Any:
        groups = [{"params": list(net.a.parameters()), **special}, {"params": list(net.b.parameters())}]
        made = getattr(library, kind)
        return made(groups, **options) if of_group else made(net.parameters(), **options, **special)

    loaded, gold = load(tmp_path, lambda n: make(samba.optim, n))
    train_both(loaded, gold, make(torch.optim, gold), lambda *_: None)


def test_a_group_that_is_added_before_compile_is_trained_and_later_refused(tmp_path: Path) -> None:
    def make(library: Any, net: Any) -> Any:
        made = library.SGD(net.a.parameters(), **SGD)
        made.add_param_group({"params": list(net.b.parameters()), "lr": 0.01})
        return made

    loaded, gold = load(tmp_path, lambda n: make(samba.optim, n))
    train_both(loaded, gold, make(torch.optim, gold), lambda *_: None)
    with pytest.raises(InvalidArgument, match="after trace_graph"):
        loaded.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: samba.optim.SGD(p, lr=0.1, momentun=0.9), "Did you mean 'momentum'"),
        (lambda p: samba.optim.AdamW(p, learning_rate=0.1), "does not accept keyword 'learning_rate'"),
        (lambda p: samba.optim.SGD([{"params": list(p), "dampening": 0.5}], lr=0.1), "dampening"),
        (lambda p: samba.optim.Adam(p, differentiable=True), "differentiable"),
        (lambda p: samba.optim.SparseAdamW(p, amsgrad=True), "amsgrad"),
    ],
)
def test_keywords_without_an_update_are_refused(make: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        make(nn.Linear(2, 2).parameters())


def test_keywords_that_change_no_number_are_accepted() -> None:
    samba.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1, foreach=True, fused=True, fp32_params=True)
    samba.optim.AdamW(nn.Linear(2, 2).parameters(), capturable=True, argin_region_name="r", fp32_params=True)


# -- hyperparam_dict -------------------------------------------------------------------------------------------------


def test_unknown_scalars_are_refused_and_those_of_public_programs_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded, _ = load(tmp_path, lambda n: samba.optim.AdamW(n.parameters(), **ADAM))
    for key, hint in {"learning_rate": "'lr'", "weight_decy": "'weight_decay'", "sgd0.lr": "'adamw0.lr'"}.items():
        with pytest.raises(InvalidArgument, match=f"{key}.*Did you mean.*{hint}"):
            step(loaded, 0, hyperparam_dict={key: 0.5})
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            step(loaded, 0, hyperparam_dict={"lr": 0.01, "momentum": 0.9, "learning_rate": 0.01, "strnd_seed": 1})
    assert [r.message.partition(" has")[0] for r in caplog.records] == [
        "hyperparam_dict['momentum']", "hyperparam_dict['learning_rate']"
    ]  # fmt: skip


# -- states ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "options"), [("SGD", SGD), ("AdamW", ADAM), ("Adagrad", {"lr": 0.1})])
def test_a_state_dict_has_the_devices_states_and_a_loaded_one_goes_on(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    def make(net: Any) -> Any:
        return getattr(samba.optim, kind)(net.parameters(), **options)

    loaded, gold = load(tmp_path, make)
    theirs = getattr(torch.optim, kind)(gold.parameters(), **options)
    for number in range(3):
        step(loaded, number)
        eager_step(gold, theirs, number)
    saved, expected = loaded.optimizer.state_dict(), theirs.state_dict()
    for index, states in expected["state"].items():
        for key, value in states.items():
            torch.testing.assert_close(saved["state"][index][key], value, rtol=1e-5, atol=1e-7)
    saved = copy.deepcopy(saved)
    samba.session.to_cpu(loaded.model)
    weights = copy.deepcopy(loaded.model.state_dict())
    step(loaded, 9)  # what follows the checkpoint is lost
    loaded.model.load_state_dict(weights)
    samba.session.to_rdu(loaded.model)
    saved["param_groups"][0]["lr"] = theirs.param_groups[0]["lr"] = 0.03
    loaded.optimizer.load_state_dict(saved)
    train_both(loaded, gold, theirs, lambda *_: None)


def test_states_that_a_state_dict_lacks_begin_anew(tmp_path: Path) -> None:
    loaded, gold = load(tmp_path, lambda n: samba.optim.SGD(n.parameters(), **SGD))
    fresh = copy.deepcopy(loaded.optimizer.state_dict())
    step(loaded, 3)
    with torch.no_grad():
        for ours, theirs in zip(loaded.model.parameters(), gold.parameters(), strict=True):
            ours.data.copy_(theirs)
    samba.session.to_rdu(loaded.model)
    loaded.optimizer.load_state_dict(fresh)
    train_both(loaded, gold, torch.optim.SGD(gold.parameters(), **SGD), lambda *_: None)


# -- gradients between backward and update ---------------------------------------------------------------------------


def test_clip_grad_norm_between_backward_and_update_equals_torchs(tmp_path: Path) -> None:
    loaded, gold = load(tmp_path, lambda n: samba.optim.SGD(n.parameters(), **SGD, max_grad_norm=1.0))
    theirs = torch.optim.SGD(gold.parameters(), **SGD)
    for number, most in enumerate([0.05, 0.5, 0.01, 100.0]):
        loaded.optimizer.zero_grad()
        step(loaded, number, section_types=["fwd", "bckwd"])
        norm = nn.utils.clip_grad_norm_(loaded.model.parameters(), most)
        step(loaded, number, section_types=["gradnorm", "opt"])
        theirs.zero_grad()
        gold(*batch(number)).backward()
        torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(gold.parameters(), most), rtol=1e-5, atol=1e-7)
        theirs.step()
        torch.testing.assert_close(loaded.model.a.weight.grad.clone(), gold.a.weight.grad, rtol=1e-5, atol=1e-7)
    assert_equal(loaded, gold)


def test_the_norm_of_the_optimizer_is_followed_and_none_clips_nothing(tmp_path: Path) -> None:
    loaded, gold = load(tmp_path, lambda n: samba.optim.SGD(n.parameters(), **SGD, max_grad_norm=1.0))
    theirs = torch.optim.SGD(gold.parameters(), **SGD)
    for number, most in enumerate([0.05, None, 0.1]):
        loaded.optimizer.max_grad_norm = most
        step(loaded, number)
        theirs.zero_grad()
        gold(*batch(number)).backward()
        if most is not None:
            nn.utils.clip_grad_norm_(gold.parameters(), most)
        theirs.step()
    assert_equal(loaded, gold)


def test_clipping_that_does_not_reach_the_device_is_refused(tmp_path: Path) -> None:
    loaded, _ = load(tmp_path, lambda n: samba.optim.SGD(n.parameters(), **SGD))
    step(loaded, 0, section_types=["fwd", "bckwd"])
    parameters = list(loaded.model.parameters())
    with pytest.raises(InvalidArgument, match="pass max_grad_norm"):
        nn.utils.clip_grad_norm_(parameters, 1.0)
    with pytest.raises(InvalidArgument, match="max_grad_norm"):
        nn.utils.clip_grad_value_(parameters, 0.1)
    samba.session.reset()
    loaded, _ = load(tmp_path, lambda n: samba.optim.SGD(n.parameters(), **SGD, max_grad_norm=1.0))
    step(loaded, 0)
    parameters = list(loaded.model.parameters())
    with pytest.raises(InvalidArgument, match="after the update"):
        nn.utils.clip_grad_norm_(parameters, 0.5)
    nn.utils.clip_grad_norm_(parameters, 1.0)  # what the update did
    step(loaded, 1, section_types=["fwd", "bckwd"])
    with pytest.raises(InvalidArgument, match="of 2 parameters"):
        nn.utils.clip_grad_norm_(parameters[:2], 0.5)
    with pytest.raises(InvalidArgument, match="2-norm"):
        nn.utils.clip_grad_norm_(parameters, 0.5, norm_type=1.0)


def test_grad_is_the_devices_gradient_until_zero_grad_and_cannot_be_changed(tmp_path: Path) -> None:
    loaded, gold = load(tmp_path, lambda n: samba.optim.SGD(n.parameters(), **SGD))
    weight = loaded.model.a.weight
    assert weight.grad is None
    step(loaded, 0, section_types=["fwd", "bckwd"])
    gold(*batch(0)).backward()
    torch.testing.assert_close(weight.grad.norm(), gold.a.weight.grad.norm(), rtol=1e-5, atol=1e-7)
    assert type(weight.grad * 2) is torch.Tensor
    changes: list[Callable[[], Any]] = [
        lambda: weight.grad.mul_(2), lambda: weight.grad.data.clamp_(-1, 1), lambda: weight.grad.__setitem__(0, 0.0),
        lambda: torch._foreach_mul_([weight.grad], 2.0), lambda: setattr(weight, "grad", torch.zeros_like(weight.data)),
        lambda: torch.mul(gold.a.weight.grad, 2, out=weight.grad),
    ]  # fmt: skip
    for change in changes:
        with pytest.raises(InvalidArgument, match="register_hook"):
            change()
    loaded.model.zero_grad()
    assert weight.grad is None
    with pytest.raises(InvalidArgument, match="has no gradients"):
        step(loaded, 0, section_types=["opt"])
    loaded.model(*batch(0)).backward()
    torch.testing.assert_close(weight.grad, gold.a.weight.grad, rtol=1e-5, atol=1e-7)
    loaded.model.float().cpu()
    assert type(weight.grad) is torch.Tensor, "the host's own gradient comes first"


def test_moving_a_model_keeps_no_gradient_of_the_device(tmp_path: Path) -> None:
    loaded, _ = load(tmp_path, lambda n: samba.optim.SGD(n.parameters(), **SGD))
    step(loaded, 0)
    loaded.model.double().float().cpu()
    copy.deepcopy(loaded.model)
    first = loaded.model.a.weight.grad.clone()
    step(loaded, 1)
    assert not torch.equal(first, loaded.model.a.weight.grad)


def test_backwards_add_up_where_compiled_and_are_refused_where_not(tmp_path: Path) -> None:
    loaded, gold = load(tmp_path, lambda n: samba.optim.SGD(n.parameters(), **SGD), grad_accumulation_steps=3)
    theirs = torch.optim.SGD(gold.parameters(), **SGD)
    for number in range(9):
        step(loaded, number, section_types=["fwd", "bckwd"])
        gold(*batch(number)).backward()
        if number == 4:  # both forget the sum
            loaded.optimizer.zero_grad()
            theirs.zero_grad()
        if number % 3 == 2:
            step(loaded, number, section_types=["opt"])
            theirs.step()
            loaded.optimizer.zero_grad()
            theirs.zero_grad()
    assert_equal(loaded, gold)
    samba.session.reset()
    loaded, gold = load(tmp_path, lambda n: samba.optim.SGD(n.parameters(), **SGD))
    for sections in (["opt"], ["fwd", "bckwd", "opt"]):
        for number in range(3 - len(sections) // 2):
            step(loaded, number, section_types=["fwd", "bckwd"])
        with pytest.raises(InvalidArgument, match=r"grad-accumulation-steps [234]"):
            step(loaded, 0, section_types=sections)
        loaded.optimizer.zero_grad()
    eager_step(gold, torch.optim.SGD(gold.parameters(), **SGD), 4)
    step(loaded, 4, section_types=["fwd", "bckwd"])
    step(loaded, 4, section_types=["opt"])
    assert_equal(loaded, gold)


# -- what stays on the host ------------------------------------------------------------------------------------------


def test_step_backward_scaling_and_autocast_are_refused_at_their_lines(tmp_path: Path) -> None:
    loaded, _ = load(tmp_path, lambda n: samba.optim.SGD(n.parameters(), **SGD))
    optimizer = loaded.optimizer
    scaler = torch.amp.GradScaler("cpu")
    optimizer.step()  # no gradients: nothing to do, as in torch
    (loss,) = loaded.run()
    refused: dict[str, Callable[[], Any]] = {
        "'opt' section": optimizer.step,
        "remove loss.backward": loss.backward,
        "sn_grad before": samba.to_torch(loss).backward,
        "remove loss.backward.*": lambda: imported_early(samba.to_torch(loss)),
        "loss on the host": lambda: torch.autograd.grad(loss, list(loaded.model.parameters())),
        "requires_grad_": (loss.torch_tensor() * 2).mean().backward,
        "GradScaler.scale": lambda: scaler.scale(loss),
        "GradScaler.step": lambda: scaler.step(optimizer),
        "GradScaler.unscale_": lambda: scaler.unscale_(optimizer),
    }
    for message, call in refused.items():
        with pytest.raises(InvalidArgument, match=message):
            call()
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(InvalidArgument, match="graphamp-preset"):
        loaded.run()


def test_on_the_host_the_same_calls_are_torchs(tmp_path: Path) -> None:
    loaded, gold = load(tmp_path, lambda n: samba.optim.SGD(n.parameters(), **SGD))
    theirs = torch.optim.SGD(gold.parameters(), **SGD)
    for number in range(2):
        for net, optimizer in ((loaded.model, loaded.optimizer), (gold, theirs)):
            optimizer.zero_grad()
            net(*batch(number)).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
    for ours, golden in zip(loaded.model.parameters(), gold.parameters(), strict=True):
        assert torch.equal(ours.data, golden.data)


def test_the_vendors_defaults_of_adamw_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    from sambaflow.samba.optim import adam

    adam._told.clear()
    for betas in ({}, {}, {"betas": (0.9, 0.997)}):
        samba.optim.AdamW(nn.Linear(2, 2).parameters(), **betas)
    betas, decay = (record.message for record in caplog.records)
    assert "0.997" in betas and "0.999" in betas
    assert "the device's default is 0, torch's is 0.01" in decay

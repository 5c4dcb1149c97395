"""What a training loop does with its optimizers between runs: states, hooks, groups and ``zero_grad`` of one of two.

Numbers under the f32 switch equal torch's to 1e-5 relative: the same operators in the same dtype.
"""

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rdukit.errors import InvalidArgument
from sambaflow import samba
from support import shows
from support.loops import ADAM, SGD, assert_equal, batch, eager_step, load, step, train_both

pytestmark = shows("surface", "training-loops")


STATE_CHANGES: dict[str, Callable[[Any], Any]] = {
    "in place": lambda o: [held["momentum_buffer"].zero_() for held in o.state.values()],
    "cleared": lambda o: o.state.clear(),
    "another dict": lambda o: setattr(o, "state", collections.defaultdict(dict)),
    "one removed": lambda o: o.state.pop(next(iter(o.state))),
}


@pytest.mark.parametrize("kind", STATE_CHANGES)
def test_the_next_update_takes_states_that_a_program_changes(tmp_path: Path, kind: str) -> None:
    loaded, gold = load(tmp_path, lambda n: samba.optim.SGD(n.parameters(), **SGD))
    theirs = torch.optim.SGD(gold.parameters(), **SGD)
    train_both(loaded, gold, theirs, lambda o, number, _: STATE_CHANGES[kind](o) if number == 3 else None)


def test_an_update_on_the_host_between_two_on_the_device_shares_their_states(tmp_path: Path) -> None:
    loaded, gold = load(tmp_path, lambda n: samba.optim.AdamW(n.parameters(), **ADAM))
    theirs = torch.optim.AdamW(gold.parameters(), **ADAM)
    step(loaded, 0)
    eager_step(gold, theirs, 0)
    for net, optimizer in ((loaded.model, loaded.optimizer), (gold, theirs)):
        optimizer.zero_grad()
        net(*batch(7)).backward()
        optimizer.step()
        optimizer.zero_grad()
    train_both(loaded, gold, theirs, lambda *_: None)


def test_hooks_of_step_run_with_the_devices_updates(tmp_path: Path) -> None:
    loaded, gold = load(tmp_path, lambda n: samba.optim.SGD(n.parameters(), **SGD))
    theirs = torch.optim.SGD(gold.parameters(), **SGD)

    def clamp(optimizer: Any, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            for parameter in optimizer.param_groups[0]["params"]:
                parameter.clamp_(-0.2, 0.2)

    def slow(optimizer: Any, args: Any, kwargs: Any) -> None:
        optimizer.param_groups[0]["lr"] *= 0.5

    for optimizer in (loaded.optimizer, theirs):
        optimizer.register_step_post_hook(clamp)
    train_both(loaded, gold, theirs, lambda *_: None)
    for optimizer in (loaded.optimizer, theirs):
        optimizer.register_step_pre_hook(slow)
    with pytest.raises(InvalidArgument, match=r"then \['opt'\]"):
        step(loaded, 0)
    for number in range(2):
        step(loaded, number, section_types=["fwd", "bckwd"])
        step(loaded, number, section_types=["opt"])
        eager_step(gold, theirs, number)
    assert_equal(loaded, gold)


def pop_parameter(optimizer: Any, net: Any) -> Any:
    return optimizer.param_groups[0]["params"].pop()


def swap_groups(optimizer: Any, net: Any) -> None:
    first, second = optimizer.param_groups
    first["params"], second["params"] = second["params"], first["params"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (pop_parameter, r"parameters of param_groups\[0\]"),
        (swap_groups, r"parameters of param_groups\[0\]"),
        (lambda optimizer, net: samba.optim.SGD(net.b.parameters(), lr=0.1), "created for traced parameters"),
    ],
)
def test_other_parameters_and_other_optimizers_are_refused_by_the_next_update(
    tmp_path: Path, change: Callable[[Any, Any], Any], message: str
) -> None:
    def make(net: Any) -> Any:
        return samba.optim.SGD([{"params": [net.a.weight]}, {"params": [net.b.weight], "lr": 0.01}], **SGD)

    loaded, _ = load(tmp_path, make)
    step(loaded, 0)
    kept = change(loaded.optimizer, loaded.model)
    with pytest.raises(InvalidArgument, match=message):
        step(loaded, 1)
    assert step(loaded, 1, section_types=["fwd"]).isfinite(), kept


@pytest.mark.parametrize("steps", [1, 2])
def test_zero_grad_of_one_of_two_optimizers_forgets_no_gradient_of_the_other(tmp_path: Path, steps: int) -> None:
    loaded, _ = load(
        tmp_path, lambda n: [samba.optim.SGD(part.parameters(), **SGD) for part in (n.a, n.b)],
        grad_accumulation_steps=steps,
    )  # fmt: skip
    first, second = loaded.optimizer
    step(loaded, 0, section_types=["fwd", "bckwd"])
    first.zero_grad()
    assert loaded.model.a.weight.grad is None and loaded.model.b.weight.grad is not None
    with pytest.raises(InvalidArgument, match="cleared gradients of"):
        step(loaded, 0, section_types=["opt"])
    if steps == 1:
        step(loaded, 1, section_types=["fwd", "bckwd"])
    message, refused = ("2 backward passes ran", ["opt"]) if steps == 1 else ("all gradients or none", ["fwd", "bckwd"])
    with pytest.raises(InvalidArgument, match=message):
        step(loaded, 1, section_types=refused)
    second.zero_grad()
    first.zero_grad()
    step(loaded, 1, section_types=["fwd", "bckwd"])
    step(loaded, 1, section_types=["opt"])


def test_old_spellings_of_zero_grad_and_a_norm_without_clipping_are_harmless(tmp_path: Path) -> None:
    loaded, gold = load(tmp_path, lambda n: samba.optim.SGD(n.parameters(), **SGD))
    step(loaded, 0, section_types=["fwd", "bckwd"])
    gold(*batch(0)).backward()
    theirs = nn.utils.clip_grad_norm_(gold.parameters(), float("inf"))
    torch.testing.assert_close(nn.utils.clip_grad_norm_(loaded.model.parameters(), float("inf")), theirs)
    for parameter in loaded.model.parameters():
        parameter.grad.detach_()
        parameter.grad.zero_()
    assert all(parameter.grad is None for parameter in loaded.model.parameters())

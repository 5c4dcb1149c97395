"""``associative_scan`` inside forward, as state-space models use it, against the same steps one after another."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rdukit.errors import TraceError
from rdukit.pef.file import read_pef
from sambaflow import samba
from support import shows
from support.programs import compile_model, load_model

pytestmark = shows("pytorch", "operators")

#: f32: sums of products along the length, in another order.
TOLERANCE = 1e-5


def linear_recurrence(left: Any, right: Any) -> Any:
    return left[0] * right[0], right[0] * left[1] + right[1]


def products(left: Any, right: Any) -> Any:
    """Of matrices: associative, and not element by element."""
    return (right[0] @ left[0], left[1] + right[1])


def first_row_decides(left: Any, right: Any) -> Any:
    """Of several positions at once it would take the first position's."""
    return torch.minimum(left[0][0], left[0]) + 0 * right[0], right[1]


class Scan(nn.Module):
    def __init__(self, function: Callable[[Any, Any], Any], length: int, reverse: bool) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(2, length, 3, 3) / 2)
        self.function, self.reverse = function, reverse

    def forward(self, x: torch.Tensor) -> Any:
        from torch._higher_order_ops.associative_scan import associative_scan

        pairs = torch.sigmoid(self.w + x), x * self.w
        first, second = associative_scan(self.function, pairs, dim=1, reverse=self.reverse, combine_mode="generic")
        return first + second

    def one_after_another(self, x: torch.Tensor) -> torch.Tensor:
        a, b = torch.sigmoid(self.w + x), x * self.w
        order = range(x.shape[1])
        made: dict[int, Any] = {}
        state = None
        for step in reversed(order) if self.reverse else order:
            here = a[:, step], b[:, step]
            state = here if state is None else self.function(state, here)
            made[step] = state[0] + state[1]
        return torch.stack([made[step] for step in order], 1)


@pytest.mark.parametrize(
    ("function", "length", "reverse", "mode"),
    [
        *((linear_recurrence, length, False, "o3") for length in (1, 2, 7, 8)),
        (linear_recurrence, 7, True, "o1"),
        (products, 7, False, "o3"),
        (first_row_decides, 7, True, "o3"),
    ],
)
def test_a_scan_trains_as_its_steps_one_after_another_do(
    function: Callable[[Any, Any], Any], length: int, reverse: bool, mode: str, tmp_path: Path
) -> None:
    net = Scan(function, length, reverse)
    gold = copy.deepcopy(net)
    x = samba.randn(2, length, 3, 3, name="x")
    loaded = load_model(net, x, tmp_path, lambda p: samba.optim.SGD(p, lr=0.0), optim_level=mode, precision="f32")
    (out,) = loaded.run()
    expected = gold.one_after_another(x.data)
    expected.sum().backward()
    assert gold.w.grad is not None
    assert torch.allclose(out.data, expected, atol=TOLERANCE)
    assert torch.allclose(net.w.sn_grad, gold.w.grad, atol=TOLERANCE)


def test_a_scan_grows_with_the_logarithm_of_its_length(tmp_path: Path) -> None:
    sizes = []
    for length in (16, 256):
        pef = compile_model(
            Scan(linear_recurrence, length, False), samba.randn(2, length, 3, 3, name="x"), None, tmp_path,
            pef_name=f"scan{length}",
        )  # fmt: skip
        graph = next(iter(read_pef(pef).pef.signature.values()))
        sizes.append(len(graph["calls"]))
    assert sizes[1] < 2.5 * sizes[0]


def test_a_scan_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"dimension 1 of .*at least 1"):
        compile_model(Scan(linear_recurrence, 0, False), samba.randn(2, 0, 3, 3, name="x"), None, tmp_path)

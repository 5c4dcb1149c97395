"""The measure of ``assert_close``: correct bf16 passes the published thresholds, wrong kernels do not."""

import copy
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sambaflow.samba.utils.utils import absolute_error, assert_close, closeness_error
from support import shows

pytestmark = shows("precision", "surface")

#: The smallest threshold that public programs use; they use it for outputs and gradients of models of a few layers.
SMALLEST = 3e-3
SEEDS = range(6)


def rounded(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).bfloat16().float()


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "logistic regression": (lambda: nn.Linear(196, 10), (64, 196)),
    "a row": (lambda: nn.Linear(196, 10), (1, 196)),
    "four classes": (lambda: nn.Linear(16, 4), (8, 16)),
    "two layers": (lambda: nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10)), (32, 64)),
    "norms": (
        lambda: nn.Sequential(
            nn.Linear(64, 32, bias=False), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 32, bias=False),
            nn.LayerNorm(32), nn.Sigmoid(), nn.Linear(32, 10, bias=False),
        ),
        (64, 64),
    ),
}  # fmt: skip


def pairs(name: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Output and gradients in torch's own bf16, and in f32 of the same numbers."""
    build, shape = MODELS[name]
    model = build()
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    narrow, x, labels = copy.deepcopy(model).bfloat16(), rounded(*shape), torch.randint(4, shape[:1])
    gold, made = model(x), narrow(x.bfloat16())
    F.cross_entropy(gold, labels).backward()
    F.cross_entropy(made.float(), labels).backward()
    yield made.float(), gold
    for ours, theirs in zip(narrow.parameters(), model.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None
        yield ours.grad.float(), theirs.grad


@pytest.mark.parametrize("name", MODELS)
def test_correct_bf16_passes_the_smallest_threshold(name: str) -> None:
    for seed in SEEDS:
        torch.manual_seed(seed)
        for made, gold in pairs(name):
            assert closeness_error(made, gold) < SMALLEST
            assert closeness_error(gold, made) == pytest.approx(closeness_error(made, gold))


@pytest.mark.parametrize("count", [64, 1000, 100_000])
def test_a_shift_of_the_threshold_is_found_beside_the_rounding(count: int) -> None:
    for seed in SEEDS:
        torch.manual_seed(seed)
        gold = torch.randn(count)
        assert closeness_error(gold.bfloat16().float(), gold) < SMALLEST / 3
        assert closeness_error(gold.bfloat16().float() + 0.01, gold) > SMALLEST


def moved(made: torch.Tensor, row: int) -> torch.Tensor:
    return torch.cat([made[:row], made[row - 1 : row], made[row + 1 :]])


Layer = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
WRONG: dict[str, Callable[[torch.Tensor, Layer], torch.Tensor]] = {
    "transposed weight": lambda made, layer: F.linear(layer[0], layer[1].t(), layer[2]),
    "missing bias": lambda made, layer: F.linear(layer[0], layer[1]),
    "missing term": lambda made, layer: F.linear(layer[0][:, 1:], layer[1][:, 1:], layer[2]),
    "one wrong row": lambda made, layer: moved(made, 5),
    "one row of zeros": lambda made, layer: made * (torch.arange(len(made)) != 3)[:, None],
    "one wrong column": lambda made, layer: moved(made.t(), 5).t(),
    "scaled by 1.01": lambda made, layer: made * 1.01,
    "scaled by 0.99": lambda made, layer: made * 0.99,
    "shifted by a row": lambda made, layer: made.roll(1, 0),
    "shifted by a column": lambda made, layer: made.roll(1, 1),
    "negative": lambda made, layer: -made,
    "a little added": lambda made, layer: made + 0.01,
    "nothing": lambda made, layer: torch.zeros_like(made),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("rows", [8, 64, 500])
def test_wrong_kernels_fail(case: str, rows: int) -> None:
    for seed in SEEDS:
        torch.manual_seed(seed)
        linear = nn.Linear(32, 32).bfloat16()
        x, weight, bias = rounded(rows, 32), linear.weight.detach(), linear.bias.detach()
        gold = F.linear(x, weight.float(), bias.float())
        made = F.linear(x.bfloat16(), weight, bias)
        assert closeness_error(made.float(), gold) < SMALLEST
        assert closeness_error(WRONG[case](made, (x.bfloat16(), weight, bias)).float(), gold) > SMALLEST


@pytest.mark.parametrize("case", ["transposed weight", "one wrong row", "shifted by a row", "negative", "nothing"])
def test_what_has_nothing_in_common_fails_the_largest_published_threshold(case: str) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(32, 32).bfloat16()
    x, weight, bias = rounded(32, 32), linear.weight.detach(), linear.bias.detach()
    gold, made = F.linear(x, weight.float(), bias.float()), F.linear(x.bfloat16(), weight, bias)
    assert closeness_error(WRONG[case](made, (x.bfloat16(), weight, bias)).float(), gold) > 8.5e-2


def test_small_numbers_beside_large_ones_count() -> None:
    gold = torch.cat([torch.full((1, 64), 1e4), torch.randn(63, 64)])
    wrong = gold.clone()
    wrong[1:] = wrong[1:].roll(1, 0)
    assert closeness_error(gold.bfloat16().float(), gold) < SMALLEST
    assert closeness_error(wrong[1:], gold[1:]) > 1


def test_a_number_by_itself_is_compared_with_the_threshold() -> None:
    assert closeness_error(torch.tensor(1.002), torch.tensor(1.0)) == pytest.approx(2e-3, rel=1e-2)
    assert closeness_error(torch.tensor([0.0]), torch.tensor([0.0])) == 0


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_must_be_the_same(odd: float) -> None:
    gold = torch.tensor([[1.0, odd], [2.0, 3.0]])
    assert closeness_error(gold.clone(), gold) == 0
    assert closeness_error(gold * 1.5, gold) > SMALLEST
    assert closeness_error(gold.nan_to_num(0, 0, 0), gold) == math.inf
    assert closeness_error(torch.tensor([math.inf]), torch.tensor([-math.inf])) == math.inf


def volumes(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The input's gradient of a small 3-D network: in torch's own bf16, and in f32 of the same numbers."""
    torch.manual_seed(seed)
    exact = nn.Sequential(
        nn.Conv3d(3, 16, 2, stride=2, bias=False), nn.ReLU(), nn.Conv3d(16, 32, 2, stride=2, bias=False), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 64), nn.LeakyReLU(), nn.Linear(64, 10),
    ).bfloat16()  # fmt: skip
    narrow = copy.deepcopy(exact)
    exact.float()
    x, labels = rounded(1, 3, 8, 8, 8), torch.randint(10, (1,))
    gold, made = x.clone().requires_grad_(), x.bfloat16().requires_grad_()
    F.cross_entropy(exact(gold), labels).backward()
    F.cross_entropy(narrow(made), labels).backward()
    assert gold.grad is not None and made.grad is not None
    return made.grad.float(), gold.grad


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients_of_a_3d_network_meet_the_published_absolute_threshold(seed: int) -> None:
    made, gold = volumes(seed)
    assert absolute_error(made, gold) < 1e-3
    assert_close(made, gold, "input_grad", threshold=1e-3)
    with pytest.raises(AssertionError, match="neither is within its limit"):
        assert_close(-100 * made, gold, "input_grad", threshold=1e-3)


def test_large_numbers_pass_by_their_relative_error() -> None:
    torch.manual_seed(0)
    gold = 1000 * torch.randn(64, 8)
    made = gold.bfloat16().float()
    assert absolute_error(made, gold) > SMALLEST
    assert_close(made, gold, "large", threshold=SMALLEST)
    with pytest.raises(AssertionError):
        assert_close(made, gold, "large", threshold=SMALLEST, rtol=1e-6)


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("rows", [8, 500])
def test_assert_close_refuses_wrong_kernels_of_numbers_around_one(case: str, rows: int) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(32, 32).bfloat16()
    x, weight, bias = rounded(rows, 32), linear.weight.detach(), linear.bias.detach()
    gold = F.linear(x, weight.float(), bias.float())
    made = F.linear(x.bfloat16(), weight, bias)
    assert_close(made, gold, "right", threshold=SMALLEST)
    with pytest.raises(AssertionError):
        assert_close(WRONG[case](made, (x.bfloat16(), weight, bias)), gold, case, threshold=SMALLEST)


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_the_absolute_error_counts_numbers_that_are_not_finite(odd: float) -> None:
    gold = torch.tensor([1.0, odd])
    assert absolute_error(gold.clone(), gold) == 0
    assert absolute_error(torch.ones(2), gold) == math.inf
    assert absolute_error(torch.tensor(1.5), torch.tensor(1.0)) == 0.5

"""Weights in a byte or in four bits: what they stand for, and how far off that is."""

import pytest
import torch

from rdukit.pef.model import int4_shape
from rdukit_runtime.engine.quantized_weights import (
    dequantize_groups,
    dequantize_rows,
    int4_linear,
    quantize_groups,
    quantize_rows,
)  # fmt: skip
from support import shows

pytestmark = shows("inference", "engine", "text-weights")


def _error(weight: torch.Tensor, made: torch.Tensor) -> float:
    return float((made - weight).square().mean().sqrt() / weight.square().mean().sqrt())


@pytest.mark.parametrize("width", [32, 96, 128, 288])
def test_numbers_that_four_bits_hold_come_back_and_take_half_a_byte_and_two_for_a_group(width: int) -> None:
    torch.manual_seed(width)
    numbers = torch.randint(-8, 8, (5, width // 32, 32)).float()
    numbers[..., 0] = -8  # so that the scale is found again
    scale = torch.tensor([1.0, -0.5, 1.9375, 2.0**-15, 100.0])[:, None, None]
    weight = (numbers * scale).view(5, width)
    data, scales = quantize_groups(weight)
    assert data.shape == int4_shape(5, width) and (data.dtype, scales.dtype) == (torch.uint8, torch.bfloat16)
    assert scales.shape == (5, width // 32)
    torch.testing.assert_close(dequantize_groups(data, scales), weight, rtol=0, atol=0)


def test_four_bits_lose_a_twelfth_and_eight_a_hundredth_and_all_numbers_are_exact_in_bf16() -> None:
    torch.manual_seed(0)
    weight = torch.randn(200, 256)
    made = dequantize_groups(*quantize_groups(weight))
    assert _error(weight, made) < 0.085 and _error(weight, dequantize_rows(*quantize_rows(weight))) < 0.01
    assert torch.equal(made.bfloat16().float(), made)


def test_rows_of_nothing_stay_so_and_a_layer_is_one_of_what_its_weights_stand_for() -> None:
    torch.manual_seed(0)
    weight = torch.randn(7, 64)
    weight[2], weight[3, :32] = 0, 1e-38
    data, scales = quantize_groups(weight)
    made = dequantize_groups(data, scales)
    assert not made[2].any() and not made[3, :32].any() and made[3, 32:].any()
    x, bias = torch.randn(2, 3, 64), torch.randn(7)
    torch.testing.assert_close(int4_linear(x, data, scales, bias), torch.nn.functional.linear(x, made, bias))


@pytest.mark.parametrize("power", [1e35, 1e-25])
def test_groups_of_very_large_and_very_small_weights_are_as_exact_as_others(power: float) -> None:
    torch.manual_seed(0)
    weight = torch.randn(20, 64)
    made = dequantize_groups(*quantize_groups(weight * power)) / power
    assert abs(_error(weight, made) - _error(weight, dequantize_groups(*quantize_groups(weight)))) < 0.005


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_no_number_is_not_taken_for_one(value: float) -> None:
    weight = torch.ones(3, 64)
    weight[1, 40] = value
    rows, groups = dequantize_rows(*quantize_rows(weight)), dequantize_groups(*quantize_groups(weight))
    assert rows[1, 40].isnan() and torch.equal(rows[::2], weight[::2])
    assert groups[1, 32:].isnan().all() and not groups[1, :32].isnan().any() and torch.equal(groups[::2], weight[::2])

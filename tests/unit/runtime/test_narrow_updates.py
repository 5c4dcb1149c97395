"""Updates of f32 parameters from gradients in bf16."""

from collections.abc import Callable

import pytest
import torch

from rdukit_runtime.engine.optimizer_operators import PIECE, WIDENED, adamw, adamw_stepwise
from support import shows

pytestmark = shows("precision")

SCALARS = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1}


@pytest.mark.parametrize(("update", "size"), [(adamw, WIDENED + 3), (adamw, 7), (adamw_stepwise, PIECE + 3)])
def test_a_bf16_gradient_updates_as_the_same_numbers_in_f32_do(update: Callable[..., None], size: int) -> None:
    torch.manual_seed(0)
    narrow = [torch.randn(size).bfloat16(), torch.randn(5)]
    start = torch.randn(size)

    def run(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        parameters = [start.clone(), torch.ones(5)]
        means, squares = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
        steps = [torch.zeros(()) for _ in parameters]
        for _ in range(2):
            update(parameters, gradients, means, squares, steps, **SCALARS)
        return [*parameters, *means, *squares, *steps]

    for found, expected in zip(run(narrow), run([g.float() for g in narrow]), strict=True):
        # f32; elements at the end of a piece may be computed without fused multiply-adds
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)

"""Which calls of a traced kernel become one, and which do not."""

from collections.abc import Callable
from typing import Any

import torch

from rdukit_compiler.backend.choose_products import eliminate_common_calls, eliminate_common_views
from rdukit_compiler.torch_private import trace_aten
from support import shows

pytestmark = shows("engine", "native")

aten = torch.ops.aten


def _left(function: Callable[..., Any], merge: Callable[[Any], None], *inputs: torch.Tensor) -> list[str]:
    module = trace_aten(function, inputs)
    merge(module.graph)
    module.graph.lint()
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def test_equal_views_become_one_and_others_stay() -> None:
    left = _left(lambda x: (x.t() + 1, x.t() + 2, x.view(6), x.view(3, 2)), eliminate_common_views, torch.ones(2, 3))
    assert left.count("aten.t.default") == 1 and left.count("aten.view.default") == 2


def test_views_of_what_is_written_show_the_same_memory() -> None:
    x = torch.arange(6.0).view(2, 3)
    module = trace_aten(lambda x: (x.t().clone(), x.view(-1).add_(1), x.t().clone()), [x])
    expected = [tensor.clone() for tensor in module(x.clone())]
    eliminate_common_views(module.graph)
    module.recompile()
    assert [str(node.target) for node in module.graph.nodes].count("aten.t.default") == 1
    assert all(torch.equal(a, b) for a, b in zip(module(x.clone()), expected, strict=True))


def _merge_tanh(graph: Any) -> None:
    eliminate_common_calls(graph, aten.tanh.default)


def test_equal_calls_become_one() -> None:
    assert _left(lambda x: x.tanh() + x.tanh(), _merge_tanh, torch.ones(3)).count("aten.tanh.default") == 1
    assert _left(lambda x, y: x.tanh() + y.tanh(), _merge_tanh, *torch.ones(2, 3)).count("aten.tanh.default") == 2


def test_calls_on_what_is_written_in_between_stay() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        before = x.tanh()
        x.view(-1).add_(1)
        return before + x.tanh()

    assert _left(run, _merge_tanh, torch.ones(3)).count("aten.tanh.default") == 2

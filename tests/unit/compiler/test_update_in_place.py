"""Buffers that a section updates are changed where they lie, but only where nothing needs the old value."""

from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from rdukit_compiler.passes.section_rewrites import update_in_place
from support import shows

pytestmark = shows("engine")

aten = torch.ops.aten
Function = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], list[torch.Tensor]]


def rows(cache: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    new = cache.index_copy(0, at, x)
    return [new.sum(1), new.clone()]


def parts(cache: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    new = aten.slice_scatter.default(cache, x, 0, 1, 3)
    inner = aten.slice_scatter.default(aten.select.int(new, 0, 3), x[0, :1], 0, 2, 3)
    return [x + 1, aten.select_scatter.default(new, inner, 0, 3)]


def read_before(cache: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    old = cache.t().sum(0)
    return [old + 1, aten.index_put.default(cache, [at], x).clone()]


def twice(cache: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    first = cache.index_copy(0, at, x)
    read = first.mean(1)
    second = first.index_copy(0, at + 1, x * 2)
    return [read + second.sum(1), second.clone()]


def read_after(cache: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    new = cache.index_copy(0, at, x)
    return [new.sum(1) + cache.sum(1), new.clone()]


def view_read_after(cache: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    turned = cache.t()
    new = cache.index_copy(0, at, x)
    return [new.sum(1) + turned.sum(0), new.clone()]


def leaves_as_itself(cache: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    new = cache.index_copy(0, at, x)
    return [new, new.clone()]


def a_view_leaves(cache: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    new = cache.index_copy(0, at, x)
    return [new[:2], new.clone()]


def adds_up(cache: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    return [x + 1, cache + x.sum()]


def make_inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(5, 3), torch.tensor([1, 3]), torch.randn(2, 3)


def rewrite(function: Function) -> torch.fx.GraphModule:
    module = make_fx(function, tracing_mode="fake")(*make_inputs())
    update_in_place(module.graph, {1: 0})
    module.recompile()
    return module


def check_results(function: Function, module: torch.fx.GraphModule) -> torch.Tensor:
    """The cache that the module was given, after it ran; its results are right."""
    gold = function(*make_inputs())
    cache, at, x = make_inputs()
    made = module(cache, at, x)
    torch.testing.assert_close(made, gold)
    return cache


@pytest.mark.parametrize("function", [rows, parts, read_before, twice], ids=lambda f: f.__name__)
def test_a_cache_is_changed_where_it_lies(function: Function) -> None:
    module = rewrite(function)
    cache = check_results(function, module)
    torch.testing.assert_close(cache, function(*make_inputs())[1])
    assert not any(node.target is aten.clone.default for node in module.graph.nodes)


@pytest.mark.parametrize(
    "function", [read_after, view_read_after, leaves_as_itself, a_view_leaves, adds_up], ids=lambda f: f.__name__
)
def test_a_cache_whose_old_or_new_value_is_needed_as_such_is_copied(function: Function) -> None:
    cache = check_results(function, rewrite(function))
    assert torch.equal(cache, make_inputs()[0])

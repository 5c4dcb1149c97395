"""Our answers to torch's questions about shapes are torch's own, and symbols are left to torch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental import symbolic_shapes

from rdukit_compiler.capture.lazy_torch_imports import shape_functions
from support import shows

pytestmark = shows("pytorch")


class AskedTorch(Exception):
    pass


def refuse(module: str, name: str) -> Any:
    raise AskedTorch(name)


OURS = shape_functions(refuse)
FLAGS = ("guard_or_false", "guard_or_true", "guard_size_oblivious", "statically_known_true", "expect_true")
LISTED = ("_iterate_exprs", "_iterate_nodes")
VALUES = {
    **{name: [(True,), (False,)] for name in FLAGS},
    **{name: [(0,), (5,), (-1,)] for name in ("guard_int", "guarding_hint_or_throw")},
    **{name: [(0,), (True,), (2.5,)] for name in ("is_nested_int", "is_symbolic", "has_guarding_hint")},
    **{
        name: [(3,), ((2, 3),), (torch.empty(2, 3),), ([torch.empty(2), 4],)]
        for name in ("has_free_symbols", "has_free_unbacked_symbols", "free_unbacked_symbols", *LISTED)
    },
    "sym_and": [(True,), (True, False), (True, True, True)],
    "sym_or": [(False,), (True, False), (False, False)],
    "sym_eq": [(2, 2), (2, 3), ((2, 3), [2, 3]), ((2, 3), (2,)), (torch.Size([2, 3]), (2, 4)), ((), [])],
    "compute_unbacked_bindings": [(None, torch.empty(2))],
}


def plain(value: Any) -> Any:
    """What an iterator yields."""
    return list(value) if hasattr(value, "__next__") else value


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's, of one that it still calls itself
@pytest.mark.parametrize("name", VALUES)
def test_answers_about_numbers_are_those_of_torch(name: str) -> None:
    theirs: Callable[..., Any] = getattr(symbolic_shapes, name)
    for values in VALUES[name]:
        ours, expected = plain(OURS[name](*values)), plain(theirs(*values))
        assert (ours, type(ours)) == (expected, type(expected)), (name, values)


@pytest.mark.parametrize(
    "name", [name for name in OURS if not isinstance(OURS[name], type) and name != "is_accessor_node"]
)
def test_a_question_about_a_symbol_is_left_to_torch(name: str) -> None:
    environment = symbolic_shapes.ShapeEnv()
    size = environment.create_unbacked_symint()
    with pytest.raises(AskedTorch, match=name):
        OURS[name](size, size) if name in {"sym_eq", "compute_unbacked_bindings"} else OURS[name](size)


def test_names_that_are_asked_for_exist_in_torch() -> None:
    assert [name for name in OURS if not hasattr(symbolic_shapes, name)] == []


def test_operators_that_read_no_size_are_no_accessors() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    made = graph.call_function(torch.ops.aten.relu.default, (x,))
    read = graph.call_function(torch.ops.aten.sym_size.int, (x, 0))
    assert OURS["is_accessor_node"](x) is OURS["is_accessor_node"](made) is False
    with pytest.raises(AskedTorch):
        OURS["is_accessor_node"](read)

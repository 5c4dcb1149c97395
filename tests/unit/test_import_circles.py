"""Imports run one way: no modules import each other, neither in functions nor for types."""

from functools import cache
from graphlib import CycleError, TopologicalSorter

import grimp

from support import shows

pytestmark = shows("project")

PACKAGES = (
    "rdukit", "sambaflow", "rdukit_compiler", "rdukit_node", "rdukit_runtime", "rdukit_serving", "rdukit_modelbox",
    "rdukit_platform", "rdukit_zoo", "rdukit_bench",
)  # fmt: skip
#: The vendor's surface has a tensor that converts to parameters, a parameter that is a tensor, and one that is lazy.
VENDORS = frozenset({
    "sambaflow.samba.lazy_param", "sambaflow.samba.nn.parameter", "sambaflow.samba.sambatensor",
})  # fmt: skip


@cache
def imports(*, with_types: bool) -> dict[str, frozenset[str]]:
    """Other modules that each one imports, also in functions; ``with_types``: also under TYPE_CHECKING."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=not with_types, cache_dir=None)
    return {name: frozenset(graph.find_modules_directly_imported_by(name) - {name}) for name in graph.modules}


def find_circle(found: dict[str, frozenset[str]]) -> list[str]:
    """One circle of modules, its first one repeated at its end; empty: there is none."""
    try:
        TopologicalSorter(found).prepare()
    except CycleError as error:
        return list(error.args[1][::-1])
    return []


def test_no_modules_import_each_other() -> None:
    outside = {name: others for name, others in imports(with_types=True).items() if not name.startswith("sambaflow")}
    assert find_circle(outside) == [], "move what they share to where both may import it"


def test_the_vendors_surface_has_one_circle_of_three_modules() -> None:
    found = imports(with_types=False)
    inner = {name: found[name] & VENDORS for name in VENDORS}
    assert find_circle(inner), "there is no circle any more: VENDORS can go"
    assert find_circle({**found, **{name: found[name] - VENDORS for name in VENDORS}}) == []


def test_a_circle_is_found_and_imports_in_functions_count() -> None:
    chain = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset[str]()}
    assert find_circle(chain) == []
    assert sorted(set(find_circle({**chain, "c": frozenset("a")}))) == ["a", "b", "c"]
    child = "rdukit_modelbox.operations.child"
    assert "rdukit_modelbox.operations.members" in imports(with_types=False)[child], "child imports it in a function"

"""A buffer gets its new value as soon as nothing reads the old one."""

from rdukit_compiler.patterns.topology import move_copies
from support import shows
from support.graphs import GraphBuilder

pytestmark = shows("engine")


def order(build: GraphBuilder, value: str) -> list[str]:
    return [operator.name for operator in move_copies(build.build().operators, {"cache": value})]


def test_a_copy_moves_behind_what_computed_it() -> None:
    build = GraphBuilder()
    new = build.op("index_copy", build.input("cache"), build.input("x"), name="new")
    build.op("tanh", build.op("relu", new, name="read"), name="y")
    assert order(build, build.op("clone", new, name="kept")) == ["new", "kept", "read", "y"]


def test_a_copy_stays_behind_what_reads_the_old_value_or_a_view_of_it() -> None:
    for reads_view in (False, True):
        build = GraphBuilder()
        cache = build.input("cache")
        seen = build.op("view", cache, name="seen")
        new = build.op("index_copy", cache, build.input("x"), name="new")
        build.op("relu", seen if reads_view else cache, name="late")
        assert order(build, build.op("clone", new, name="kept")) == ["seen", "new", "late", "kept"]


def test_a_value_that_is_no_copy_stays() -> None:
    build = GraphBuilder()
    total = build.op("add", build.input("cache"), build.input("x"), name="total")
    build.op("relu", "x", name="y")
    assert order(build, total) == ["total", "y"]

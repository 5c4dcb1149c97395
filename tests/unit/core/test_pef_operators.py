"""The list of operators that a PEF may name: torch's own schemas, and nothing that is not one."""

from pathlib import Path

from rdukit.pef.operators import find_signature, is_foreign, operator_lines
from support import shows

pytestmark = shows("security")

ROOT = Path(__file__).parents[3]


def test_a_line_says_what_is_positional_what_is_named_and_what_may_be_left_out() -> None:
    signature = find_signature("aten.add.Tensor")
    assert signature is not None
    assert [(p.name, p.kind, p.has_default) for p in signature.positional] == [
        ("self", "tensor", False), ("other", "tensor", False),
    ]  # fmt: skip
    assert [(p.name, p.kind, p.has_default) for p in signature.named] == [("alpha", "scalar", True)]
    assert find_signature("aten.no_such_operator.default") is None


def test_only_a_programs_own_operators_are_foreign() -> None:
    assert is_foreign("mylib.run.default")
    for op in (
        "aten.add.Tensor",
        "rdukit.sgd",
        "inductor.x.default",
        "profiler.x.default",
        "mylib.run",
        "a.__b.c",
        "eval",
    ):
        assert not is_foreign(op), op


def test_no_operator_stands_in_the_list_twice() -> None:
    text = (ROOT / "core" / "rdukit" / "pef" / "operators.txt").read_text()
    assert len([line for line in text.splitlines() if not line.startswith("#")]) == len(operator_lines())

import pytest

from rdukit.cli.commands import parse_name_values, parse_value
from rdukit.errors import InvalidArgument


def test_a_value_may_hold_the_sign_or_nothing() -> None:
    assert parse_name_values("--set", ["a=1", "b=c=d", "e="]) == {"a": "1", "b": "c=d", "e": ""}


@pytest.mark.parametrize("text", ["a", "=1", ""])
def test_a_pair_without_name_or_sign_is_refused_with_the_option(text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"--input {text!r} is not legal; legal: NAME=VALUE"):
        parse_name_values("--input", [text])


@pytest.mark.parametrize(
    ("text", "value"), [("2", 2), ("0.5", 0.5), ("true", True), ("null", "null"), ("[1]", "[1]"), ("a b", "a b")]
)
def test_numbers_and_truth_values_are_read_and_all_else_stays_text(text: str, value: object) -> None:
    assert parse_value(text) == value

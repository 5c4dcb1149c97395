from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rdukit.cli.commands import TOKEN_OPTION, given_token, parse_name_values, parse_value, with_plain_range
from rdukit.errors import InvalidArgument
from support import shows

pytestmark = shows("settings", "security")


def test_a_value_may_hold_the_sign_or_nothing() -> None:
    assert parse_name_values("--set", ["a=1", "b=c=d", "e="]) == {"a": "1", "b": "c=d", "e": ""}
    with pytest.raises(InvalidArgument, match="--set gives a twice, '1' and '2'; expected once"):
        parse_name_values("--set", ["a=1", "b=c", "a=2"])


@pytest.mark.parametrize("text", ["a", "=1", ""])
def test_a_pair_without_name_or_sign_is_refused_with_the_option(text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"--input {text!r} is not valid; expected NAME=VALUE"):
        parse_name_values("--input", [text])


@pytest.mark.parametrize(
    ("text", "value"), [("2", 2), ("0.5", 0.5), ("true", True), ("null", "null"), ("[1]", "[1]"), ("a b", "a b")]
)
def test_numbers_and_truth_values_are_read_and_all_else_stays_text(text: str, value: object) -> None:
    assert parse_value(text) == value


@click.command()
@TOKEN_OPTION
def show_token() -> None:
    click.echo(given_token())


def test_a_token_comes_from_the_option_the_variable_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(*words: str) -> str:
        return CliRunner().invoke(show_token, words, catch_exceptions=False).output.rstrip("\n")

    file = tmp_path / "tokens"
    file.write_text("# callers\n\n sesame \nanother\n")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path))
    assert shown() == ""
    (tmp_path / "config.yaml").write_text(f'token: "@{file}"')
    assert shown() == "sesame"
    monkeypatch.setenv("RDUKIT_TOKEN", "open")
    assert (shown(), shown("--token", "shut"), shown("--token", f"@{file}")) == ("open", "shut", "sesame")
    monkeypatch.setenv("RDUKIT_TOKEN", f"@{file}")
    assert shown() == "sesame"


@pytest.mark.parametrize(("content", "words"), [(None, "cannot be read"), ("# nothing\n", "holds no token")])
def test_a_token_file_that_has_none_is_refused(tmp_path: Path, content: str | None, words: str) -> None:
    file = tmp_path / "tokens"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InvalidArgument, match=words):
        CliRunner().invoke(show_token, ["--token", f"@{file}"], catch_exceptions=False)


@click.command()
@click.option("--canary", type=click.IntRange(1, 99))
@click.option("--share", type=click.FloatRange(0, min_open=True))
def ranges(canary: int | None, share: float | None) -> None:
    pass


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--canary", "x"], "'x' is not valid; expected a whole number from 1 to 99."),
        (["--canary", "120"], "120 is not valid; expected a whole number from 1 to 99."),
        (["--share", "0"], "0.0 is not valid; expected a number above 0."),
    ],
)
def test_a_number_out_of_its_range_is_refused_with_the_range_in_words(words: list[str], said: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        ranges.main(words, standalone_mode=False)
    assert with_plain_range(caught.value).message == said

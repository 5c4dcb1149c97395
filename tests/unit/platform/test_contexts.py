"""Contexts: which platform commands talk to, by which token, and where a new token is kept."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rdukit.cli.commands import TOKEN_OPTION
from rdukit.errors import Conflict, InvalidArgument, NotFound, RdukitError, Unauthenticated, Unavailable
from rdukit_platform.cli.context import context
from rdukit_platform.client import Platform
from rdukit_platform.client.contexts import (
    GatewayContext,
    GatewayPlace,
    find_login,
    find_place,
    forget_login,
    keep_login,
    keep_token,
    login_target,
    read_contexts,
    read_login,
    write_login,
)
from rdukit_platform.settings import Home
from support import shows

pytestmark = shows("context", "python-client", "identity")

LAB = "https://lab.example.com"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in ("RDUKIT_TOKEN", "RDUKIT_GATEWAY_URL", "RDUKIT_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path))
    (tmp_path / "token").write_text("own\n")
    return Home(tmp_path)


def say(*words: str) -> str:
    return CliRunner().invoke(context, words, catch_exceptions=False).output


@click.command()
@TOKEN_OPTION
@click.option("--at", default=None)
def show_place(at: str | None) -> None:
    from rdukit_platform.settings import current_home

    place = find_place(current_home(), at)
    click.echo(f"{place.url} {place.token} {place.context or '-'}")


def place_of(*words: str) -> str:
    return CliRunner().invoke(show_place, words, catch_exceptions=False).output.strip()


def test_commands_go_to_the_context_in_use_and_to_the_one_that_is_named(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "http://127.0.0.1:8080 own"
    assert place_of() == f"{own} home"
    assert "log in there with: rdukit login --context far" in say("add", "far", "--url", "http://far:1/")
    say("add", "lab", "--url", LAB, "--token", "t1", "--use")
    assert place_of() == f"{LAB} t1 lab"
    assert place_of("--context", "home") == f"{own} home"
    # Its own token counts before one that may be for another platform; the option before both.
    monkeypatch.setenv("RDUKIT_TOKEN", "other")
    assert (place_of(), place_of("--token", "t2")) == (f"{LAB} t1 lab", f"{LAB} t2 lab")
    # A setting counts before what is in use, a context that is named before the setting.
    monkeypatch.setenv("RDUKIT_GATEWAY_URL", "http://set:2")
    assert (place_of(), place_of("--context", "lab")) == ("http://set:2 other -", f"{LAB} t1 lab")
    monkeypatch.setenv("RDUKIT_CONTEXT", "lab")
    assert (place_of(), place_of("--at", "http://given:3")) == (f"{LAB} t1 lab", "http://given:3 other -")


def test_programs_name_a_context_too(home: Home) -> None:
    say("add", "lab", "--url", LAB, "--token", "t1")
    with Platform(context="lab") as platform:
        assert platform.url == LAB
    with Platform() as platform:
        assert platform.url == "http://127.0.0.1:8080"
    with pytest.raises(NotFound, match="Did you mean 'lab'"):
        Platform(context="lba")
    with pytest.raises(InvalidArgument, match="expected one of them"):
        Platform(LAB, context="lab")


def test_no_token_goes_where_it_is_not_for(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    say("add", "far", "--url", "http://far:1")
    with pytest.raises(Unauthenticated, match="context far has no token for http://far:1; log in with: rdukit login"):
        place_of("--context", "far")
    home.token_file.unlink()
    with pytest.raises(Unavailable, match="rdukit up, or log in"):
        place_of()
    monkeypatch.setenv("RDUKIT_TOKEN", "given")
    assert place_of("--context", "far") == "http://far:1 given far"


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (("use", "lba"), NotFound, "Did you mean 'lab'.* rdukit context add lba --url URL"),
        (("use", "xyz"), NotFound, "There are: home, lab"),
        (("add", "lab", "--url", LAB), Conflict, "rdukit context remove lab"),
        (("add", "home", "--url", LAB), InvalidArgument, "home is reserved for this home folder"),
        (("add", "a/b", "--url", LAB), InvalidArgument, "expected up to 63"),
        (("add", "b", "--url", "lab:80"), InvalidArgument, "expected a URL such as http://"),
        (("remove", "home"), InvalidArgument, "cannot be removed"),
    ],
)
def test_a_name_or_address_that_is_not_legal_is_refused_with_what_is(
    home: Home, words: tuple[str, ...], error: type[RdukitError], said: str
) -> None:
    say("add", "lab", "--url", LAB)
    before = home.contexts_file.read_bytes()
    with pytest.raises(error, match=said):
        say(*words)
    assert home.contexts_file.read_bytes() == before


def test_the_file_is_the_owners_alone_and_a_damaged_one_chooses_no_platform(home: Home) -> None:
    say("add", "lab", "--url", LAB, "--token", "secret-1", "--use")
    assert home.contexts_file.stat().st_mode & 0o777 == 0o600
    listed = say("list"), say("list", "--json")
    assert "secret-1" not in "".join(listed)
    assert [line.split()[:3] for line in listed[0].splitlines()[1:]] == [
        ["home", "http://127.0.0.1:8080", "yes"], ["*", "lab", LAB],
    ]  # fmt: skip
    assert json.loads(listed[1])["current"] == "lab"
    home.contexts_file.write_text('{"current": "lab"')
    with pytest.raises(InvalidArgument, match=r"contexts\.json is damaged"):
        place_of()
    home.contexts_file.unlink()
    say("add", "lab", "--url", LAB, "--use")
    assert "commands go to home" in say("remove", "lab")
    assert place_of() == "http://127.0.0.1:8080 own home"


def test_a_login_is_kept_where_it_is_for_and_ended_there(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as named:
        named.setenv("RDUKIT_CONTEXT", "lab")
        with pytest.raises(NotFound, match="give its URL: rdukit login --context lab --url URL"):
            login_target(home, None)
        target = login_target(home, LAB + "/")
        assert target == GatewayPlace(LAB, "", "lab")
        assert "rdukit context use lab" in keep_login(home, target, "t1")
    assert read_login(home) is None and read_contexts(home).known["lab"] == GatewayContext(LAB, "t1")
    say("use", "lab")
    assert login_target(home, None) == target and find_login(home).token == "t1"
    # Who logs in elsewhere, without a name, goes there.
    elsewhere = login_target(home, "http://else:1")
    assert "to return to it: rdukit context use lab" in keep_login(home, elsewhere, "t2")
    assert place_of() == "http://else:1 t2 home"
    assert find_login(home) == GatewayPlace("http://else:1", "t2", "home")
    forget_login(home, find_login(home))
    with pytest.raises(NotFound, match="you are not logged in"):
        find_login(home)
    monkeypatch.setenv("RDUKIT_CONTEXT", "lab")
    forget_login(home, find_login(home))
    with pytest.raises(NotFound, match="you are not logged in at context lab"):
        find_login(home)
    assert read_contexts(home).known["lab"] == GatewayContext(LAB)


def test_a_rotated_token_replaces_the_old_one_where_that_was_kept(home: Home) -> None:
    assert keep_token(home, "own", "own-2") == str(home.token_file)
    assert home.token_file.read_text() == "own-2\n"
    write_login(home, "", "t1")
    assert keep_token(home, "t1", "t2") == str(home.login_file)
    assert read_login(home) == {"url": "", "token": "t2"} and home.token_file.read_text() == "own-2\n"
    assert keep_token(home, "of a variable", "new") == ""
    say("add", "lab", "--url", LAB, "--token", "l1", "--use")
    assert keep_token(home, "t2", "never") == ""
    assert keep_token(home, "l1", "l2") == str(home.contexts_file)
    assert read_contexts(home).known["lab"].token == "l2"

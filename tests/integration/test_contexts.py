"""Contexts of the command line and of programs: which gateway is called, with which token."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdukit.errors import NotFound, Unavailable
from rdukit_platform.client import Platform
from support.platform.gateway import GatewayUnderTest, gateway_under_test
from support.platform.processes import run_rdukit


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayUnderTest]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_HOME", str(tmp_path_factory.mktemp("gateway")))
        with gateway_under_test() as gateway:
            yield gateway


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of a machine on which no platform runs."""
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def whose(*words: str) -> str:
    """Return the tenant that commands work for, and rdukit's options before."""
    found = json.loads(run_rdukit(*words, "token", "list", "--json"))
    assert len(found["tokens"]) >= 1
    return str(found["tokens"][0]["id"])


def token_of(gateway: GatewayUnderTest, tenant: str, file: Path) -> str:
    token_id, text = gateway.id_and_token(tenant, "read", "tokens")
    file.write_text(text + "\n")
    return token_id


def test_commands_and_programs_call_the_context_that_is_chosen_or_named(
    gateway: GatewayUnderTest, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = {name: token_of(gateway, name, tmp_path / name) for name in ("red", "blue")}
    for name in ids:
        run_rdukit("context", "add", name, "--url", gateway.url, "--token-file", str(tmp_path / name))
    assert "there is no API token" in run_rdukit("job", "list", status=7)
    run_rdukit("context", "use", "red")
    assert (whose(), whose("--context", "blue")) == (ids["red"], ids["blue"])
    monkeypatch.setenv("RDUKIT_CONTEXT", "blue")
    assert (whose(), whose("--context", "red")) == (ids["blue"], ids["red"])
    with Platform() as blue, Platform(context="red") as red:
        assert [each.api.get("/v1/me")["token"] for each in (blue, red)] == [ids["blue"], ids["red"]]
    shown = {each["name"]: each for each in json.loads(run_rdukit("context", "list", "--json"))}
    assert [name for name, each in shown.items() if each["is_used"]] == ["blue"] and set(shown) == {"default", *ids}
    assert (home / "contexts.json").stat().st_mode & 0o777 == 0o600
    assert not any((tmp_path / name).read_text().strip() in (home / "contexts.json").read_text() for name in ids)


def test_a_rotated_token_is_written_to_the_file_that_it_came_from(
    gateway: GatewayUnderTest, home: Path, tmp_path: Path
) -> None:
    old = token_of(gateway, "rotated", tmp_path / "token")
    run_rdukit("context", "add", "x", "--url", gateway.url, "--token-file", str(tmp_path / "token"), "--use")
    made = json.loads(run_rdukit("token", "rotate", "--json"))
    assert (tmp_path / "token").read_text().strip() == made["token"] and made["id"] != old
    assert not (home / "token").exists()


def test_the_setting_goes_before_what_was_chosen_and_a_name_before_the_setting(
    gateway: GatewayUnderTest, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token_of(gateway, "red", tmp_path / "red")
    run_rdukit("context", "add", "red", "--url", gateway.url, "--token-file", str(tmp_path / "red"), "--use")
    monkeypatch.setenv("RDUKIT_GATEWAY_URL", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match="there is no API token"):
        Platform()  # the context's token is sent to its own gateway only
    with Platform(context="red") as platform:
        assert platform.url == gateway.url


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--context", "labb", "job", "list"], 3, "Did you mean 'lab'?"),
        (["context", "use", "labb"], 3, "Did you mean 'lab'?"),
        (["context", "remove", "default"], 6, "stays"),
        (["context", "add", "lab", "--url", "http://x"], 6, "already"),
        (["context", "add", "../x", "--url", "http://x"], 2, "is not legal"),
        (["context", "add", "y", "--url", "ftp://x"], 2, "http://HOST"),
        (["context", "add", "y", "--url", "http://x", "--token-file", "/none"], 7, "cannot be read"),
        (["--context", "lab", "job", "list"], 7, "has no token file"),
    ],
)
def test_what_is_wrong_is_told(home: Path, words: list[str], status: int, said: str) -> None:
    run_rdukit("context", "add", "lab", "--url", "http://127.0.0.1:9")
    assert said in run_rdukit(*words, status=status)


def test_a_context_that_is_removed_is_chosen_no_more(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_rdukit("context", "add", "lab", "--url", "http://127.0.0.1:9", "--use")
    run_rdukit("context", "remove", "lab")
    (only,) = json.loads(run_rdukit("context", "list", "--json"))
    assert (only["name"], only["is_used"]) == ("default", True)
    with pytest.raises(NotFound, match="there is no context 'lab'"):
        Platform(context="lab")

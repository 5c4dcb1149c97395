"""SNML: tokens, targets, injections as requests."""

import json
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument, NotFound, Unauthenticated
from rdukit.proto import snml_pb2 as pb
from rdukit_node.settings import NodePaths, server_address
from rdukit_node.snml.client import find_target
from rdukit_node.snml.servicer import injection
from rdukit_node.snml.token import check_authorization, load_or_create_token, read_token
from support import shows

pytestmark = shows("snml")


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    return NodePaths(*(tmp_path / name for name in ("snd", "snml", "db", "sn.log", "snd.log", "token")))


def test_a_token_is_made_once_and_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "run/admin.token"
    token = load_or_create_token(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_or_create_token(path) == token == read_token(path)
    assert len(token) >= 32


def test_a_token_that_others_could_read_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "admin.token"
    token = load_or_create_token(path)
    path.chmod(0o644)
    assert load_or_create_token(path) != token
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_empty_token_file_lets_nobody_in(tmp_path: Path) -> None:
    path = tmp_path / "admin.token"
    path.touch(0o600)
    assert len(load_or_create_token(path)) >= 32


def test_no_token_file_is_told_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="start the node"):
        read_token(tmp_path / "none")


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("authorization", "secret")],
        [("authorization", "Basic secret")],
        [("authorization", "Bearer wrong")],
        [("authorization", b"Bearer \xff")],
        [("other", "Bearer secret")],
        [("authorization", "Bearer secret"), ("authorization", "Bearer wrong")],
    ],
)
def test_a_change_without_the_token_is_refused(metadata: list[tuple[str, str | bytes]]) -> None:
    with pytest.raises(Unauthenticated, match="authorization: Bearer"):
        check_authorization(metadata, "secret")


def test_the_token_lets_in_whatever_the_case_of_the_scheme() -> None:
    check_authorization([("authorization", "Bearer secret")], "secret")
    check_authorization([("Authorization", "bearer secret")], "secret")


def test_without_a_socket_the_client_uses_tcp_and_says_so(paths: NodePaths) -> None:
    target, notice = find_target(None, paths)
    assert target == "127.0.0.1:50053"
    assert notice is not None and "SNML socket not found" in notice and "using TCP" in notice


def test_the_variable_names_the_server_and_an_empty_one_does_not() -> None:
    assert server_address({"SNML_SERVER": " unix:/x "}) == "unix:/x"
    assert server_address({"SNML_SERVER": ""}) is None
    assert server_address({}) is None


@pytest.mark.parametrize(
    ("address", "target"), [("/run/a b.sock", "unix:/run/a%20b.sock"), ("unix:/x", "unix:/x"), ("host:1", "host:1")]
)
def test_an_address_is_a_path_or_a_host_and_port(paths: NodePaths, address: str, target: str) -> None:
    assert find_target(address, paths) == (target, None)


def test_an_address_that_is_neither_is_refused(paths: NodePaths) -> None:
    with pytest.raises(InvalidArgument, match="HOST:PORT"):
        find_target("somewhere", paths)


def test_an_injection_says_only_what_was_said() -> None:
    assert injection(pb.Injection(class_name="fan"), 0) == {"class": "fan"}
    full = pb.Injection(class_name="fan", comp_name="/XRDU_0", count=2, seed=0, data=json.dumps({"rpm": 1}))
    assert injection(full, 0) == {
        "class": "fan", "component": "/NODE/XRDU_0", "count": 2, "seed": 0, "data": {"rpm": 1},
    }  # fmt: skip


@pytest.mark.parametrize("data", ["{", "[]", "1", "[" * 3000, '"' + "x" * 5000 + '"'])
def test_an_injection_s_data_is_a_json_object(data: str) -> None:
    with pytest.raises(InvalidArgument, match=r"events\[3\]\.data"):
        injection(pb.Injection(class_name="fan", data=data), 3)

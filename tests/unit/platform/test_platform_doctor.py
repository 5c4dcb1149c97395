"""What ``rdukit doctor`` concludes from the platform's settings and tokens."""

import pytest

from rdukit.doctor.cli import FindingLevel
from rdukit_platform.doctor import (
    DAY_S,
    TokenFacts,
    boxes_finding,
    broker_finding,
    compose_findings,
    database_finding,
    gateway_finding,
    key_findings,
    schema_finding,
    token_findings,
    workers_findings,
)
from support import shows

pytestmark = shows("security")

NOW = 1000 * DAY_S


def token(name: str, *scopes: str, ends: float | None = None, used: float | None = NOW, by: str = "host") -> TokenFacts:
    return TokenFacts(name, "lab", frozenset(scopes), NOW - 200 * DAY_S, ends, used, by)


@pytest.mark.parametrize(
    ("tokens", "checks"),
    [
        ([token("first", "admin")], {"tokens"}),
        ([token("first", "admin"), token("second", "admin")], {"tokens.admin"}),
        ([token("ci", "read")], {"tokens.endless"}),
        ([token("ci", "read", ends=NOW + 1)], {"tokens"}),
        ([token("ci", "read", ends=NOW + 1, used=NOW - 91 * DAY_S)], {"tokens.idle"}),
        ([token("ci", "read", ends=NOW + 1, used=None)], {"tokens.idle"}),
        ([token("glass", "admin", ends=NOW + 1, by="break-glass")], {"tokens.break-glass"}),
    ],
)
def test_tokens_that_are_worth_a_look_are_named(tokens: list[TokenFacts], checks: set[str]) -> None:
    findings = list(token_findings(tokens, NOW))
    assert {each.check for each in findings} == checks
    assert all((each.level is FindingLevel.GOOD) == (each.check == "tokens") for each in findings)


@pytest.mark.parametrize(
    ("revision", "level", "words"),
    [
        (None, FindingLevel.GOOD, "is empty"),
        ("0001", FindingLevel.UNKNOWN, "start the platform"),
        ("9999", FindingLevel.UNKNOWN, "or a newer one"),
    ],
)
def test_a_database_of_another_schema_is_told_by_which(revision: str | None, level: FindingLevel, words: str) -> None:
    found = schema_finding(revision)
    assert (found.level, words in found.what + found.todo) == (level, True), found


@pytest.mark.parametrize(
    ("url", "level"),
    [
        ("redis+socket:///home/run/valkey.sock", FindingLevel.GOOD),
        ("redis://broker:6379/0", FindingLevel.BAD),
        ("redis://127.0.0.1:6379/0", FindingLevel.BAD),
        ("redis://:changeme@broker:6379/0", FindingLevel.BAD),
        ("redis://:f00f00f00f00@broker:6379/0", FindingLevel.WARN),
        ("redis://:f00f00f00f00@127.0.0.1:6379/0", FindingLevel.GOOD),
        ("rediss://:f00f00f00f00@broker:6379/0", FindingLevel.GOOD),
    ],
)
def test_a_broker_is_asked_for_a_password(url: str, level: FindingLevel) -> None:
    assert broker_finding(url).level is level


@pytest.mark.parametrize(
    ("url", "level"),
    [
        ("sqlite:////home/db.sqlite", FindingLevel.GOOD),
        ("postgresql+psycopg://rdukit:rdukit@database/rdukit", FindingLevel.WARN),
        ("postgresql+psycopg://rdukit@database/rdukit", FindingLevel.WARN),
        ("postgresql+psycopg://rdukit:f00f00@database/rdukit", FindingLevel.WARN),
        ("postgresql+psycopg://rdukit:f00f00@database/rdukit?sslmode=verify-full", FindingLevel.GOOD),
        ("postgresql+psycopg://rdukit:f00f00@localhost/rdukit", FindingLevel.GOOD),
    ],
)
def test_a_database_is_asked_for_a_password(url: str, level: FindingLevel) -> None:
    finding = database_finding(url)
    assert finding.level is level
    assert "f00f00" not in finding.what, "a finding has no secret"


@pytest.mark.parametrize(
    ("host", "has_tls", "proxies", "level"),
    [
        ("127.0.0.1", False, "", FindingLevel.GOOD),
        ("::1", False, "", FindingLevel.GOOD),
        ("0.0.0.0", False, "", FindingLevel.BAD),
        ("10.0.0.7", True, "", FindingLevel.GOOD),
        ("0.0.0.0", False, "10.0.0.1", FindingLevel.WARN),
    ],
)
def test_tokens_do_not_cross_a_network_in_clear(host: str, has_tls: bool, proxies: str, level: FindingLevel) -> None:
    assert gateway_finding(host, has_tls, proxies).level is level


def test_a_key_that_others_may_read_is_named() -> None:
    assert [each.todo for each in key_findings([("/etc/a.key", 0o640), ("/etc/b.key", 0o644)])] == [
        "chmod 600 /etc/b.key"
    ]


@pytest.mark.parametrize(
    ("backend", "is_fenced", "tenants", "install", "level"),
    [
        ("podman", False, 5, "*", FindingLevel.GOOD),
        ("process", True, 5, "*", FindingLevel.GOOD),
        ("process", False, 1, "", FindingLevel.WARN),
        ("process", False, 2, "", FindingLevel.BAD),
        ("process", False, 1, "*", FindingLevel.BAD),
    ],
)
def test_tenants_are_kept_apart(backend: str, is_fenced: bool, tenants: int, install: str, level: FindingLevel) -> None:
    assert boxes_finding(backend, is_fenced, tenants, install).level is level


def test_what_workers_report_of_their_boxes_is_judged_the_same_wherever_the_doctor_runs() -> None:
    fenced, container = {"worker@a:1": "fence"}, {"worker@b:1": "container"}
    (fence, boxes) = workers_findings({**fenced, **container}, 5, "*")
    assert (fence.level, boxes.level, fence.supersedes) == (FindingLevel.GOOD, FindingLevel.GOOD, "fence")
    (fence, boxes) = workers_findings({**fenced, "worker@c:1": "nothing: no user namespaces; run it as root"}, 2, "")
    assert (fence.level, boxes.level) == (FindingLevel.WARN, FindingLevel.BAD)
    assert "worker@c:1 cannot fence tenants' programs: no user namespaces" in fence.what


def test_the_compose_files_password_is_chosen() -> None:
    assert list(compose_findings({})) == []
    assert [each.level for each in compose_findings({"RDUKIT_DATABASE_PASSWORD": ""})] == [FindingLevel.BAD]
    assert list(compose_findings({"RDUKIT_DATABASE_PASSWORD": "a" * 64})) == []

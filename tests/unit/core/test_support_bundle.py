"""A support bundle has no secrets: not by the names of settings, and not by what words look like."""

import pytest

from rdukit.doctor.bundle import blank_settings, without_secrets
from rdukit.settings import given_settings
from support import shows

pytestmark = shows("doctor", "security")


@pytest.mark.parametrize(
    "text",
    [
        "redis://:hunter2@broker:6379/0",
        "postgresql://rdukit:hunter2@db/rdukit?sslmode=disable",
        "Authorization: Bearer hunter2",
        "authorization: hunter2",
        '{"token": "hunter2"}',
        "password=hunter2, next",
        "RDUKIT_API_KEY=hunter2",
        "token rdk_hunter2-_x",
        "webhook whsec_hunter2+/=",
    ],
)
def test_words_that_look_like_secrets_are_blanked(text: str) -> None:
    assert "hunter2" not in without_secrets(text) and "(blanked)" in without_secrets(text)


@pytest.mark.parametrize(
    "text", ["http://127.0.0.1:8080/health", "2026-11-29T10:00:00 : [INFO][SND][1]: event=grant lease=l1"]
)
def test_other_words_stay(text: str) -> None:
    assert without_secrets(text) == text


def test_settings_with_secret_names_have_no_values() -> None:
    values = given_settings({
        "RDUKIT_HOME": "/nowhere", "RDUKIT_BROKER_PASSWORD_FILE": "/run/p", "RDUKIT_LEASE": "id:hunter2",
        "HOME": "/root",
    })  # fmt: skip
    assert blank_settings(values) == {
        "RDUKIT_HOME": "/nowhere", "RDUKIT_BROKER_PASSWORD_FILE": "(blanked)", "RDUKIT_LEASE": "(blanked)",
    }  # fmt: skip

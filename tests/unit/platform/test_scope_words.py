"""How refusals name scopes: as words, without those that another one includes, with the roles that would do; and when
a token ends.
"""

import pytest

from rdukit_platform.tenants.roles import lacks_scope
from rdukit_platform.tenants.scopes import DAY_S, SCOPES, all_of, choose_end, name_scopes
from support import shows

pytestmark = shows("permissions", "security", "tokens")


@pytest.mark.parametrize(
    ("scopes", "words"),
    [
        (("read",), "read"),
        (("jobs:read", "read", "endpoints:call"), "read, endpoints:call"),
        (all_of(["read", "write"]), "read, write"),
        (SCOPES, "admin"),
        ((), "none"),
    ],
)
def test_scopes_are_named_without_what_they_include(scopes: tuple[str, ...], words: str) -> None:
    assert name_scopes(scopes) == words


def test_a_lacking_scope_is_told_with_what_the_token_has_and_the_roles_that_have_it() -> None:
    said = str(lacks_scope(all_of(["read"]), "jobs:write"))
    assert said == (
        "this needs the scope jobs:write, and the token has: read; "
        "roles that have it: ml-engineer, data-scientist, tenant-admin"
    )
    assert str(lacks_scope(["read"], "admin")) == "this needs the scope admin, and the token has: read"


def test_roles_are_named_that_have_all_scopes_of_one_alternative() -> None:
    either = [{"tokens"}, {"members", "read"}]
    said = str(lacks_scope(["read"], "tokens or members and read", either))
    assert said.endswith("roles that have it: data-scientist, tenant-admin")


def test_a_token_ends_with_its_maker_or_after_the_longest_life_whichever_is_first() -> None:
    assert choose_end(100.0, None, 160.0, 90 * DAY_S) == 160.0
    assert choose_end(100.0, None, 200 * DAY_S, 90 * DAY_S) == 100.0 + 90 * DAY_S
    assert choose_end(100.0, None, 160.0, 0.0) == 160.0
    assert choose_end(100.0, None, None, 0.0) is None

"""Permissions (pure): the scopes that a route or call needs, and the roles that have them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rdukit_platform.tenants.roles import ROLES
from rdukit_platform.tenants.scopes import all_of


@dataclass(frozen=True, slots=True)
class Permission:
    """Permission for a route: all scopes of one of ``alternatives``. Without any, ``needs_token`` says who may."""

    alternatives: tuple[frozenset[str], ...] = ()
    needs_token: bool = True

    def lets_in(self, scopes: Iterable[str]) -> bool:
        """Return whether a caller with ``scopes`` may call the route."""
        own = all_of(scopes)
        return not self.alternatives or any(needed <= own for needed in self.alternatives)

    def __str__(self) -> str:
        if not self.alternatives:
            return "any token" if self.needs_token else "nobody's leave"
        return " or ".join(" and ".join(f"`{scope}`" for scope in sorted(each)) for each in self.alternatives)


#: Callers without a token get in, too.
PUBLIC: Final = Permission(needs_token=False)
ANY_TOKEN: Final = Permission()


def needs(*scopes: str) -> Permission:
    """Return the permission that asks for all of ``scopes``."""
    return Permission((frozenset(scopes),))


def needs_one(*scopes: str) -> Permission:
    """Return the permission that asks for any of ``scopes``."""
    return Permission(tuple(frozenset({scope}) for scope in scopes))


def roles_let_in(permission: Permission) -> list[str]:
    """Return the names of the roles that may call a route of this permission."""
    return [role.name for role in ROLES.values() if permission.lets_in(role.scopes)]

"""What routes ask for: the platform, and a caller with a scope."""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from rdukit.errors import PermissionDenied
from rdukit_platform.context import Platform
from rdukit_platform.tenants.service import ADMIN, READ, WRITE, Caller, authenticate

_bearer = HTTPBearer(auto_error=False, description="API token")


def platform_of(request: Request) -> Platform:
    """The platform that this gateway serves."""
    platform: Platform = request.app.state.platform
    return platform


def find_caller(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Caller:
    """The caller that the ``Authorization`` header names.

    Raises:
        Unauthenticated: there is none, or its token is not valid.
    """
    known: Caller | None = getattr(request.state, "caller", None)  # requests with a body were looked at before it
    if known is not None:
        return known
    with platform_of(request).database.read() as session:
        return authenticate(session, credentials.credentials if credentials else None)


Anyone = Annotated[Caller, Depends(find_caller)]


def check_scope(caller: Caller, scope: str) -> Caller:
    """``caller`` if its token has the scope (admin has all).

    Raises:
        PermissionDenied: it has not.
    """
    if scope not in caller.scopes and ADMIN not in caller.scopes:
        raise PermissionDenied(f"this needs the scope {scope!r}; the token has {sorted(caller.scopes)}")
    return caller


def _reader(caller: Anyone) -> Caller:
    return check_scope(caller, READ)


def _writer(caller: Anyone) -> Caller:
    return check_scope(caller, WRITE)


def _admin(caller: Anyone) -> Caller:
    return check_scope(caller, ADMIN)


Reader = Annotated[Caller, Depends(_reader)]
Writer = Annotated[Caller, Depends(_writer)]
Admin = Annotated[Caller, Depends(_admin)]

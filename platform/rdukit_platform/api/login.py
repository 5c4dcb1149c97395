"""Routes by which a command logs in and out. ``console.login_pages`` has the browser's part."""

import math
from typing import Annotated, Literal

from fastapi import APIRouter, Request, status
from pydantic import BaseModel, Field

from rdukit_platform.api.audit_requests import address_of, entry_of
from rdukit_platform.api.dependencies import PUBLIC_ROUTE, Anyone, StrictJsonRoute, platform_of
from rdukit_platform.api.tenants import Me, show_me
from rdukit_platform.audit.service import Act, record
from rdukit_platform.db.models import TokenRow
from rdukit_platform.identity.devices import DEVICE_S, INTERVAL_S, begin_device, poll_device
from rdukit_platform.jobs.schemas import RequestBody
from rdukit_platform.tenants.service import Caller

router = APIRouter(prefix="/v1", tags=["login"], route_class=StrictJsonRoute)

#: Page on which the code is typed.
DEVICE_PAGE = "/console/device"


class DeviceRequest(RequestBody):
    """Body of ``POST /v1/login/device``."""

    #: Name of the token, such as the machine's name.
    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\x20-\x7e]+$")]


class DeviceAnswer(BaseModel):
    """A login that waits for its user."""

    #: Secret code that the command polls with.
    device_code: str
    #: Code that the user types.
    user_code: str
    #: Path of the page for it.
    path: str
    expires_in_s: float
    interval_s: float


class DevicePoll(RequestBody):
    """Body of ``POST /v1/login/token``."""

    device_code: Annotated[str, Field(min_length=1, max_length=128)]


class DeviceToken(BaseModel):
    """The user's answer, if there is one yet: the token, whose text is shown only once."""

    status: Literal["pending", "done"]
    token: str | None = None
    me: Me | None = None


class LoggedOut(BaseModel):
    """The token that ended with the request."""

    revoked: str


@router.post("/login/device", dependencies=[PUBLIC_ROUTE], status_code=status.HTTP_201_CREATED)
def begin(request: Request, body: DeviceRequest) -> DeviceAnswer:
    """Begin a command's login. Its user types the code into the console, and the command asks for its token."""
    platform = platform_of(request)
    platform.rates.check_login(address_of(request))
    with platform.database.write() as session:
        device_code, user_code = begin_device(session, body.name, address_of(request), platform.clock.now())
    return DeviceAnswer(
        device_code=device_code, user_code=user_code, path=DEVICE_PAGE, expires_in_s=DEVICE_S, interval_s=INTERVAL_S
    )


@router.post("/login/token", dependencies=[PUBLIC_ROUTE])
def poll(request: Request, body: DevicePoll) -> DeviceToken:
    """Request the token of a command's login: 403 if it was refused, 404 if it took too long."""
    platform = platform_of(request)
    now = platform.clock.now()
    with platform.database.write() as session:
        found = poll_device(session, body.device_code, now)
        if found is None:
            return DeviceToken(status="pending")
        caller, row, text = found
        ends = "never" if row.expires_at is None else f"in {math.ceil(row.expires_at - now)} s"
        detail = f"token for {row.name!r}, ends {ends}"
        record(session, entry_of(request, caller, Act.CREATE_TOKEN, row.id, row.tenant_id, detail))
        own = Caller(
            caller.tenant_id, caller.tenant_name, caller.scopes, row.id, row.expires_at, caller.user_id
        )  # fmt: skip
    return DeviceToken(status="done", token=text, me=show_me(platform, own))


@router.post("/logout")
def log_out(request: Request, caller: Anyone) -> LoggedOut:
    """End the token that asks. Any token may."""
    end_own_token(request, caller)
    return LoggedOut(revoked=caller.token_id)


def end_own_token(request: Request, caller: Caller) -> None:
    """Revoke the token or session of ``caller``, and record it."""
    platform = platform_of(request)
    now = platform.clock.now()
    with platform.database.write() as session:
        row = session.get_one(TokenRow, caller.token_id, with_for_update=True)
        row.revoked_at = row.revoked_at or now
        record(session, entry_of(request, caller, Act.LOGOUT, caller.token_id))

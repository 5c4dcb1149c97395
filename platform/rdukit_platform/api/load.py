"""Route that shows administrators the load of this gateway by token."""

from fastapi import APIRouter, Request
from pydantic import BaseModel

from rdukit_platform.api.dependencies import Admin, StrictJsonRoute, platform_of


class LoadOfToken(BaseModel):
    """Load by a token in the last one to two minutes; ``token`` is empty for strangers and others."""

    tenant: str
    token: str
    requests: int
    bytes_in: int
    bytes_out: int
    seconds: float


class GatewayLoad(BaseModel):
    """Recent load of this gateway, the heaviest tokens first."""

    load: list[LoadOfToken]


router = APIRouter(prefix="/v1", tags=["tenants"], route_class=StrictJsonRoute)


@router.get("/load")
def show_load(request: Request, caller: Admin) -> GatewayLoad:
    """Show which tokens load this gateway. Block one with ``POST /v1/tokens/ID/block``."""
    platform = platform_of(request)
    return GatewayLoad(
        load=[
            LoadOfToken(
                tenant=tenant, token=token, requests=load.requests, bytes_in=load.bytes_in, bytes_out=load.bytes_out,
                seconds=round(load.seconds, 3),
            )
            for (tenant, token), load in platform.load.heaviest(platform.clock.now())
        ]
    )  # fmt: skip

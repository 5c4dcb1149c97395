"""Routes of all gateways of a process, with their pages of documentation, and the permission of each route."""

from pathlib import Path
from typing import Any, Final

import orjson
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from rdukit.errors import NotFound
from rdukit_platform.api.artifacts import router as artifacts
from rdukit_platform.api.audit import router as audit
from rdukit_platform.api.catalog import router as catalog
from rdukit_platform.api.dependencies import PUBLIC_ROUTE
from rdukit_platform.api.endpoint_calls import router as endpoint_calls
from rdukit_platform.api.endpoints import router as endpoints
from rdukit_platform.api.entries import router as entries
from rdukit_platform.api.experts import router as experts
from rdukit_platform.api.jobs import router as jobs
from rdukit_platform.api.load import router as load
from rdukit_platform.api.login import router as login
from rdukit_platform.api.maintenance import router as maintenance
from rdukit_platform.api.members import router as members
from rdukit_platform.api.nodes import router as nodes
from rdukit_platform.api.runs import router as runs
from rdukit_platform.api.schedules import router as schedules
from rdukit_platform.api.sweeps import router as sweeps
from rdukit_platform.api.tenants import router as tenants
from rdukit_platform.api.uploads import router as uploads
from rdukit_platform.api.webhooks import router as webhooks
from rdukit_platform.console.access_pages import router as access
from rdukit_platform.console.catalog_pages import router as catalog_pages
from rdukit_platform.console.endpoint_form_pages import router as endpoint_form_pages
from rdukit_platform.console.endpoint_pages import router as endpoint_pages
from rdukit_platform.console.expert_pages import router as expert_pages
from rdukit_platform.console.job_actions import router as job_actions
from rdukit_platform.console.login_pages import router as login_pages
from rdukit_platform.console.member_pages import router as member_pages
from rdukit_platform.console.overview_pages import router as overview_pages
from rdukit_platform.console.playground_pages import router as playground_pages
from rdukit_platform.console.profile_pages import router as profile_pages
from rdukit_platform.console.routes import router as console
from rdukit_platform.console.run_form_pages import router as run_forms
from rdukit_platform.console.run_pages import router as run_pages
from rdukit_platform.console.schedule_pages import router as schedule_pages
from rdukit_platform.console.sweep_form_pages import router as sweep_forms
from rdukit_platform.console.sweep_pages import router as sweep_pages
from rdukit_platform.console.tenant_pages import router as tenant_pages
from rdukit_platform.console.webhook_pages import router as webhook_pages
from rdukit_platform.gateway.guard import check_query, enforce_permission
from rdukit_platform.gateway.health import router as health
from rdukit_platform.gateway.metrics import router as metrics
from rdukit_platform.gateway.middleware import ERRORS
from rdukit_platform.gateway.permissions import declared_permissions

_STATIC: Final = Path(__file__).with_name("static")
_FILES: Final = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css", "docs.css": "text/css"}

router = APIRouter(include_in_schema=False, dependencies=[PUBLIC_ROUTE])


@router.get("/")
def send_to_console() -> Response:
    """Redirect browsers from the gateway's address to the console."""
    return RedirectResponse("/console")


@router.get("/openapi.json")
def give_document(request: Request) -> Response:
    """Return the OpenAPI document of the routes, whose text is rendered once."""
    state = request.app.state
    state.document = getattr(state, "document", None) or orjson.dumps(request.app.openapi())
    return Response(state.document, media_type="application/json")


@router.get("/docs")
def show_page(request: Request) -> HTMLResponse:
    """Return the page; it reads ``/openapi.json``."""
    return get_swagger_ui_html(
        openapi_url="/openapi.json",
        title=str(request.app.title),
        swagger_js_url="/docs/static/swagger-ui-bundle.js",
        swagger_css_url="/docs/static/docs.css",
        swagger_favicon_url="/console/static/icon.svg",
    )


@router.get("/docs/static/{name}")
def give_file(name: str) -> FileResponse:
    """Return the page's script and style sheet."""
    if name not in _FILES:
        raise NotFound(f"there is no file {name!r} here; expected {', '.join(_FILES)}")
    return FileResponse(_STATIC / name, media_type=_FILES[name], headers={"Cache-Control": "public, max-age=86400"})


def bare_app(**more: Any) -> FastAPI:
    """Return an application without routes, which requires a permission from each added one."""
    return FastAPI(
        openapi_url=None, docs_url=None, redoc_url=None, responses=ERRORS,
        dependencies=[Depends(enforce_permission)], **more,
    )  # fmt: skip


def _include_all() -> FastAPI:
    app = bare_app()
    for each in (
        runs,
        jobs,
        sweeps,
        schedules,
        webhooks,
        artifacts,
        uploads,
        catalog,
        entries,
        experts,
        endpoints,
        nodes,
        maintenance,
        tenants,
        members,
        login,
        audit,
        load,
    ):
        app.include_router(each, dependencies=[Depends(check_query)])
    for each in (
        health,
        metrics,
        endpoint_calls,
        router,
        console,
        overview_pages,
        catalog_pages,
        run_pages,
        run_forms,
        sweep_forms,
        job_actions,
        profile_pages,
        sweep_pages,
        schedule_pages,
        expert_pages,
        endpoint_pages,
        endpoint_form_pages,
        playground_pages,
        access,
        login_pages,
        member_pages,
        tenant_pages,
        webhook_pages,
    ):
        app.include_router(each)
    return app


#: They depend on no platform, and are prepared once.
ROUTES: Final = _include_all().router.routes
PERMISSIONS: Final = declared_permissions(ROUTES)

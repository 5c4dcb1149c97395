"""The OpenAPI page at ``/docs``, from files of this package: it works without a network."""

from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse

from rdukit.errors import NotFound

_STATIC: Final = Path(__file__).with_name("static")
_FILES: Final = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}

router = APIRouter(include_in_schema=False)


@router.get("/docs")
def show_page(request: Request) -> HTMLResponse:
    """The page; it reads ``/openapi.json``."""
    return get_swagger_ui_html(
        openapi_url=str(request.app.openapi_url),
        title=str(request.app.title),
        swagger_js_url="/docs/static/swagger-ui-bundle.js",
        swagger_css_url="/docs/static/swagger-ui.css",
        swagger_favicon_url="/console/static/icon.svg",
    )


@router.get("/docs/static/{name}")
def give_file(name: str) -> FileResponse:
    """The page's script and style sheet."""
    if name not in _FILES:
        raise NotFound(f"there is no file {name!r} here; legal: {', '.join(_FILES)}")
    return FileResponse(_STATIC / name, media_type=_FILES[name], headers={"Cache-Control": "public, max-age=86400"})

"""Pages of ``sambatune_ui``. Each needs the user and the password of this start; only loopback names are answered.

Reports are files that others may have written: they are served in a sandbox of their own, or as downloads.

Source: sambatune reference 1.4 and 1.5 (user, password, comparison, export); ours otherwise.
"""

import csv
import io
import secrets
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import FileResponse, HTMLResponse, Response
from fastapi.security import HTTPBasic, HTTPBasicCredentials
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from rdukit.errors import InvalidArgument, RdukitError
from rdukit.units import format_date
from rdukit_runtime.sambatune.ui.comparison import compare_runs
from rdukit_runtime.sambatune.ui.runs import TuneRun, find_run, list_runs

USER: Final = "sambatune"
#: Largest number of runs that are compared at once.
MOST_COMPARED: Final = 8
_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}  # fmt: skip
#: A report's script works, but cannot reach this server's pages.
_SANDBOX: Final[Mapping[str, str]] = {**_HEADERS, "Content-Security-Policy": "sandbox allow-scripts"}
_HOSTS: Final = ["127.0.0.1", "localhost", "[::1]"]


def make_app(root: Path, password: str) -> FastAPI:
    """Return the application that shows the runs below ``root``."""
    environment = Environment(
        loader=PackageLoader("rdukit_runtime.sambatune.ui"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["date"] = format_date
    basic = HTTPBasic(realm="sambatune_ui")

    def check(given: Annotated[HTTPBasicCredentials, Depends(basic)]) -> None:
        is_user = secrets.compare_digest(given.username.encode(), USER.encode())
        is_known = secrets.compare_digest(given.password.encode(), password.encode())
        if not (is_user and is_known):
            raise HTTPException(401, "wrong user or password", {"WWW-Authenticate": 'Basic realm="sambatune_ui"'})

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(check)])
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS)

    def page(template: str, **values: object) -> HTMLResponse:
        return HTMLResponse(environment.get_template(template).render(values), headers=dict(_HEADERS))

    @app.exception_handler(RdukitError)
    def refuse(_: Request, error: RdukitError) -> HTMLResponse:
        response = page("message.html", title="Not possible", message=error.message)
        response.status_code = error.http_status
        return response

    @app.get("/")
    def index() -> HTMLResponse:
        return page("runs.html", title="Runs", runs=list_runs(root), root=str(root))

    @app.get("/style.css")
    def style() -> Response:
        text = files("rdukit_runtime.report").joinpath("templates", "report.css").read_text()
        return Response(text, media_type="text/css", headers=dict(_HEADERS))

    @app.get("/runs/{name}")
    def show(name: str) -> HTMLResponse:
        run = find_run(root, name)
        tables = {
            "Host-device breakdown": run.table("reports/snprof/summary.csv"),
            "Sections": run.table("reports/section_report.csv"),
            "Stages (projected)": run.table("reports/stage_report.csv"),
        }
        pages = [path for path in run.files() if path.endswith(".html")]
        return page("run.html", title=run.name, run=run, tables=tables, pages=pages)

    @app.get("/runs/{name}/files/{path:path}")
    def file(name: str, path: str) -> FileResponse:
        found = find_run(root, name).file(path)
        if found.suffix == ".html":
            return FileResponse(found, media_type="text/html; charset=utf-8", headers=dict(_SANDBOX))
        return FileResponse(found, media_type="application/octet-stream", filename=found.name, headers=dict(_HEADERS))

    @app.get("/compare")
    def compare(run: Annotated[list[str], Query(default_factory=list)]) -> HTMLResponse:
        runs = _chosen(root, run)
        return page("compare_runs.html", title="Comparison", runs=runs, tables=compare_runs(runs))

    @app.get("/compare.csv")
    def export(run: Annotated[list[str], Query(default_factory=list)]) -> Response:
        runs = _chosen(root, run)
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(["part", "what", *(each.name for each in runs)])
        for table in compare_runs(runs):
            writer.writerows([_plain(table.title), _plain(name), *map(_plain, cells)] for name, cells in table.rows)
        headers = {**_HEADERS, "Content-Disposition": 'attachment; filename="comparison.csv"'}
        return Response(text.getvalue(), media_type="text/csv", headers=headers)

    return app


def _plain(text: str) -> str:
    """Return a cell that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in {"=", "+", "-", "@", "\t", "\r"} else text


def _chosen(root: Path, names: list[str]) -> list[TuneRun]:
    """Return the runs to compare.

    Raises:
        InvalidArgument: too few or too many runs are named. NotFound: the run does not exist.
    """
    if not 2 <= len(names) <= MOST_COMPARED:
        raise InvalidArgument(
            f"{len(names)} runs are selected; expected 2 to {MOST_COMPARED}: select them on the first page"
        )
    return [find_run(root, name) for name in names]

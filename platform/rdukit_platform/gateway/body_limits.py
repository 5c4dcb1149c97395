"""Longest bodies of the gateway's routes (pure): only as long as a route needs, for every caller.

Other routes accept ``PLAIN_BYTES``. The settings bound them all.
"""

from collections.abc import Mapping
from typing import Final

from starlette.routing import compile_path

from rdukit.settings import Setting
from rdukit_platform.settings import MAX_BODY_BYTES, MAX_UPLOAD_BYTES

#: Bodies with a few names, texts and numbers; forms of the console.
PLAIN_BYTES: Final = 64 << 10
#: A job with its parameters; pages show 200 jobs.
JOB_BYTES: Final = 256 << 10
#: A stranger's name, code or token: of routes without a token.
STRANGERS_BYTES: Final = 4 << 10

#: Method and path, as ``gateway.routes`` has them → bytes, or the setting that says them.
BODY_BYTES: Final[Mapping[str, int | Setting[int]]] = {
    "POST /v1/login/device": STRANGERS_BYTES,
    "POST /v1/login/token": STRANGERS_BYTES,
    "POST /console/login": STRANGERS_BYTES,
    "POST /console/logout": STRANGERS_BYTES,
    "POST /v1/jobs": JOB_BYTES,
    "POST /v1/jobs/check": JOB_BYTES,
    "POST /v1/jobs/{job_id}/clone": JOB_BYTES,
    "POST /v1/jobs/batch": MAX_BODY_BYTES,
    "POST /v1/pipelines": MAX_BODY_BYTES,
    "POST /v1/schedules": MAX_BODY_BYTES,
    "POST /v1/sweeps": MAX_BODY_BYTES,
    "POST /v1/uploads": MAX_BODY_BYTES,
    "PUT /v1/uploads/{upload_id}/files/{number}": MAX_BODY_BYTES,
    "PUT /v1/uploads/{upload_id}/files": MAX_BODY_BYTES,
    "POST /v1/endpoints/{name}/{path:path}": MAX_BODY_BYTES,
    "POST /v1/artifacts": MAX_UPLOAD_BYTES,
    "POST /v1/boxes": MAX_UPLOAD_BYTES,
}
_TEMPLATES: Final = [
    (route.partition(" ")[0], compile_path(route.partition(" ")[2])[0], bound)
    for route, bound in BODY_BYTES.items()
    if "{" in route
]


def bound_of(method: str, path: str) -> int | Setting[int]:
    """Return the longest body of a request, or the setting that has it."""
    route = f"{method} {path.rstrip('/')}"
    if route in BODY_BYTES:
        return BODY_BYTES[route]
    fitting = (bound for at, pattern, bound in _TEMPLATES if at == method and pattern.match(path))
    return next(fitting, PLAIN_BYTES)

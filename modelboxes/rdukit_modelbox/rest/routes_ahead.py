"""Routes built before their box is known, because building takes longer than a box's start.

A fork server builds them once. Each of its forks binds them to its only box.
"""

from typing import TYPE_CHECKING, Any, cast

from fastapi import FastAPI

from rdukit.http.routes_ahead import answer_nobody
from rdukit_modelbox.rest.app import make_app
from rdukit_modelbox.server.service import BoxService
from rdukit_serving.access import Access
from rdukit_serving.rest.openapi import inference_paths
from rdukit_serving.text.rest import make_text_router

if TYPE_CHECKING:
    from rdukit_serving.models.served import ServedModels


class RoutesAhead:
    """The application of a box that requires no token."""

    def __init__(self, example: BoxService) -> None:
        """Build the application; ``example`` is its box until it is bound."""
        self._service, self._models = _Forward(example), _Forward(example.models)
        self._app = make_app(
            cast("BoxService", self._service),
            [make_text_router(cast("ServedModels", self._models), Access.from_file(""))],
            inference_paths(),
        )
        self._app.middleware_stack = self._app.build_middleware_stack()

    def bind(self, service: BoxService) -> FastAPI:
        """Bind the application to ``service``, and return it."""
        self._service.bind(service)
        self._models.bind(service.models)
        self._app.title, self._app.description = service.box.title, service.box.description
        return self._app


class _Forward:
    """Proxy for an object that is exchanged later."""

    def __init__(self, target: object) -> None:
        self._target = target

    def bind(self, target: object) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


#: Routes of this process, if it was forked from one that built them.
_AHEAD: list[RoutesAhead] = []


async def build_routes_ahead(example: BoxService) -> None:
    """Build the routes of the boxes that will be forked from this process."""
    _AHEAD[:] = [ahead := RoutesAhead(example)]
    await answer_nobody(ahead.bind(example))


def find_routes_ahead() -> RoutesAhead | None:
    """Return the routes that were built, if any were."""
    return _AHEAD[0] if _AHEAD else None

"""``rdukit serve``: a PEF by itself behind the inference protocol, without a ModelBox."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rdukit.errors import InvalidArgument, NotFound
from rdukit.settings import home_folder
from rdukit_serving.access import Access

if TYPE_CHECKING:
    from rdukit_serving.rest.routes import Application
    from rdukit_serving.rpc.server import AddService

PORT: Final = click.IntRange(0, 65535)
_PATH: Final = click.Path(path_type=Path)


@click.command()
@click.argument("pef", type=_PATH)
@click.option("--checkpoint", type=_PATH, help="Its parameters: a safetensors file, or a folder that train made.")
@click.option("--name", help="Name of the model in requests [default: the PEF's file name].")
@click.option("--max-batch-size", type=click.IntRange(1), help="Most rows of one call [default: the PEF's batch].")
@click.option("--rest-port", type=PORT, default=8000, show_default=True, help="REST port; 0 takes a free one.")
@click.option("--grpc-port", type=PORT, default=8001, show_default=True, help="gRPC port; 0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind.")
@click.option("--socket-folder", type=_PATH, help="Private folder of sockets, instead of ports.")
@click.option("--announce", type=_PATH, help="File to write the addresses to when ready.")
def serve(
    pef: Path,
    checkpoint: Path | None,
    name: str | None,
    max_batch_size: int | None,
    rest_port: int,
    grpc_port: int,
    host: str,
    socket_folder: Path | None,
    announce: Path | None,
) -> None:
    """Serve PEF by the Open Inference Protocol over REST and gRPC, and texts by OpenAI's routes.

    Ctrl-C, SIGTERM or the end of the parent process stops it.

    Example: rdukit serve mlp.pef --checkpoint mlp.safetensors
    """
    from rdukit_serving import server

    for path in (pef, checkpoint):
        if path is not None and not path.exists():
            raise NotFound(f"there is no {path}")
    model = name or pef.stem

    def announce_ready(rest: str, grpc: str, kernels: str) -> None:
        if announce is None:
            click.echo(f"kernels: {kernels}", err=True)
            click.echo(f"serving {model}: {rest}/v2/models/{model}, gRPC {grpc}; Ctrl-C stops it", err=True)

    options = server.ServerOptions(host, rest_port, grpc_port, socket_folder, announce, on_ready=announce_ready)
    server.serve(options, partial(PefService, model, pef, checkpoint, max_batch_size))


class PefService:
    """PEF as the server sees it. Belongs to one event loop."""

    def __init__(self, name: str, pef: Path, checkpoint: Path | None, max_batch_size: int | None = None) -> None:
        from rdukit_serving.models.served import ServedModels

        self.name = name
        self._files = pef, checkpoint
        self._is_closing = False
        serving = {} if max_batch_size is None else {"max_batch_size": max_batch_size}
        self.models = ServedModels(name, serving, home_folder() / "served" / name, lambda: None, _refuse_path)

    async def load(self) -> None:
        """Load the PEF.

        Raises:
            RdukitError: it cannot be loaded.
        """
        await self.models.start(*self._files)

    def takes_requests(self) -> bool:
        """Return whether the server is not stopping."""
        return not self._is_closing

    async def why_not_ready(self) -> str:
        """Return why an inference would not be answered now; empty if one was."""
        return "the server is stopping" if self._is_closing else await self.models.repository.why_not_ready()

    def make_routes(self, access: Access) -> "Application":
        """Build OpenAI's routes and ``/metrics``."""
        from fastapi import FastAPI
        from fastapi.responses import Response
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

        from rdukit.errors import MalformedRequest
        from rdukit_serving.models.metrics import ServingCollector
        from rdukit_serving.rest.openapi import inference_paths
        from rdukit_serving.rest.web import BodyLimits, add_error_handlers
        from rdukit_serving.text.rest import make_text_router

        registry = CollectorRegistry()
        registry.register(ServingCollector(self.models.repository))
        app = FastAPI(title=self.name, docs_url=None, redoc_url=None)
        app.include_router(make_text_router(self.models, access))

        @app.get("/metrics", response_class=Response)
        async def metrics() -> Response:
            """Return metrics as Prometheus text."""
            return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

        schema = app.openapi()
        schema["paths"] |= inference_paths()
        add_error_handlers(app, lambda errors, _: MalformedRequest(f"the request is malformed: {errors[:3]}"))
        app.add_middleware(BodyLimits)
        return app

    def grpc_services(self) -> "Sequence[AddService]":
        """Return none: there is the inference protocol only."""
        return ()

    async def close(self) -> None:
        """End the device process."""
        self._is_closing = True
        await self.models.close()


async def _refuse_path(text: str, what: str) -> Path:
    raise InvalidArgument(f"{what} {text!r}: this server serves one PEF; start another for another file")

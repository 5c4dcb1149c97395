"""``rdukit serve``: serve a PEF over the inference protocol, without a ModelBox."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rdukit.errors import InvalidArgument, NotFound
from rdukit.settings import home_folder
from rdukit_serving.access import Access
from rdukit_serving.models.prepare_folder import (
    BUILDS_KERNELS,
    PreparedModel,
    all_to_build,
    context_option,
    is_hub_folder,
    precision_option,
    prepare_folder,
)

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from rdukit_serving.experts.sizes import FoundBundle
    from rdukit_serving.models.served import ServedModels
    from rdukit_serving.rest.routes import Application
    from rdukit_serving.rpc.server import AddService

PORT: Final = click.IntRange(0, 65535)
_PATH: Final = click.Path(path_type=Path)


@click.command()
@click.argument("pef", metavar="[PEF|FOLDER]", type=_PATH, required=False)
@click.option("--bundle", type=_PATH, help="Bundle of experts to serve instead of PEF; rdukit bundle check checks one.")
@click.option("--mount", "mounts", multiple=True, type=_PATH, help="Another folder whose files the bundle may name.")
@click.option("--checkpoint", type=_PATH, help="Parameters: a safetensors file, or a folder that train wrote.")
@click.option("--draft-pef", type=_PATH, help="PEF of a smaller draft model for speculative decoding.")
@click.option("--draft-checkpoint", type=_PATH, help="Its parameters.")
@click.option("--name", help="Name of the model in requests [default: the PEF's file name, or a folder's model_type].")
@context_option
@precision_option
@click.option(
    "--max-batch-size", type=click.IntRange(1), help="Largest number of rows per call [default: the PEF's batch]."
)
@click.option("--rest-port", type=PORT, default=8000, show_default=True, help="REST port; 0: any free port.")
@click.option("--grpc-port", type=PORT, default=8001, show_default=True, help="gRPC port; 0: any free port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind.")
@click.option("--socket-folder", type=_PATH, help="Private folder for sockets, used instead of ports.")
@click.option("--announce", type=_PATH, help="File for the addresses, written when ready.")
def serve(
    pef: Path | None,
    bundle: Path | None,
    mounts: Sequence[Path],
    checkpoint: Path | None,
    draft_pef: Path | None,
    draft_checkpoint: Path | None,
    name: str | None,
    context: int | None,
    precision: str,
    max_batch_size: int | None,
    rest_port: int,
    grpc_port: int,
    host: str,
    socket_folder: Path | None,
    announce: Path | None,
) -> None:
    """Serve PEF over the Open Inference Protocol (REST, gRPC), and text models over OpenAI's routes.

    FOLDER is a Hugging Face folder, which is compiled at the first start. Ctrl-C, SIGTERM or the end of the parent
    process stops it.

    Example: rdukit serve mlp.pef --checkpoint mlp.safetensors

    Example: rdukit serve --bundle bundle.yaml --rest-port 8000
    """
    from rdukit_serving import server
    from rdukit_serving.device.client import draft_files

    for path in (pef, checkpoint, draft_pef, draft_checkpoint):
        if path is not None and not path.exists():
            raise NotFound(f"there is no {path}")
    of_one = (checkpoint, draft_pef, draft_checkpoint, name, max_batch_size)
    folders = [path for path in (pef, draft_checkpoint) if path is not None and is_hub_folder(path)]
    if not folders and (context is not None or precision != "auto"):
        raise click.UsageError("--context and --precision are only for a Hugging Face folder; a PEF has its own.")
    if (pef is None) is (bundle is None) or (bundle is not None and any(of_one)):
        raise click.UsageError("Pass PEF, or --bundle alone; the bundle's file has checkpoints, names and batches.")
    make_service: Callable[[], ServedFiles]
    made: list[PreparedModel] = []
    if bundle is None:
        assert pef is not None
        if pef in folders:
            made.append(ready := prepare_folder(pef, context, precision))
            name, pef, checkpoint = name or ready.name, ready.best_pef, checkpoint or Path(ready.checkpoint)
        if draft_checkpoint in folders:
            ready = prepare_folder(draft_checkpoint, context, precision)
            made += [] if draft_pef else [ready]
            draft_pef, draft_checkpoint = draft_pef or ready.best_pef, Path(ready.checkpoint)
        model = name or pef.stem
        make_service = partial(
            pef_service, model, pef, checkpoint, max_batch_size, draft_files(draft_pef, draft_checkpoint),
            all_to_build(*made),
        )  # fmt: skip
    else:
        from rdukit_serving.experts.bundle import load_bundle
        from rdukit_serving.experts.sizes import find_bundle

        found = find_bundle(load_bundle(bundle, mounts))
        found.require_fit()
        model, make_service = found.name, partial(bundle_service, found)

    def announce_ready(rest: str, grpc: str, kernels: str) -> None:
        if announce is None:
            click.echo(f"kernels: {kernels}", err=True)
            if all_to_build(*made):
                click.echo(BUILDS_KERNELS, err=True)
            where = f"{rest}/v1/models" if pef is None else f"{rest}/v2/models/{model}"
            click.echo(f"serving {model}: {where}, gRPC {grpc or 'off'}; Ctrl-C stops it", err=True)

    options = server.ServerOptions(host, rest_port, grpc_port, socket_folder, announce, on_ready=announce_ready)
    server.serve(options, make_service)


class ServedFiles:
    """Models without a box, as the server sees them. Belongs to one event loop."""

    def __init__(
        self, name: str, models: "ServedModels", load: Callable[[], Awaitable[None]],
        why_not_ready: Callable[[], Awaitable[str]], collectors: "Sequence[Collector]" = (),
    ) -> None:  # fmt: skip
        """``load``: loads the models that are served from the start. ``collectors``: further collectors of metrics."""
        self.name, self.models = name, models
        self._load, self._why_not_ready, self._collectors = load, why_not_ready, collectors
        self._is_closing = False

    async def load(self) -> None:
        """Load the models that are served from the start.

        Raises:
            RdukitError: a model cannot be loaded.
        """
        await self._load()

    def takes_requests(self) -> bool:
        """Return whether the server is not stopping."""
        return not self._is_closing

    async def why_not_ready(self) -> str:
        """Return why an inference would not be answered now; empty if one was."""
        return "the server is stopping" if self._is_closing else await self._why_not_ready()

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
        for collector in (ServingCollector(self.models), *self._collectors):
            registry.register(collector)
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
        """Return no services, since a box serves the inference protocol only."""
        return ()

    async def close(self) -> None:
        """End the device process."""
        self._is_closing = True
        await self.models.close()


def pef_service(
    name: str, pef: Path, checkpoint: Path | None, max_batch_size: int | None = None,
    draft: tuple[Path, Path] | None = None, to_build: Mapping[Path, Path] | None = None,
) -> ServedFiles:  # fmt: skip
    """Return a PEF as the server sees it, with the files of its draft. Call on the event loop.

    ``to_build``: PEF → path of the PEF with native kernels, for those that are built while the model is served.
    """
    from rdukit_serving.models.served import ServedModels

    serving = {} if max_batch_size is None else {"max_batch_size": max_batch_size}
    models = ServedModels(name, serving, home_folder() / "served" / name, lambda: None, _refuse_path)
    load = partial(models.start, pef, checkpoint, draft, to_build)
    return ServedFiles(name, models, load, models.repository.why_not_ready)


def bundle_service(found: "FoundBundle") -> ServedFiles:
    """Return a bundle of experts as the server sees it. Call on the event loop."""
    from rdukit_serving.experts.models import ExpertCollector, ExpertModels

    models = ExpertModels(found, home_folder() / "served" / found.name)
    return ServedFiles(found.name, models, models.load, models.why_not_ready, [ExpertCollector(models.pool)])


async def _refuse_path(text: str, what: str) -> Path:
    raise InvalidArgument(f"{what} {text!r}: this server serves one PEF; start another server for another file")

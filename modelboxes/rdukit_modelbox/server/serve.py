"""A ModelBox as a server process: its own service, and the inference protocol for its served model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rdukit.box.settings import BUNDLE, CHECKPOINT, PEF
from rdukit.errors import InvalidArgument
from rdukit.settings import resolve
from rdukit_modelbox.artifacts.mounts import Mounts
from rdukit_modelbox.artifacts.reference import is_remote
from rdukit_modelbox.server.service import BoxService
from rdukit_serving.access import Access
from rdukit_serving.device.client import draft_files
from rdukit_serving.models.served import ServedModels
from rdukit_serving.server import ServerOptions, serve
from rdukit_serving.settings import DRAFT_CHECKPOINT, DRAFT_PEF

if TYPE_CHECKING:
    from rdukit_serving.experts.models import ExpertModels
    from rdukit_serving.rest.routes import Application
    from rdukit_serving.rpc.server import AddService


@dataclass(frozen=True, slots=True)
class BoxOptions:
    """The box to run, and its served model; a PEF without parameters needs no checkpoint.

    A draft model makes the speculative tokens of the served model. ``model_name`` is its name in requests; "" for the
    box's. ``to_build``: PEF → path of the PEF with native kernels, for those that are built while it is served.
    """

    box_file: Path
    state: Path
    mounts: Sequence[Path] = ()
    pef: str | None = None
    checkpoint: str | None = None
    draft_pef: str | None = None
    draft_checkpoint: str | None = None
    model_name: str = ""
    to_build: Mapping[Path, Path] = field(default_factory=dict)


def serve_box(box: BoxOptions, server: ServerOptions) -> None:
    """Serve a box until it is stopped.

    Raises:
        InvalidArgument: the box's YAML is wrong, a mount is not a folder, or a port or socket is taken.
        RdukitError: the model to serve cannot be loaded.
    """
    serve(server, partial(ServedBox, box))


class ServedBox(BoxService):
    """The server's view of a box."""

    #: Experts of a bundle that is served instead of the box's model.
    _experts: "ExpertModels | None" = None

    def __init__(self, options: BoxOptions) -> None:
        self._options = options
        self._model_name = options.model_name
        super().__init__(options.box_file, options.state, options.mounts)
        if self._experts is not None:
            from rdukit_serving.experts.models import ExpertCollector

            self.metrics.registry.register(ExpertCollector(self._experts.pool))

    @property
    def name(self) -> str:
        """Return the name of the box."""
        return self.box.name

    async def load(self) -> None:
        """Load the PEF that options or settings name, or the experts of a bundle."""
        if self._experts is not None:
            await self._experts.load()
            return
        options = self._options
        texts = options.pef or resolve(PEF), options.checkpoint or resolve(CHECKPOINT)
        drafts = options.draft_pef or resolve(DRAFT_PEF), options.draft_checkpoint or resolve(DRAFT_CHECKPOINT)
        if texts[0]:
            pef, checkpoint, *draft = [await self._fetch(text) if text else None for text in (*texts, *drafts)]
            assert pef is not None
            await self.models.start(pef, checkpoint, draft_files(*draft), options.to_build)

    def make_routes(self, access: Access) -> "Application":
        """Build the control routes and OpenAI's."""
        # Imported here: inference does not need it, and it takes a third of a second.
        from rdukit_modelbox.rest.app import make_app
        from rdukit_modelbox.rest.routes_ahead import find_routes_ahead
        from rdukit_serving.rest.openapi import inference_paths
        from rdukit_serving.text.rest import make_text_router

        ahead = find_routes_ahead() if access.is_open else None
        if ahead is not None:
            return ahead.bind(self)
        return make_app(self, [make_text_router(self.models, access)], inference_paths())

    def _make_models(self, mounted: Mounts) -> ServedModels:
        file = resolve(BUNDLE)
        if not file or self._options.pef:
            return super()._make_models(mounted)
        if self._model_name:
            raise InvalidArgument("--name names one model; expected none with a bundle, whose file names its experts")
        from rdukit_serving.experts.bundle import load_bundle
        from rdukit_serving.experts.models import ExpertModels
        from rdukit_serving.experts.sizes import find_bundle

        found = find_bundle(load_bundle(Path(file), self._options.mounts))
        self._experts = ExpertModels(found, self._options.state / "experts")
        return self._experts

    def grpc_services(self) -> "Sequence[AddService]":
        """Return the function that adds the box's own service."""
        from rdukit_modelbox.server.grpc_server import add_model_box

        return [partial(add_model_box, self)]

    async def _fetch(self, text: str) -> Path:
        """Return the file at a path or URI: unlike requests, the starter of a box may name any path."""
        return await self.models.resolve_path(text, "served file") if is_remote(text) else Path(text)

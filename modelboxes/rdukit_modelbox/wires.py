"""Both wires of a box put together."""

from functools import partial
from typing import Any

from rdukit_modelbox.grpc_server import AddService
from rdukit_modelbox.service import BoxService
from rdukit_modelbox.serving.access import Access
from rdukit_modelbox.serving.access_log import AccessLog
from rdukit_modelbox.serving.box_app import Application, BoxApp
from rdukit_modelbox.serving.oip_grpc import SERVICE_NAME, OpenInferenceServicer
from rdukit_modelbox.serving.oip_rest import OpenInferenceApp


def make_box_app(service: BoxService, access: Access, access_log: AccessLog) -> BoxApp:
    """Everything that the box answers over REST."""
    inference = OpenInferenceApp(service.models, access, access_log, _why_not_ready(service))
    return BoxApp(inference, partial(_make_control, service, access), access)


def _make_control(service: BoxService, access: Access) -> Application:
    # A third of a second of imports that no inference needs.
    from rdukit_modelbox.rest.app import make_app
    from rdukit_modelbox.serving.oip_openapi import inference_paths
    from rdukit_modelbox.serving.text.openai_rest import make_openai_router

    return make_app(service, [make_openai_router(service.models, access)], inference_paths())


def more_services(service: BoxService, access_log: AccessLog) -> list[AddService]:
    """What the gRPC server has beside the box's own service."""

    def add_open_inference(server: Any) -> str:
        servicer = OpenInferenceServicer(service.models, access_log, _why_not_ready(service))
        server.add_generic_rpc_handlers((servicer.handler(),))
        return SERVICE_NAME

    return [add_open_inference]


def _why_not_ready(service: BoxService) -> Any:
    async def why_not_ready() -> str:
        return (await service.readiness()).reason

    return why_not_ready

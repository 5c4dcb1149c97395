"""Both wires of a box put together."""

from functools import partial
from typing import Any

from rdukit_modelbox.grpc_server import add_model_box
from rdukit_modelbox.service import BoxService
from rdukit_serving.access import Access, AccessLog
from rdukit_serving.rest.routes import Application, BoxApp, OpenInferenceApp
from rdukit_serving.rpc.server import AddService
from rdukit_serving.rpc.service import SERVICE_NAME, OpenInferenceServicer


def make_box_app(service: BoxService, access: Access, access_log: AccessLog) -> BoxApp:
    """Everything that the box answers over REST."""
    inference = OpenInferenceApp(service.models, access, access_log, service.why_not_ready)
    return BoxApp(inference, partial(_make_control, service, access), access)


def _make_control(service: BoxService, access: Access) -> Application:
    # A third of a second of imports that no inference needs.
    from rdukit_modelbox.rest.app import make_app
    from rdukit_serving.rest.openapi import inference_paths
    from rdukit_serving.text.openai_rest import make_openai_router

    return make_app(service, [make_openai_router(service.models, access)], inference_paths())


def grpc_services(service: BoxService, access_log: AccessLog) -> list[AddService]:
    """Return what adds the box's own service and the inference protocol to a gRPC server."""

    def add_open_inference(server: Any) -> str:
        servicer = OpenInferenceServicer(service.models, access_log, service.why_not_ready)
        server.add_generic_rpc_handlers((servicer.handler(),))
        return SERVICE_NAME

    return [partial(add_model_box, service), add_open_inference]

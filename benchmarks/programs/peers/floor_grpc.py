"""The floors of gRPC in Python: the messages and the model. Arguments: port, asyncio or threads."""

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import grpc
import numpy as np
import serving_model

from rdukit.proto import inference_pb2 as pb

MODEL = serving_model.make_model()


def infer(request: Any, context: Any) -> Any:
    """Return the logits of the first input."""
    row = np.frombuffer(request.raw_input_contents[0], "<f4")
    logits = np.asarray(serving_model.run_rows(MODEL, row), "<f4")
    response = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
    response.outputs.add(name=serving_model.OUTPUT, datatype="FP32", shape=logits.shape)
    response.raw_output_contents.append(logits.tobytes())
    return response


async def infer_later(request: Any, context: Any) -> Any:
    """Return the same for the event loop."""
    return infer(request, context)


def serve_in(server: Any, behavior: Any) -> Any:
    """Return the server with the one method."""
    method = grpc.unary_unary_rpc_method_handler(
        behavior, pb.ModelInferRequest.FromString, pb.ModelInferResponse.SerializeToString
    )
    service, name = serving_model.GRPC_METHOD[1:].split("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: method}),))
    server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
    return server


async def main() -> None:
    server = serve_in(grpc.aio.server(), infer_later)
    await server.start()
    await server.wait_for_termination()


if sys.argv[2] == "asyncio":
    asyncio.run(main())
else:
    threaded = serve_in(grpc.server(ThreadPoolExecutor(8)), infer)
    threaded.start()
    threaded.wait_for_termination()

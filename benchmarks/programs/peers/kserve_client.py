"""KServe's own client against a box, over both wires. Arguments: REST URL, gRPC address. Prints the shapes as JSON."""

import asyncio
import json
import sys
from typing import Any

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig


def make_request(name: str = "rows") -> InferRequest:
    rows = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    tensor = InferInput(name, [3, 64], "FP32")
    tensor.set_data_from_numpy(rows, binary_data=True)
    return InferRequest("mlp", [tensor], request_id="7")


async def main(url: str, address: str) -> dict[str, Any]:
    rest = InferenceRESTClient(RESTConfig(protocol="v2"))
    assert await rest.is_server_ready(url)
    assert await rest.is_model_ready(url, "mlp")
    by_rest = await rest.infer(url, make_request(), model_name="mlp")
    is_refused = False
    try:
        await rest.infer(url, make_request("wrong"), model_name="mlp")
    except Exception:  # noqa: BLE001 whatever class the client has for it
        is_refused = True
    await rest.close()
    client = InferenceGRPCClient(address, timeout=10)
    assert await client.is_server_ready()
    by_grpc = await client.infer(make_request())
    await client.close()
    np.testing.assert_allclose(by_rest.outputs[0].as_numpy(), by_grpc.outputs[0].as_numpy(), rtol=1e-6)
    return {
        "rest": list(by_rest.outputs[0].shape), "grpc": list(by_grpc.outputs[0].shape), "refused": is_refused,
    }  # fmt: skip


print(json.dumps(asyncio.run(main(*sys.argv[1:3]))))

"""Ray Serve. Arguments: REST port, gRPC port (0: none), 1 for batches of up to 32 after 2 ms."""

import os
import sys
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import ray
import serving_model
from ray import serve

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REST_PORT, GRPC_PORT, IS_BATCHED = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1"
passed = {name: os.environ[name] for name in ("PEER_PARAMETERS", "SERVING_BENCHMARK", "OMP_NUM_THREADS")}
ray.init(
    num_cpus=2, include_dashboard=False, logging_level="ERROR", _node_ip_address="127.0.0.1",
    runtime_env={"env_vars": {"PYTHONPATH": SOURCE, **passed}}, _temp_dir=os.environ["PEER_FOLDER"],
)  # fmt: skip
add_service = "tritonclient.grpc.service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server"
serve.start(
    http_options={"host": "127.0.0.1", "port": REST_PORT},
    grpc_options={"port": GRPC_PORT, "grpc_servicer_functions": [add_service]} if GRPC_PORT else None,
)


@serve.deployment(num_replicas=1, max_ongoing_requests=100, logging_config={"enable_access_log": False})
class Mlp:
    """A replica of the model."""

    def __init__(self) -> None:
        self.model = serving_model.make_model()

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.002)
    async def run_batch(self, rows: Any) -> Any:
        return serving_model.run_rows(self.model, rows)

    async def __call__(self, request: Any) -> Any:
        row = (await request.json())["inputs"][0]["data"]
        if IS_BATCHED:
            return serving_model.reply([await self.run_batch(row)])
        return serving_model.reply(serving_model.run_rows(self.model, [row]))

    def ModelInfer(self, request: Any) -> Any:
        import numpy as np
        from tritonclient.grpc import service_pb2

        row = np.frombuffer(request.raw_input_contents[0], "<f4")
        logits = np.asarray(serving_model.run_rows(self.model, row), "<f4")
        response = service_pb2.ModelInferResponse(model_name=serving_model.NAME)
        output = response.outputs.add()
        output.name, output.datatype = serving_model.OUTPUT, "FP32"
        output.shape.extend(logits.shape)
        response.raw_output_contents.append(logits.tobytes())
        return response


serve.run(Mlp.bind(), route_prefix=serving_model.INFER_PATH, name="default")
while True:
    time.sleep(3600)

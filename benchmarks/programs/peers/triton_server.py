"""A real Triton, from the wheel nvidia-pytriton. Arguments: REST, gRPC and metrics port, microseconds a batch waits."""

import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import numpy as np
import serving_model
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

REST_PORT, GRPC_PORT, METRICS_PORT, DELAY_US = (int(argument) for argument in sys.argv[1:5])
MODEL = serving_model.make_model()


@batch
def infer(rows: Any) -> Any:
    return [np.asarray(serving_model.run_rows(MODEL, rows), np.float32)]


config = TritonConfig(
    http_port=REST_PORT, grpc_port=GRPC_PORT, metrics_port=METRICS_PORT, http_address="127.0.0.1",
    grpc_address="127.0.0.1",
)  # fmt: skip
batcher = DynamicBatcher(max_queue_delay_microseconds=DELAY_US)
with Triton(config=config) as triton:
    triton.bind(
        model_name=serving_model.NAME, infer_func=infer,
        inputs=[Tensor(name=serving_model.INPUT, dtype=np.float32, shape=(serving_model.FEATURES,))],
        outputs=[Tensor(name=serving_model.OUTPUT, dtype=np.float32, shape=(serving_model.CLASSES,))],
        config=ModelConfig(max_batch_size=32, batching=True, batcher=batcher),
    )  # fmt: skip
    triton.serve()

"""KServe's Python server, its latency and access logs off. The options are KServe's own: it reads them on import."""

import logging
import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import numpy as np
import serving_model
from kserve import InferOutput, InferResponse, Model, ModelServer


class Mlp(Model):
    """The model behind KServe's values."""

    def __init__(self) -> None:
        super().__init__(serving_model.NAME)
        self.model = serving_model.make_model()
        self.ready = True

    def load(self) -> bool:
        return True

    async def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        rows = np.array(payload.inputs[0].as_numpy(), np.float32)
        logits = np.asarray(serving_model.run_rows(self.model, rows), np.float32)
        output = InferOutput(serving_model.OUTPUT, list(logits.shape), "FP32")
        output.set_data_from_numpy(logits, binary_data=payload.from_grpc)
        return InferResponse(payload.id, self.name, infer_outputs=[output])


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    ModelServer().start([Mlp()])

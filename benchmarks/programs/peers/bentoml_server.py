"""BentoML: ``Plain`` in its usual form with the access log off, ``Batched`` with its adaptive batching."""

import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import bentoml
import serving_model

QUIET = {"access": {"enabled": False}}


@bentoml.service(workers=1, traffic={"timeout": 30}, logging=QUIET)
class Plain:
    """A call, one row."""

    def __init__(self) -> None:
        self.model = serving_model.make_model()

    @bentoml.api(route=serving_model.INFER_PATH)
    async def infer(self, inputs: list[dict], id: str = "") -> dict:
        return serving_model.reply(serving_model.run_rows(self.model, [inputs[0]["data"]]))


@bentoml.service(workers=1, traffic={"timeout": 30}, logging=QUIET)
class Batched:
    """Up to 32 rows a call."""

    def __init__(self) -> None:
        self.model = serving_model.make_model()

    @bentoml.api(route=serving_model.INFER_PATH, batchable=True, max_batch_size=32, max_latency_ms=1000)
    def infer(self, inputs: list[dict]) -> list[dict]:
        rows: Any = serving_model.run_rows(self.model, [tensor["data"] for tensor in inputs])
        return [serving_model.reply([row]) for row in rows]

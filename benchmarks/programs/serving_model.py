"""The model that every server of ``bench_serving`` serves, and the one request that all of them get.

An MLP 64 → 256 → 10 with the parameters of the box ``mlp``: the same state, the same names of tensors, so that the same
bytes go to all. Imported in the peers' environments too: torch and numpy only, and each where it is needed.
"""

import json
import os
import struct
from typing import Any

FEATURES, HIDDEN, CLASSES = 64, 256, 10
NAME, INPUT, OUTPUT = "mlp", "rows", "logits"
INFER_PATH = f"/v2/models/{NAME}/infer"
GRPC_METHOD = "/inference.GRPCInferenceService/ModelInfer"


def make_model() -> Any:
    """Return the network on one thread, in eval mode; its parameters from the file that ``PEER_PARAMETERS`` names."""
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, CLASSES))
    model.load_state_dict(torch.load(os.environ["PEER_PARAMETERS"], weights_only=True))
    return model.eval()


def sample(count: int = FEATURES) -> list[float]:
    """Return a row that is the same everywhere, short in JSON."""
    return [round(((index * 37) % 64) / 64.0 - 0.5, 6) for index in range(count)]


def run_rows(model: Any, rows: Any) -> list[list[float]]:
    """Rows [N][64], lists or an array, to logits [N][10]."""
    import numpy as np
    import torch

    with torch.inference_mode():
        answer: list[list[float]] = model(torch.from_numpy(np.array(rows, np.float32).reshape(-1, FEATURES))).tolist()
    return answer


def reply(rows: list[list[float]]) -> dict[str, Any]:
    """Return the answer of servers that do not write it themselves."""
    output = {
        "name": OUTPUT, "datatype": "FP32", "shape": [len(rows), CLASSES],
        "data": [value for row in rows for value in row],
    }  # fmt: skip
    return {"model_name": NAME, "model_version": "1", "outputs": [output]}


def rest_body() -> bytes:
    """Return a row as the protocol's JSON."""
    tensor = {"name": INPUT, "shape": [1, FEATURES], "datatype": "FP32", "data": sample()}
    return json.dumps({"id": "a", "inputs": [tensor]}).encode()


def raw_row(count: int = FEATURES) -> bytes:
    """Return the row as little-endian float32."""
    return struct.pack(f"<{count}f", *sample(count))

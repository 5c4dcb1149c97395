"""A box that serves a small classifier: its process, callers that keep asking, and requests byte by byte."""

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import torch
from safetensors.torch import save_file

from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import ProcessBox
from rdukit_zoo.mlp import MultiLayerPerceptron
from support.boxes import children_of, run_verb
from support.helpers import wait_until
from support.platform.warm import start_box

BATCH: Final = 8
TOKEN: Final = "sesame"
ROW: Final = [round(((i * 37) % 64) / 64 - 0.5, 6) for i in range(64)]
HEADERS: Final = {"authorization": f"Bearer {TOKEN}"}


class Served:
    """The running box, and what it should answer."""

    def __init__(self, box: ProcessBox, pef: Path, folder: Path, model: MultiLayerPerceptron) -> None:
        self.box, self.pef, self.folder, self.model = box, pef, folder, model
        self.http = httpx.Client(base_url=box.rest_url, headers=dict(HEADERS), trust_env=False, timeout=60)
        self.address = box.rest_url.removeprefix("http://")

    def expected(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        with torch.inference_mode():
            answer: np.ndarray[Any, Any] = self.model(torch.from_numpy(rows)).numpy()
        return answer

    def infer(self, body: object, path: str = "/v2/models/mlp/infer") -> httpx.Response:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.http.post(path, content=data, headers={"content-type": "application/json"})

    def pid(self) -> int:
        """Process id of the device process that answers."""
        return max(children_of(self.box.pid))

    def metric(self, name: str) -> float:
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))


@contextlib.contextmanager
def serving_mlp(folder: Path) -> Iterator[Served]:
    """Serve the model ``mlp`` from files in ``folder``, in portable kernels. Yields the box, which then ends."""
    pef = run_verb("mlp", "compile", folder, purpose="serve", batch_size=BATCH).outputs["pef"]
    torch.manual_seed(0)
    model = MultiLayerPerceptron().eval()
    save_file(dict(model.state_dict()), folder / "mlp.safetensors")
    (folder / "tokens").write_text(f"# callers\n{TOKEN}\n")
    environment = {
        "RDUKIT_BOX_PEF": str(pef), "RDUKIT_BOX_CHECKPOINT": str(folder / "mlp.safetensors"),
        "RDUKIT_BOX_TOKENS": str(folder / "tokens"), "RDUKIT_BOX_ACCESS_LOG": str(folder / "access.log"),
        "RDUKIT_TELEMETRY_SPAN_FILE": str(folder / "spans.jsonl"),
        "RDUKIT_BOX_INFER_TIMEOUT_S": "2", "RDUKIT_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    box = start_box(BoxSpec("mlp", folder / "state", [folder], environment))
    found = Served(box, Path(pef), folder, model)
    try:
        yield found
    finally:
        found.http.close()
        box.stop()


def request(**changes: Any) -> dict[str, Any]:
    """A request of one row, with changes of its tensor; None: without that key."""
    tensor = {"name": "rows", "shape": [1, 64], "datatype": "FP32", "data": ROW, **changes}
    return {"id": "7", "inputs": [{key: value for key, value in tensor.items() if value is not None}]}


class Asking:
    """Callers in threads that keep asking until told to stop; what they got."""

    def __init__(self, served: Served, callers: int = 4) -> None:
        self.statuses: list[int] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(served,)) for _ in range(callers)]

    def _run(self, served: Served) -> None:
        with httpx.Client(base_url=served.box.rest_url, headers=dict(HEADERS), trust_env=False, timeout=60) as client:
            while not self._stop.is_set():
                self.statuses.append(client.post("/v2/models/mlp/infer", json=request()).status_code)

    def __enter__(self) -> "Asking":
        for thread in self._threads:
            thread.start()
        wait_until(lambda: bool(self.statuses), what="the first answer")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def raw(path: str = "/v2/models/mlp/infer", body: bytes | None = None, version: str = "1.1", more: str = "") -> bytes:
    """A request's bytes."""
    content = json.dumps(request()).encode() if body is None else body
    head = f"POST {path} HTTP/{version}\r\nhost: box\r\nauthorization: Bearer {TOKEN}\r\n{more}"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def exchange(served: Served, *pieces: bytes) -> list[int]:
    """Send pieces one by one on a connection of their own, say that there are no more; the answers' status codes."""
    host, _, port = served.address.partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(0.05)
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: box\r\nconnection: close\r\n\r\n")
        received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]

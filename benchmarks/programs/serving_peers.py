"""What is measured: our box, the peers and the floors, each as a command to start. A peer more is one entry here.

The peers' environments lie in one folder (``--peers-home``); docs/bench.md says how they are made.
"""

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import serving_model

HERE = Path(__file__).resolve().parent
PEERS = HERE / "peers"
OURS = "rdukit"
REST_FLOOR, GRPC_FLOOR = "floor: uvloop+httptools+model", "floor: grpc.aio+model"
TOKEN = "sesame"


@dataclass(frozen=True, slots=True)
class Started:
    """A server's command, and where it will listen."""

    command: Sequence[str]
    rest_port: int | None
    grpc_port: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Files:
    """Model that the servers serve: the box's PEF and checkpoint, and a folder of this start's own."""

    pef: Path
    checkpoint: Path
    folder: Path


@dataclass(frozen=True, slots=True)
class Server:
    """A row of the table. ``environment`` is the peers' environment that it needs, empty for the project's own."""

    name: str
    environment: str
    start: Callable[[Path, Files], Started]
    headers: Mapping[str, str] = field(default_factory=dict)
    is_peer: bool = True


def free_ports(count: int) -> list[int]:
    """Ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def why_missing(server: Server, home: Path | None) -> str:
    """Empty if it can be started here."""
    if not server.environment:
        return ""
    if home is None:
        return "no --peers-home"
    return "" if _python(home, server.environment).exists() else f"no environment {home / server.environment}"


def box_command(files: Files, rest_port: int, grpc_port: int, box: str = "mlp") -> Started:
    """Our box with everything on: token, validation, metrics, access log.

    It and the compiler must share ``RDUKIT_HOME``: native kernels of another home are not trusted and not used.
    """
    files.folder.mkdir(parents=True, exist_ok=True)
    tokens = files.folder / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    command = [
        sys.executable, "-m", "rdukit_modelbox", "run", box, "--pef", str(files.pef),
        "--checkpoint", str(files.checkpoint), "--rest-port", str(rest_port), "--grpc-port", str(grpc_port),
        "--state", str(files.folder / "state"), "--mount", str(files.pef.parent),
    ]  # fmt: skip
    environment = {
        "RDUKIT_BOX_TOKENS": str(tokens), "RDUKIT_BOX_ACCESS_LOG": str(files.folder / "access.log"),
    }  # fmt: skip
    return Started(command, rest_port, grpc_port, environment)


def _python(home: Path, environment: str) -> Path:
    return home / environment / "bin" / "python"


def _ours(home: Path, files: Files) -> Started:
    return box_command(files, *free_ports(2))


def _floor(script: str, *arguments: str) -> Callable[[Path, Files], Started]:
    def start(home: Path, files: Files) -> Started:
        (port,) = free_ports(1)
        command = [sys.executable, str(PEERS / script), str(port), *arguments]
        return Started(command, *((None, port) if script == "floor_grpc.py" else (port, None)))

    return start


def _litserve(most: int, delay_s: float) -> Callable[[Path, Files], Started]:
    def start(home: Path, files: Files) -> Started:
        (port,) = free_ports(1)
        python = str(_python(home, "peers-venv"))
        return Started([python, str(PEERS / "litserve_server.py"), str(port), str(most), str(delay_s)], port)

    return start


def _bentoml(service: str) -> Callable[[Path, Files], Started]:
    def start(home: Path, files: Files) -> Started:
        (port,) = free_ports(1)
        shutil.copy(PEERS / "bentoml_server.py", files.folder)
        command = [
            str(home / "v-bentoml" / "bin" / "bentoml"), "serve", f"bentoml_server:{service}", "--host", "127.0.0.1",
            "--port", str(port),
        ]  # fmt: skip
        return Started(command, port, None, {"PYTHONPATH": str(HERE), "BENTOML_DO_NOT_TRACK": "True"})

    return start


def _mlserver(is_batched: bool) -> Callable[[Path, Files], Started]:
    def start(home: Path, files: Files) -> Started:
        rest, grpc, metrics = free_ports(3)
        shutil.copy(PEERS / "mlserver_runtime.py", files.folder)
        settings = {
            "debug": False, "host": "127.0.0.1", "http_port": rest, "grpc_port": grpc, "metrics_port": metrics,
            "parallel_workers": 0,
        }  # fmt: skip
        model: dict[str, object] = {"name": serving_model.NAME, "implementation": "mlserver_runtime.Mlp"}
        if is_batched:
            model |= {"max_batch_size": 32, "max_batch_time": 0.002}
        (files.folder / "settings.json").write_text(json.dumps(settings))
        (files.folder / "model-settings.json").write_text(json.dumps(model))
        command = [str(home / "v-mlserver" / "bin" / "mlserver"), "start", str(files.folder)]
        return Started(command, rest, grpc, {"PEER_SOURCE": str(HERE)})

    return start


def _kserve(home: Path, files: Files) -> Started:
    rest, grpc = free_ports(2)
    command = [
        str(_python(home, "v-kserve")), str(PEERS / "kserve_server.py"), "--http_port", str(rest), "--grpc_port",
        str(grpc), "--workers", "1", "--enable_grpc", "true", "--enable_docs_url", "false",
        "--enable_latency_logging", "false",
    ]  # fmt: skip
    return Started(command, rest, grpc)


def _ray(is_batched: bool, environment: Mapping[str, str]) -> Callable[[Path, Files], Started]:
    def start(home: Path, files: Files) -> Started:
        rest, grpc = free_ports(2)
        # The proxy with HAProxy has no gRPC door.
        grpc_port = None if environment else grpc
        # Ray's sockets need a short path.
        folder = Path(os.environ.get("TMPDIR", "/tmp"), f"ray-{rest}")
        command = [
            str(_python(home, "v-ray")), str(PEERS / "ray_server.py"), str(rest), str(grpc_port or 0),
            str(int(is_batched)),
        ]  # fmt: skip
        return Started(
            command, rest, grpc_port, {"PEER_FOLDER": str(folder), "RAY_USAGE_STATS_ENABLED": "0", **environment}
        )  # fmt: skip

    return start


def triton_command(home: Path, files: Files, delay_us: int = 0) -> Started:
    """Return a real Triton with the same model."""
    ports = free_ports(3)
    command = [str(_python(home, "v-triton")), str(PEERS / "triton_server.py"), *map(str, ports), str(delay_us)]
    return Started(command, ports[0], ports[1])


def _triton(delay_us: int) -> Callable[[Path, Files], Started]:
    return lambda home, files: triton_command(home, files, delay_us)


SERVERS: tuple[Server, ...] = (
    Server(REST_FLOOR, "", _floor("floor_rest.py"), is_peer=False),
    Server("floor: uvicorn+model", "", _floor("floor_asgi.py"), is_peer=False),
    Server(GRPC_FLOOR, "", _floor("floor_grpc.py", "asyncio"), is_peer=False),
    Server("floor: grpc, 8 threads+model", "", _floor("floor_grpc.py", "threads"), is_peer=False),
    Server(OURS, "", _ours, is_peer=False),
    Server("LitServe", "peers-venv", _litserve(1, 0.0)),
    Server("LitServe, batch 32 / 2 ms", "peers-venv", _litserve(32, 0.002)),
    Server("BentoML", "v-bentoml", _bentoml("Plain")),
    Server("BentoML, batchable", "v-bentoml", _bentoml("Batched")),
    Server("MLServer", "v-mlserver", _mlserver(False)),
    Server("MLServer, batch 32 / 2 ms", "v-mlserver", _mlserver(True)),
    Server("KServe", "v-kserve", _kserve),
    Server("Ray Serve", "v-ray", _ray(False, {}), {"application": "default"}),
    Server("Ray Serve, HAProxy", "v-ray", _ray(False, {"RAY_SERVE_ENABLE_HA_PROXY": "1"})),
    Server("Triton", "v-triton", _triton(0)),
    Server("Triton, batch 32 / 2 ms", "v-triton", _triton(2000)),
)

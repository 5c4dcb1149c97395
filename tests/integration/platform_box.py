"""A real ModelBox program for the platform's tests: speaks ``docs/design/wire.md`` section 2, computes nothing.

``train`` counts steps, one every ``step_s`` seconds, and keeps its count in ``checkpoint/latest.json`` as a real box
does. ``mood`` makes it fail: ``refuse`` (its own error), ``crash`` (ends without an answer, half-way) or ``killed``
(the same by SIGKILL, the first time only). A disk without room is told as real boxes do. Its first event stream always
breaks, after three events, so that whoever follows must attach again. It ends with the process that started it, unless
``COUNTER_OUTLIVES_ITS_WORKER`` is set. A profile of it is a hostile page.

In a folder of its own it is another box: ``modelbox.yaml`` (JSON here) has what its description has otherwise, and
``says``, which the result of ``preprocess`` repeats. While there is a file at its ``waits``, reading it takes. What its
``runs`` say is run by ``preprocess``, with the folder of its output as ``output``; the result has what that calls
``said``. In an image it is the program ``rdukit``, whose ``rdukit box run`` an engine starts. With
``fork-server`` a worker forks it.
"""

import argparse
import ctypes
import errno
import json
import os
import signal
import socket
import socketserver
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, urlparse

MOODS = ["good", "refuse", "crash", "killed"]
MOOD = {
    "name": "mood", "type": "string", "default": "good", "legal": f"one of {', '.join(MOODS)}", "help": "",
    "schema": {"type": "string", "enum": MOODS},
}  # fmt: skip
DESCRIPTION = {
    "name": "counter",
    "title": "Counts",
    "description": "A box for tests",
    "model": "none",
    "compiler_version": "0",
    "mode": "o0",
    "target": "sn10",
    "verbs": [
        {
            "name": "preprocess",
            "parameters": [
                {
                    "name": "pause_s",
                    "type": "float",
                    "default": 0.0,
                    "legal": "0 <= x <= 600",
                    "schema": {"type": "number", "minimum": 0, "maximum": 600},
                    "help": "Seconds that it takes.",
                },
                MOOD,
            ],
            "inputs": [{"name": "data", "kind": "folder", "required": False}],
            "outputs": [{"name": "dataset", "kind": "folder", "required": True}],
        },
        {
            "name": "train",
            "parameters": [
                {
                    "name": "steps",
                    "type": "int",
                    "default": 5,
                    "legal": "1 <= x <= 1000",
                    "help": "How far to count.",
                    "schema": {"type": "integer", "minimum": 1, "maximum": 1000},
                },
                {
                    "name": "step_s",
                    "type": "float",
                    "default": 0.01,
                    "legal": "0 <= x <= 10",
                    "schema": {"type": "number", "minimum": 0, "maximum": 10},
                    "help": "Seconds a step.",
                },
                MOOD,
            ],
            "inputs": [{"name": "dataset", "kind": "folder", "required": True}],
            "outputs": [{"name": "checkpoint", "kind": "folder", "required": True}],
        },
    ],
}


class Box:
    """The operations of one process and their events."""

    def __init__(self, says: str, runs: str = "") -> None:
        self.says, self.runs = says, runs
        self.operations: dict[str, dict[str, object]] = {}
        self.events: dict[str, list[dict[str, object]]] = {}
        self.changed = threading.Condition()
        self.has_cut = False

    def add(self, operation_id: str, kind: str, **more: object) -> None:
        with self.changed:
            events = self.events[operation_id]
            events.append({"sequence": len(events) + 1, "kind": kind, "at": time.time(), **more})
            self.changed.notify_all()

    def start(self, verb: str, body: dict[str, object]) -> dict[str, object]:
        operation_id = f"op-{len(self.operations) + 1}"
        operation = {"id": operation_id, "verb": verb, "state": "running", "created_at": time.time()}
        self.operations[operation_id] = operation
        self.events[operation_id] = []
        self.add(operation_id, "state", operation=operation)
        threading.Thread(target=self.work, args=(operation_id, verb, body), daemon=True).start()
        return operation

    def end(self, operation_id: str, state: str, **more: object) -> None:
        operation = {**self.operations[operation_id], "state": state, "ended_at": time.time(), **more}
        self.operations[operation_id] = operation
        self.add(operation_id, "result", operation=operation)

    def work(self, operation_id: str, verb: str, body: dict[str, object]) -> None:
        try:
            self.do(operation_id, verb, body)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            message = f"{error.filename} cannot be written: no space is left on the disk"
            self.end(operation_id, "failed", error={"code": "disk-full", "message": message})

    def do(self, operation_id: str, verb: str, body: dict[str, object]) -> None:
        parameters, output = body["parameters"], Path(body["output"])
        mood = parameters.get("mood", "good")
        if mood == "refuse":
            self.end(operation_id, "failed", error={"code": "pef-mismatch", "message": "this box refuses"})
            return
        if verb == "preprocess":
            folder = output / "dataset"
            folder.mkdir(exist_ok=True)
            if mood == "crash":
                os._exit(3)
            time.sleep(parameters.get("pause_s", 0.0))
            (folder / "manifest.json").write_text(json.dumps({"inputs": sorted(body["inputs"])}))
            names: dict[str, object] = {"output": folder, "said": None}
            exec(self.runs, names)
            result = {"samples": 3, "says": self.says, "said": names["said"]}
            self.end(operation_id, "succeeded", result=result, outputs={"dataset": str(names["output"])})
            return
        assert (Path(body["inputs"]["dataset"]) / "manifest.json").exists()
        folder = output / "checkpoint"
        folder.mkdir(exist_ok=True)
        latest = folder / "latest.json"
        first = json.loads(latest.read_text())["step"] if latest.exists() else 0
        steps = parameters.get("steps", 5)
        self.add(
            operation_id, "log", log=f"counting from {first} to {steps}, lease {os.environ.get('RDUKIT_LEASE', '-')}"
        )
        for step in range(first + 1, steps + 1):
            time.sleep(parameters.get("step_s", 0.01))
            (folder / "part").write_text(json.dumps({"step": step}))
            (folder / "part").replace(latest)
            if mood == "crash" and step > steps // 2:
                os._exit(3)
            if mood == "killed" and first == 0 and step > steps // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            self.add(
                operation_id, "progress", progress={"stage": "train", "step": step, "total": steps, "loss": 1 / step}
            )
        result, outputs = {"steps": steps, "resumed_from_step": first}, {"checkpoint": str(folder)}
        if body.get("profile"):
            outputs["profile"] = str(output / "profile")
            (output / "profile").mkdir()
            (output / "profile" / "report.html").write_text("<script>document.title = document.cookie</script>")
        self.end(operation_id, "succeeded", result=result, outputs=outputs)


class Handler(BaseHTTPRequestHandler):
    """The routes."""

    protocol_version = "HTTP/1.1"
    box: Box

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        parts = self.path.strip("/").split("/")
        if parts[:2] == ["v1", "operations"]:
            self.answer(200, self.box.operations[parts[2]])
            return
        operation = self.box.start(parts[1], body)
        if "event-stream" in self.headers.get("Accept", ""):
            self.stream(operation["id"], 0)
        else:
            self.answer(202, operation)

    def do_GET(self) -> None:
        url = urlparse(self.path)
        parts = url.path.strip("/").split("/")
        if parts[:2] != ["v1", "operations"]:
            self.answer(200, {"status": "ok"})
            return
        self.stream(parts[2], int(parse_qs(url.query).get("after", ["0"])[0]))

    def stream(self, operation_id: str, after: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Location", f"/v1/operations/{operation_id}")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        events = self.box.events[operation_id]
        while True:
            with self.box.changed:
                while len(events) <= after:
                    self.box.changed.wait()
                event = events[after]
            after += 1
            data = json.dumps(event)
            self.write(f"event: {event['kind']}\nid: {after}\ndata: {data}\n\n".encode())
            if event["kind"] == "result":
                self.write(b"")
                return
            if after == 3 and not self.box.has_cut:
                self.box.has_cut = self.close_connection = True
                return

    def write(self, chunk: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))

    def answer(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        print(format % args, flush=True)


def read_own(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        return {}
    file = folder / "modelbox.yaml"
    try:
        return json.loads(file.read_text())
    except ValueError as error:
        print(json.dumps({"error": {"code": "invalid-argument", "message": f"{file}:1:1: {error}", "detail": {}}}))
        sys.exit(2)


class SocketServer(ThreadingHTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)


def main() -> None:
    if sys.argv[1] == "fork-server":
        from rdukit.fence.start import run_forked
        from rdukit.system.forks import serve_forks

        def run(arguments: list[str]) -> int:
            sys.argv[1:] = arguments
            main()
            return 0

        serve_forks(int(sys.argv[2]), lambda request: run_forked(request, run))
        return
    parser = argparse.ArgumentParser()
    words = sys.argv[2:] if sys.argv[1:2] == ["box"] else sys.argv[1:]
    parser.add_argument("command", choices=["list", "validate", "describe", "run"])
    parser.add_argument("box", nargs="?")
    for name in (
        "--rest-port",
        "--grpc-port",
        "--state",
        "--announce",
        "--parent",
        "--socket-folder",
    ):
        parser.add_argument(name)
    parser.add_argument("--mount", action="append")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    if options.command == "list":
        print(json.dumps([DESCRIPTION]))
        return
    own = read_own(Path(options.box))
    if options.command == "validate":
        print(json.dumps({"valid": True}))
        return
    if options.command == "describe":
        if "waits" in own:
            Path(f"{own['waits']}.seen").touch()
        while "waits" in own and Path(own["waits"]).exists():
            time.sleep(0.05)
        print(json.dumps({**DESCRIPTION, **own}))
        return
    if "COUNTER_OUTLIVES_ITS_WORKER" not in os.environ:
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    Handler.box = Box(own.get("says", ""), own.get("runs", ""))
    os.chdir(options.socket_folder)
    Path("rest.sock").unlink(missing_ok=True)
    server = SocketServer("rest.sock", Handler)
    if options.announce is not None:
        announce = Path(options.announce)
        part = announce.with_suffix(".part")
        address = f"http+unix://{quote(f'{options.socket_folder}/rest.sock', safe='')}"
        part.write_text(json.dumps({"rest": address, "grpc": "", "pid": os.getpid()}))
        part.replace(announce)
    server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())

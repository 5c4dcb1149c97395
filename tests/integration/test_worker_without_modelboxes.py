"""A worker runs where nothing of rdukit is installed but core and platform: boxes are containers there."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support import shows

pytestmark = [shows("containers", "job-boxes"), pytest.mark.long]

#: Refuses what is not installed there, then imports the worker, opens the backend and says what it would create.
PROGRAM = """
import json, sys
from importlib.abc import MetaPathFinder

class Refuse(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {
            "rdukit_modelbox", "rdukit_zoo", "sambaflow", "rdukit_compiler", "rdukit_runtime", "rdukit_node", "torch"
        }:
            raise ModuleNotFoundError(f"not installed here: {name}", name=name)
        return None

sys.meta_path.insert(0, Refuse())

from pathlib import Path
import rdukit_platform.worker.serve
from rdukit_platform.backends.container_options import container_options
from rdukit_platform.backends.contract import BoxOwner
from rdukit_platform.backends.job_boxes import open_backend, spec_of
from rdukit_platform.settings import Home

folder = Path(sys.argv[1])
backend, rules = open_backend(Home(folder))
spec = spec_of(rules, "logreg", BoxOwner("job-1", 2), folder / "state", folder / "in", folder / "out", {})
options = container_options(spec, "boxes:1")
print(json.dumps([backend.name, [list(box.owner.id) for box in backend.owned()], options["command"][:4]]))
backend.close()
"""


class Engine(BaseHTTPRequestHandler):
    """Answers what a container engine is asked at first."""

    def do_GET(self) -> None:
        answers = {"/version": {"ApiVersion": "1.44"}, "/_ping": "OK"}
        known = next((answer for path, answer in answers.items() if self.path.endswith(path)), [])
        data = known.encode() if isinstance(known, str) else json.dumps(known).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize(("name", "variable"), [("docker", "DOCKER_HOST"), ("podman", "CONTAINER_HOST")])
def test_a_worker_with_containers_needs_no_modelboxes(tmp_path: Path, name: str, variable: str) -> None:
    pytest.importorskip("docker")
    with ThreadingHTTPServer(("127.0.0.1", 0), Engine) as engine:
        threading.Thread(target=engine.serve_forever, daemon=True).start()
        environment = {
            "RDUKIT_HOME": str(tmp_path), "RDUKIT_WORKER_BOX_BACKEND": name,
            variable: f"tcp://127.0.0.1:{engine.server_port}",
        }  # fmt: skip
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path)],
            env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        engine.shutdown()
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [name, [], ["rdukit", "box", "run", "logreg"]]

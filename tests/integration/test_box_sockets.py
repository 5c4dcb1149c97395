"""A box whose wires are UNIX sockets in its own folder, as the boxes of jobs are."""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest
import torch
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc
from safetensors.torch import save_file

from rdukit.box.client import BoxClient
from rdukit.errors import InvalidArgument, Unavailable
from rdukit.http.unix_sockets import SocketPath
from rdukit_modelbox.cli.main import box as box_commands
from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import ProcessBackend, ProcessBox
from rdukit_zoo.mlp import MultiLayerPerceptron
from support import shows
from support.boxes import run_verb
from support.platform.warm import start_box

pytestmark = shows("box", "job-boxes", "inference", "logreg", "mlp")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessBox]:
    state = tmp_path_factory.mktemp("box") / ("deep" * 25) / ("deeper" * 20)
    box = start_box(BoxSpec("logreg", state, has_sockets=True))
    yield box
    box.stop()
    assert not list(state.glob("*.sock"))


def listening_ports(pid: int) -> list[str]:
    """Addresses that the process listens at over TCP."""
    inodes = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.append(fields[1])
    return found


def test_it_listens_in_its_private_folder_and_at_no_port(box: ProcessBox, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)):
        assert len(listening_ports(os.getpid())) >= 1
    assert listening_ports(box.pid) == []
    assert box.rest_url.startswith("http+unix://%2F") and box.grpc_address.startswith("unix:/")
    path = Path(box.grpc_address.removeprefix("unix:"))
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert {file.name: file.stat().st_mode & 0o777 for file in path.parent.glob("*.sock")} == {
        "rest.sock": 0o600, "grpc.sock": 0o600,
    }  # fmt: skip


def test_the_callers_reach_it(box: ProcessBox) -> None:
    assert box.is_ready()
    with BoxClient(box.rest_url) as client:
        assert client.describe()["name"] == "logreg"
        ended = client.wait(client.submit("preprocess")["id"])
        assert ended["state"] == "succeeded", ended
        assert client.cancel(ended["id"])["state"] == "succeeded"
    shown = CliRunner().invoke(box_commands, ["operations", "--url", box.rest_url])
    assert shown.exit_code == 0 and ended["id"] in shown.output, shown.output
    inspected = CliRunner().invoke(box_commands, ["inspect", box.rest_url])
    assert inspected.exit_code == 0 and "logreg" in inspected.output, inspected.output


def test_without_grpc_it_listens_at_one_socket(tmp_path: Path) -> None:
    spec = BoxSpec("logreg", tmp_path / "box", environment={"RDUKIT_BOX_GRPC": "false"}, has_sockets=True)
    box = start_box(spec)
    try:
        assert [file.name for file in (tmp_path / "box").glob("*.sock")] == ["rest.sock"]
        with BoxClient(box.rest_url) as client:
            assert client.wait(client.submit("preprocess")["id"])["state"] == "succeeded"
    finally:
        box.stop()


def test_grpc_answers_over_a_socket(tmp_path: Path) -> None:
    box = start_box(BoxSpec("logreg", tmp_path / "box", has_sockets=True))
    try:
        with grpc.insecure_channel(box.grpc_address) as channel:
            request = health_pb2.HealthCheckRequest(service="rdukit.modelbox.v1.ModelBox")
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        box.stop()


@pytest.mark.long
def test_inferences_take_the_short_way_over_a_socket(tmp_path: Path) -> None:
    os.environ["RDUKIT_KERNELS"] = "portable"
    pef = run_verb("mlp", "compile", tmp_path, purpose="serve", batch_size=2).outputs["pef"]
    torch.manual_seed(0)
    model = MultiLayerPerceptron().eval()
    save_file(dict(model.state_dict()), tmp_path / "mlp.safetensors")
    environment = {
        "RDUKIT_BOX_PEF": str(pef), "RDUKIT_BOX_CHECKPOINT": str(tmp_path / "mlp.safetensors"),
        "RDUKIT_HOME": str(tmp_path / "home"),
    }  # fmt: skip
    box = start_box(BoxSpec("mlp", tmp_path / "state", [tmp_path], environment, has_sockets=True))
    row = [float(at % 17) for at in range(64)]
    asked = {"inputs": [{"name": "rows", "shape": [1, 64], "datatype": "FP32", "data": row}]}
    try:
        with (
            SocketPath(tmp_path / "state" / "rest.sock") as path,
            httpx.Client(transport=httpx.HTTPTransport(uds=path.text), base_url="http://localhost", timeout=60) as http,
        ):
            # The first goes through the application; the path is known after it.
            answers = [http.post("/v2/models/mlp/infer", json=asked) for _ in range(3)]
    finally:
        box.stop()
    expected = model(torch.tensor([row])).flatten().tolist()
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert answer.json()["outputs"][0]["data"] == pytest.approx(expected, abs=1e-5)


def test_two_boxes_cannot_listen_in_one_folder(box: ProcessBox, tmp_path: Path) -> None:
    folder = Path(box.grpc_address.removeprefix("unix:")).parent
    command = ["run", "logreg", "--state", str(tmp_path), "--socket-folder", str(folder), "--parent", "0"]
    result = CliRunner().invoke(box_commands, command)
    assert isinstance(result.exception, InvalidArgument) and "listens at" in result.exception.message


def test_where_a_box_says_that_it_is_is_not_followed(tmp_path: Path) -> None:
    """A hostile box announces another address, or a link in its socket's place: the worker goes neither way."""
    liar = tmp_path / "liar.py"
    liar.write_text(
        "import json, os, sys, time\n"
        "options = dict(zip(sys.argv[3::2], sys.argv[4::2]))\n"
        "os.symlink('/run/other.sock', options['--socket-folder'] + '/rest.sock')\n"
        "open(options['--announce'] + '.part', 'w').write(json.dumps({'rest': 'http://10.0.0.1:80', 'grpc': ''}))\n"
        "os.rename(options['--announce'] + '.part', options['--announce'])\n"
        "time.sleep(60)\n"
    )
    backend = ProcessBackend(command=[sys.executable, str(liar)])
    with pytest.raises(Unavailable, match="is not a socket"):
        backend.start(BoxSpec("liar", tmp_path / "state", has_sockets=True))

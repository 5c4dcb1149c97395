"""What scripts of this tree generate is up to date: pages of the manual, gRPC code, the list of operators."""

import subprocess
import sys
from pathlib import Path

import pytest

import rdukit.proto
from support import shows

pytestmark = shows("project", "operators")

TREE = Path(__file__).parents[2]
PROTO = Path(next(iter(rdukit.proto.__path__)))


def test_the_generated_pages_are_up_to_date() -> None:
    command = [sys.executable, TREE / "scripts/docs.py", "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.long
def test_the_lists_lines_are_what_torchs_schemas_say() -> None:
    written = subprocess.run([sys.executable, TREE / "scripts" / "pef_operators.py", "--check"], check=False)
    assert written.returncode == 0, "scripts/pef_operators.py writes it again"


def test_generated_code_equals_its_proto_file(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="needs grpcio-tools, of the dev extra")
    protos = sorted(PROTO.glob("*.proto"))
    services = [path for path in protos if "\nservice " in path.read_text()]
    protoc = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(PROTO.parents[1])]
    subprocess.run([*protoc, f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", *protos], check=True)
    subprocess.run([*protoc, f"--grpc_python_out={tmp_path}", *services], check=True)
    made = sorted(path for path in tmp_path.rglob("*_pb2*") if path.is_file())
    assert len(made) == 2 * len(protos) + len(services)
    for path in made:
        committed = PROTO / path.name
        assert committed.read_text() == path.read_text(), f"{path.name} is stale; run: make proto"

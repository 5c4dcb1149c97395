"""The generated gRPC code is what the ``.proto`` files say."""

import subprocess
import sys
from pathlib import Path

import pytest

import rdukit.proto

FOLDER = Path(next(iter(rdukit.proto.__path__)))


def test_generated_code_equals_its_proto_file(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="needs grpcio-tools, of the dev extra")
    protos = sorted(FOLDER.glob("*.proto"))
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I", FOLDER.parents[1], f"--python_out={tmp_path}",
         f"--pyi_out={tmp_path}", f"--grpc_python_out={tmp_path}", *protos],
        check=True,
    )  # fmt: skip
    made = sorted(path for path in tmp_path.rglob("*_pb2*") if path.is_file())
    assert len(made) == 3 * len(protos)
    for path in made:
        committed = FOLDER / path.name
        assert committed.read_text() == path.read_text(), f"{path.name} is stale; run: make proto"

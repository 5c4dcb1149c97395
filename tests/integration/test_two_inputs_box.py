"""A model with two inputs and two outputs of different datatypes, served by its own box: forms of tensors, classes."""

import os
from collections.abc import Iterator
from itertools import permutations, product
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from safetensors.torch import save_file
from torch import nn
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from rdukit.errors import InvalidArgument
from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import ProcessBox
from rdukit_serving.device.loaded_model import LoadedModel
from sambaflow import samba
from support import shows
from support.platform.warm import start_box

pytestmark = shows("inference", "modelbox-own-model")

ROWS = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
CODES = np.random.default_rng(0).integers(0, 20, (2, 3))
LABELS = ("ape", "bee", "çat", "dog: big", "elk")
YAML = f"""
apiVersion: rdukit.dev/v1
kind: ModelBox
name: two
title: Two inputs and two outputs
description: Rows and codes in, scores and half-precision sums out.
module: model.py:make_model
compilerVersion: "0.1"
mode: o3
target: sn30
verbs: [infer]
serving:
  labels: {list(LABELS)}
  inputs: [{{name: rows, symbol: rows}}, {{name: codes, symbol: codes}}]
  outputs: [{{name: scores, symbol: "0"}}, {{name: sums, symbol: "1"}}]
"""


class Two(nn.Module):
    """(rows f32 [B, 8], codes int64 [B, 3]) → (scores f32 [B, 5], sums f16 [B, 4])."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 4)
        self.scores = nn.Linear(8 + 12, 5)
        self.sums = nn.Linear(8, 4)

    def forward(self, rows: torch.Tensor, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        joined = torch.cat([rows, self.words(codes).flatten(1)], 1)
        return self.scores(joined), self.sums(rows).half()


class Served:
    """The running box, its files and what it should answer."""

    def __init__(self, box: ProcessBox, pef: Path, checkpoint: Path, expected: dict[str, Any]) -> None:
        self.box, self.pef, self.checkpoint, self.expected = box, pef, checkpoint, expected
        self.http = triton_http.InferenceServerClient(box.rest_url.removeprefix("http://"))
        self.grpc = triton_grpc.InferenceServerClient(box.grpc_address)

    def restarts(self) -> float:
        lines = httpx.get(f"{self.box.rest_url}/metrics", trust_env=False).text.splitlines()
        return sum(
            float(line.rpartition(" ")[2]) for line in lines if line.startswith("rdukit_box_model_restarts_total{")
        )

    def check(self, answer: Any, names: set[str]) -> None:
        for name, values in self.expected.items():
            assert (answer.get_output(name) is not None) == (name in names)
            if name in names:
                found = answer.as_numpy(name)
                assert found.dtype == values.dtype
                # f32 on the device; f16 is rounded once.
                np.testing.assert_allclose(found, values, rtol=1e-5 if name == "scores" else 1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("two")
    os.environ["RDUKIT_KERNELS"] = "portable"
    torch.manual_seed(0)
    model = Two().eval()
    with torch.inference_mode():
        scores, sums = model(torch.from_numpy(ROWS), torch.from_numpy(CODES))
    expected = {"scores": scores.numpy(), "sums": sums.numpy()}
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, folder / "two.safetensors")
    samba.from_torch_model_(model)
    inputs = (samba.randn(4, 8, name="rows", batch_dim=0), samba.randint(20, (4, 3), name="codes", batch_dim=0))
    config = {"output_folder": str(folder / "out"), "precision": "f32"}
    pef = Path(samba.session.compile(model, inputs, None, name="two", config_dict=config))
    samba.session.reset()
    (folder / "box").mkdir()
    (folder / "box" / "modelbox.yaml").write_text(YAML)
    (folder / "box" / "model.py").write_text("")
    environment = {
        "RDUKIT_BOX_PEF": str(pef), "RDUKIT_BOX_CHECKPOINT": str(folder / "two.safetensors"),
        "RDUKIT_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    spec = BoxSpec(str(folder / "box" / "modelbox.yaml"), folder / "state", [folder], environment)
    found = Served(start_box(spec), pef, folder / "two.safetensors", expected)
    yield found
    found.http.close()
    found.grpc.close()
    found.box.stop()


def tensors(module: Any, order: tuple[str, ...], binary: tuple[str, ...] = ()) -> list[Any]:
    values: dict[str, tuple[Any, str]] = {"rows": (ROWS, "FP32"), "codes": (CODES, "INT64")}
    made = []
    for name in order:
        data, datatype = values[name]
        tensor = module.InferInput(name, data.shape, datatype)
        extra = {"binary_data": name in binary} if module is triton_http else {}
        tensor.set_data_from_numpy(data, **extra)
        made.append(tensor)
    return made


@pytest.mark.parametrize("order", list(permutations(("rows", "codes"))))
def test_every_mixture_of_json_and_binary_tensors_gives_the_same_answer(served: Served, order: tuple[str, ...]) -> None:
    output = triton_http.InferRequestedOutput
    for binary in ((), ("rows",), ("codes",), ("rows", "codes")):
        inputs = tensors(triton_http, order, binary)
        served.check(served.http.infer("two", inputs), {"scores", "sums"})
        for is_binary in (False, True):
            wanted = [output("sums", binary_data=True), output("scores", binary_data=is_binary)]
            served.check(served.http.infer("two", inputs, outputs=wanted), {"scores", "sums"})
            served.check(served.http.infer("two", inputs, outputs=wanted[1:]), {"scores"})


@pytest.mark.parametrize("order", list(permutations(("rows", "codes"))))
def test_over_grpc_outputs_restrict_the_answer_in_any_order(served: Served, order: tuple[str, ...]) -> None:
    inputs = tensors(triton_grpc, order)
    for names in ((), ("sums",), ("scores",), ("sums", "scores")):
        wanted = [triton_grpc.InferRequestedOutput(name) for name in names]
        served.check(served.grpc.infer("two", inputs, outputs=wanted or None), set(names) or {"scores", "sums"})


def test_typed_contents_get_a_typed_answer_or_a_raw_one_where_an_output_has_no_typed_form(served: Served) -> None:
    request = service_pb2.ModelInferRequest(model_name="two")
    request.inputs.add(name="codes", datatype="INT64", shape=[2, 3]).contents.int64_contents.extend(CODES.ravel())
    request.inputs.add(name="rows", datatype="FP32", shape=[2, 8]).contents.fp32_contents.extend(ROWS.ravel())
    with grpc.insecure_channel(served.box.grpc_address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        served.check(triton_grpc.InferResult(stub.ModelInfer(request, timeout=60)), {"scores", "sums"})
        request.outputs.add(name="scores")
        answer = stub.ModelInfer(request, timeout=60)
    assert not answer.raw_output_contents
    values = np.asarray(answer.outputs[0].contents.fp32_contents).reshape(2, 5)
    np.testing.assert_allclose(values, served.expected["scores"], rtol=1e-5, atol=1e-3)


def expected_classes(served: Served, count: int) -> list[list[str]]:
    found = []
    for row in served.expected["scores"]:
        best = np.argsort(-row)[:count]
        found.append([f"{index}:{LABELS[index]}" for index in best])
    return found


@pytest.mark.parametrize(("wire", "is_binary"), [("http", True), ("http", False), ("grpc", True)])
def test_classes_come_with_value_index_and_label(served: Served, wire: str, is_binary: bool) -> None:
    module: Any = triton_http if wire == "http" else triton_grpc
    client: Any = served.http if wire == "http" else served.grpc
    extra = {"binary_data": is_binary} if wire == "http" else {}
    wanted = [
        module.InferRequestedOutput("scores", class_count=2, **extra),
        module.InferRequestedOutput("sums", class_count=1, **extra),
    ]
    answer = client.infer("two", tensors(module, ("rows", "codes"), ("rows", "codes")), outputs=wanted)
    found = [[text.decode() if isinstance(text, bytes) else text for text in row] for row in answer.as_numpy("scores")]
    assert [[text.partition(":")[2] for text in row] for row in found] == expected_classes(served, 2)
    for row, scores in zip(found, served.expected["scores"], strict=True):
        for text in row:
            value, index, *_ = text.split(":")
            assert float(value) == pytest.approx(scores[int(index)], abs=1e-3)
    assert answer.as_numpy("sums").shape == (2, 1)
    # Labels are names of the first output's classes only.
    assert str(answer.as_numpy("sums")[0, 0]).count(":") == 1


def test_a_wrong_number_of_classes_is_refused_on_both_wires(served: Served) -> None:
    clients: list[tuple[Any, Any]] = [(triton_http, served.http), (triton_grpc, served.grpc)]
    for (module, client), count in product(clients, (-1, 6)):
        wanted = [module.InferRequestedOutput("scores", class_count=count)]
        with pytest.raises(InferenceServerException, match=f"classification {count} is not valid") as caught:
            client.infer("two", tensors(module, ("rows", "codes"), ("rows", "codes")), outputs=wanted)
        assert caught.value.status() in {"400", "StatusCode.INVALID_ARGUMENT"}
    assert "classification" in served.http.get_server_metadata()["extensions"]


def test_an_index_beyond_its_table_is_the_callers_fault_and_harms_nobody_in_the_same_batch(served: Served) -> None:
    before = served.http.get_inference_statistics("two")["model_stats"][0]["inference_stats"]["success"]["count"]
    clients: list[tuple[Any, Any]] = [(triton_http, served.http), (triton_grpc, served.grpc)]
    for (module, client), index in product(clients, (20, -1)):
        inputs = tensors(module, ("rows", "codes"), ("rows", "codes"))
        inputs[1].set_data_from_numpy(np.full((2, 3), index))
        with pytest.raises(
            InferenceServerException, match=rf"'codes': {index} is not valid; expected 0 " rf"to 19"
        ) as caught:
            client.infer("two", inputs)
        assert caught.value.status() in {"400", "StatusCode.INVALID_ARGUMENT"}
    served.check(served.http.infer("two", tensors(triton_http, ("rows", "codes"))), {"scores", "sums"})
    after = served.http.get_inference_statistics("two")["model_stats"][0]["inference_stats"]["success"]["count"]
    assert after == before + 1
    assert served.restarts() == 0


def test_half_precision_as_json_is_refused_by_name_but_its_classes_are_not(served: Served) -> None:
    inputs = tensors(triton_http, ("rows", "codes"))
    with pytest.raises(InferenceServerException, match="'sums' is FP16, which JSON lacks"):
        served.http.infer("two", inputs, outputs=[triton_http.InferRequestedOutput("sums", binary_data=False)])
    wanted = [triton_http.InferRequestedOutput("sums", binary_data=False, class_count=4)]
    assert served.http.infer("two", inputs, outputs=wanted).as_numpy("sums").shape == (2, 4)


def test_labels_that_are_not_as_many_as_the_classes_are_refused_at_the_load(served: Served) -> None:
    with pytest.raises(InvalidArgument, match=r"serving.labels has 2 names, but the first output, .* has 5 classes"):
        LoadedModel("two", served.pef, served.checkpoint, {"labels": ["yes", "no"]})

"""Work for an answer at once ends when its caller goes away or its deadline passes, on both wires."""

import asyncio
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace

import grpc
import pytest
import uvicorn
from fastapi import FastAPI, Request

from rdukit.proto import modelbox_pb2 as pb
from rdukit.proto import modelbox_pb2_grpc
from rdukit.rpc.errors import add_strictly
from rdukit_modelbox.server.grpc_server import ModelBoxServicer
from rdukit_modelbox.server.inference import InferAnswer, InferCall
from rdukit_serving.rest.web import ClientGone, while_connected
from support import shows

pytestmark = shows("inference", "wire")

REQUEST = pb.InferRequest(id="1", rows=pb.Rows(rows=[pb.Row(values=[1.0])]))


class SlowInferencer:
    """Answers row [0] at once and any other never."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def infer(self, call: InferCall) -> InferAnswer:
        """As ``Inferencer.infer``."""
        if call.rows[0][0] == 0.0:
            return InferAnswer(rows=[[0.5]], labels=[0])
        self.begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        raise AssertionError("nobody waits so long")


@pytest.fixture
def inferencer() -> SlowInferencer:
    return SlowInferencer()


@pytest.fixture
async def stub(inferencer: SlowInferencer) -> AsyncIterator[modelbox_pb2_grpc.ModelBoxStub]:
    server = grpc.aio.server()
    servicer = ModelBoxServicer(SimpleNamespace(inferencer=inferencer))  # type: ignore[arg-type]
    add_strictly(modelbox_pb2_grpc.add_ModelBoxServicer_to_server, servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield modelbox_pb2_grpc.ModelBoxStub(channel)
    await server.stop(0)


async def test_a_call_that_is_cancelled_cancels_its_work(
    stub: modelbox_pb2_grpc.ModelBoxStub, inferencer: SlowInferencer
) -> None:
    call = stub.Infer(REQUEST)
    await asyncio.wait_for(inferencer.begun.wait(), 10)
    call.cancel()
    await asyncio.wait_for(inferencer.cancelled.wait(), 10)


async def test_a_deadline_that_passes_cancels_its_work(
    stub: modelbox_pb2_grpc.ModelBoxStub, inferencer: SlowInferencer
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Infer(REQUEST, timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(inferencer.cancelled.wait(), 10)


async def test_a_stream_answers_while_it_is_open_and_its_end_cancels_what_is_in_work(
    stub: modelbox_pb2_grpc.ModelBoxStub, inferencer: SlowInferencer
) -> None:
    stream = stub.InferStream()
    for number in range(3):
        await stream.write(pb.InferRequest(id=str(number), rows=pb.Rows(rows=[pb.Row(values=[0.0])])))
        answer = await stream.read()
        assert (answer.id, list(answer.answer.labels)) == (str(number), [0])
    await stream.write(REQUEST)
    await asyncio.wait_for(inferencer.begun.wait(), 10)
    stream.cancel()
    await asyncio.wait_for(inferencer.cancelled.wait(), 10)


async def test_a_rest_client_that_hangs_up_cancels_its_work(inferencer: SlowInferencer) -> None:
    app = FastAPI()
    gone = asyncio.Event()

    @app.post("/infer")
    async def infer(request: Request) -> dict[str, str]:
        await request.body()
        try:
            await while_connected(request, inferencer.infer(InferCall(rows=[[1.0]])))
        except ClientGone:
            gone.set()
        return {}

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        _, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"POST /infer HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
        await asyncio.wait_for(inferencer.begun.wait(), 10)
        writer.close()
        await asyncio.wait_for(inferencer.cancelled.wait(), 10)
        await asyncio.wait_for(gone.wait(), 10)
        server.should_exit = True
        await serving

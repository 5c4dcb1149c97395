"""The playground's streamed chats, at a box of our own: lines come as they are made, leaving stops the box, errors are
lines, and the page of the endpoint draws latency and load of its calls.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support import shows
from support.platform.gateway import gateway_under_test
from support.platform.processes import short_folder
from support.platform.replica_box import Application, answer, box, serve

pytestmark = shows("console", "endpoints")

STREAM = "/console/endpoints/chat/playground/stream"


def event(value: object) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def token(text: str, logprob: float) -> bytes:
    entry = {"token": text, "logprob": logprob, "top_logprobs": [{"token": text, "logprob": logprob}]}
    return event({"choices": [{"delta": {"content": text}, "logprobs": {"content": [entry]}}]})


END = (
    event({"choices": [{"delta": {}, "finish_reason": "stop"}]}),
    event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "time_to_first_token": 0.25}}),
    b"data: [DONE]\n\n",
)


class Replica:
    """The application of the one replica, which each case sets."""

    def __init__(self) -> None:
        self.application: Application | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert self.application is not None
        await self.application(scope, receive, send)


@pytest.fixture(scope="module")
def replica() -> Replica:
    return Replica()


@pytest.fixture(scope="module")
def browser(replica: Replica) -> Iterator[httpx.Client]:
    """A visitor of the console, whose tenant has the endpoint ``chat``."""
    with short_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_HOME", str(folder))
        with gateway_under_test() as gateway, box(folder / "box", replica) as address:
            token_of_tenant = serve(gateway, address)
            with httpx.Client(base_url=gateway.url, timeout=20.0) as client:
                assert client.post("/console/login", data={"token": token_of_tenant}).status_code == 303
                yield client


def test_a_chat_comes_token_by_token_with_its_figures(browser: httpx.Client, replica: Replica) -> None:
    asked: list[dict[str, Any]] = []
    go_on = threading.Event()

    async def chat(scope: Any, receive: Any, send: Any) -> None:
        asked.append(json.loads((await receive())["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": token("Hel", -0.1), "more_body": True})
        await asyncio.to_thread(go_on.wait, 20.0)
        for block in (token("lo", -3.0), *END):
            await send({"type": "http.response.body", "body": block, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    replica.application = chat
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    given = {"prompt": "Hi", "history": json.dumps(history), "max_tokens": "7", "model": "poet", "system": "Be short."}
    with browser.stream("POST", STREAM, data=given) as found:
        assert found.headers["content-type"] == "application/x-ndjson"
        lines = found.iter_lines()
        first = json.loads(next(lines))
        assert not go_on.is_set(), "the first token comes before the box has made the second"
        go_on.set()
        rest = [json.loads(line) for line in lines]
    assert first["text"] == "Hel" and first["tokens"][0]["shade"] == 0
    assert rest[0]["tokens"][0]["shade"] == 4 and "likeliest" in rest[0]["tokens"][0]["words"]
    assert rest[1] == {"finish": "stop"}
    assert rest[2]["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "first_s": 0.25}
    (body,) = asked
    assert [each["content"] for each in body["messages"]] == ["Be short.", "a", "b", "Hi"]
    assert (body["stream"], body["model"], body["max_tokens"]) == (True, "poet", 7)
    shown = browser.get("/console/endpoints/chat").text
    assert "Calls in progress" in shown and "1 call so far" in shown and "median" in shown


def test_a_visitor_who_leaves_stops_the_generation(browser: httpx.Client, replica: Replica) -> None:
    has_left = threading.Event()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        gone = asyncio.create_task(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": token("x", -1.0), "more_body": True})
            await asyncio.sleep(0.01)
        assert gone.result()["type"] == "http.disconnect"
        has_left.set()

    replica.application = endless
    with browser.stream("POST", STREAM, data={"prompt": "Hi"}) as found:
        assert json.loads(next(found.iter_lines()))["text"] == "x"
    assert has_left.wait(20.0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"prompt": " "}, "Write something first"),
        ({"prompt": "Hi", "history": "[1]"}, "not one of the playground"),
        ({"prompt": "Hi", "seed": "x"}, "not a whole number"),
        ({"prompt": "Hi"}, "no such model"),
    ],
)
def test_what_goes_wrong_is_a_line(
    browser: httpx.Client, replica: Replica, given: dict[str, str], expected: str
) -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await answer(send, 400, b"application/json", b'{"error": {"message": "no such model"}}')

    replica.application = refuse
    (line,) = browser.post(STREAM, data=given).text.splitlines()
    assert expected in json.loads(line)["error"]
    foreign = browser.post(STREAM, data={"prompt": "Hi"}, headers={"origin": "http://elsewhere"})
    assert foreign.status_code == 403


def test_an_endpoint_that_is_not_there_is_a_404(browser: httpx.Client) -> None:
    assert browser.post(STREAM.replace("/chat/", "/other/"), data={"prompt": "Hi"}).status_code == 404


def test_a_stream_that_breaks_off_says_so(browser: httpx.Client, replica: Replica) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        blocks = (
            token("a", -1.0),
            b"data: not JSON\n\n",
            b"data: [1]\n\n",
            event({"error": {"message": "out of tiles"}}),
        )
        await answer(send, 200, b"text/event-stream", *blocks)

    replica.application = broken
    lines = [json.loads(line) for line in browser.post(STREAM, data={"prompt": "Hi"}).text.splitlines()]
    assert [set(line) for line in lines] == [{"tokens", "text"}, {"error"}]
    assert lines[1]["error"] == "out of tiles"


def test_an_answer_that_breaks_off_says_so(browser: httpx.Client, replica: Replica) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        headers = [(b"content-type", b"text/event-stream"), (b"content-length", b"100000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": token("x", -1.0), "more_body": True})
        raise ConnectionError("the box dies")

    replica.application = broken
    with browser.stream("POST", STREAM, data={"prompt": "Hi"}) as found:
        told = [json.loads(line) for line in found.iter_lines()]
    assert told[0]["text"] == "x"
    assert told[-1]["error"].startswith("the answer broke off")
    shown = browser.post(STREAM.removesuffix("/stream"), data={"prompt": "Hi"})
    assert shown.status_code == 200 and "broke off" in shown.text

"""A streamed chat of the playground in a real Chromium: text comes as it is made, Stop keeps it, and the next message
follows. Pictures are written to the folder that ``RDUKIT_PICTURES`` names.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import shows
from support.platform.gateway import gateway_under_test
from support.platform.processes import short_folder
from support.platform.replica_box import box, serve

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright, of the test extra")
axe = pytest.importorskip("axe_playwright_python.base", reason="the browser tests need axe, of the test extra")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
AXE = Path(axe.__file__).with_name("axe.min.js").read_text()
pytestmark = [
    shows("console", "endpoints"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)"),
]


def event(value: object) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


async def chat(scope: Any, receive: Any, send: Any) -> None:
    """Answer a chat with its last message, word by word; one that says "for ever" goes on until its caller leaves."""
    asked = json.loads((await receive())["body"])
    said = asked["messages"][-1]["content"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    gone = asyncio.create_task(receive())
    words = [f"{len(asked['messages'])} ", *(f"{word} " for word in said.split())]
    while words and not gone.done():
        word = words.pop(0)
        words += [word] if "for ever" in said else []
        entry = {"token": word, "logprob": -0.9 * (len(word) % 4), "top_logprobs": []}
        delta = {"choices": [{"delta": {"content": word}, "logprobs": {"content": [entry]}}]}
        await send({"type": "http.response.body", "body": event(delta), "more_body": True})
        await asyncio.sleep(0.01)
    usage = {"prompt_tokens": 3, "completion_tokens": 5, "time_to_first_token": 0.012}
    end = event({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage})
    await send({"type": "http.response.body", "body": end})


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """A logged-in window at the playground of the endpoint ``chat``."""
    with short_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_HOME", str(folder))
        with (
            gateway_under_test() as gateway, box(folder / "box", chat) as address,
            playwright.sync_playwright() as started,
        ):  # fmt: skip
            token = serve(gateway, address)
            browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            window = browser.new_page(viewport={"width": 1280, "height": 800})
            problems: list[str] = []
            window.on("console", lambda m: problems.append(m.text) if m.type in {"error", "warning"} else None)
            window.on("pageerror", lambda error: problems.append(str(error)))
            window.goto(f"{gateway.url}/console/")
            window.fill("#token", token)
            window.click("button.primary")
            window.wait_for_selector("nav")
            window.goto(f"{gateway.url}/console/endpoints/chat/playground?form=chat")
            yield window
            browser.close()
            assert problems == []


def take_picture(page: Any, name: str) -> None:
    if folder := os.environ.get("RDUKIT_PICTURES"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


def test_a_chat_streams_into_the_page_and_goes_on_after_stop(page: Any) -> None:
    page.fill("#prompt", "Tell me of tiles")
    page.click("button[value=call]")
    page.wait_for_selector(".assistant .figures")
    assert page.locator(".assistant .said").inner_text() == "1 Tell me of tiles "
    assert "5 tokens, ended by stop" in page.locator(".assistant .figures").inner_text()
    assert page.locator(".assistant .said span").first.get_attribute("title") == "16.5 %"
    assert page.input_value("#prompt") == "" and page.locator("button[value=new]").is_visible()

    page.fill("#prompt", "go on for ever")
    page.click("button[value=call]")
    stop = page.get_by_role("button", name="Stop")
    said = page.locator(".assistant .said").nth(1)
    playwright.expect(said).to_contain_text("3 go on for ever " * 4, timeout=20_000)
    take_picture(page, "playground-stream")
    assert page.locator("button[value=call]").is_disabled()
    stop.click()
    page.wait_for_selector("button[value=call]:not([disabled])")
    assert not stop.is_visible()
    assert said.inner_text().startswith("3 go on for ever 3 go"), (
        "the first message and its answer are part of the chat"
    )
    assert "Stop" in page.locator(".assistant .figures").nth(1).inner_text()

    page.fill("#prompt", "again")
    page.keyboard.press("Tab")
    page.click("button[value=call]")
    playwright.expect(page.locator(".assistant .figures")).to_have_count(3, timeout=20_000)
    assert page.locator(".assistant .said").nth(2).inner_text() == "5 again "
    take_picture(page, "playground-streamed")


def test_the_streamed_chat_has_no_barrier_by_axe(page: Any) -> None:
    page.evaluate(AXE)
    found = page.evaluate("axe.run().then(found => found.violations.map(one => [one.id, one.impact]))")
    assert [one for one in found if one[1] in {"serious", "critical"}] == []


def test_the_page_of_the_endpoint_draws_its_calls(page: Any) -> None:
    page.click("h1 + a")
    page.wait_for_selector("text=Calls in progress")
    assert page.locator("text=Latency").count() >= 1
    take_picture(page, "endpoint-load")

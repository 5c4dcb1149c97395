"""Chat templates come with models: hostile ones are refused with a reason, soon, and others are answered meanwhile."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit_serving.text.chat_template import PLAIN, ChatRenderer, ChatTemplate, find_chat_template
from support import shows

pytestmark = shows("security", "inference")

MESSAGES = [{"role": "user", "content": "hello"}]
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
async def renderer(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChatRenderer]:
    monkeypatch.setenv("RDUKIT_BOX_TEMPLATE_S", "1")
    renderer = ChatRenderer()
    yield renderer
    # Whatever it was, the next chat is answered.
    assert await renderer.render(PLAIN, MESSAGES) == "user: hello\nassistant:"
    await renderer.close()


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (LOOP, "takes longer than 1 s"),
        ("{{ 'a' * 10 ** 10 }}", "needs more than 256 MiB"),
        ("{% set a = 'x' * 10 ** 6 %}{% for i in range(99999) %}{{ a }}{% endfor %}", "more than 4194304 characters"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ 7 ** (10 ** 9) }}", "takes longer than 1 s"),
        ("{{ messages[5].content.x.y }}", "UndefinedError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ 'x'.format.__globals__.os }}", "refuses them"),
        ("{% include '/etc/passwd' %}", "refuses them"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{% for", "TemplateSyntaxError"),
        ("{{ [messages] | tojson(indent=10 ** 9) }}", "needs more than 256 MiB"),
        ("{{ strftime_now('%d' * 10 ** 8) }}", "refuses them"),
        ("{{ raise_exception('roles must alternate') }}", "refuses them: roles must alternate"),
        ("x" * (2 << 20), "expected up to 1048576"),
        ("{{ 'a' | int(base=0) + 1 }}{{ [1] | first.real }}", "refuses them"),
    ],
)  # fmt: skip
async def test_a_hostile_template_is_refused_with_its_reason(
    renderer: ChatRenderer, template: str, reason: str
) -> None:
    with pytest.raises(InvalidArgument, match="the model's chat template refuses them") as caught:
        await renderer.render(ChatTemplate(template), MESSAGES)
    assert reason in caught.value.message and len(caught.value.message) < 1200
    assert caught.value.http_status == 400


async def test_the_box_goes_on_while_a_template_computes(renderer: ChatRenderer) -> None:
    await renderer.render(PLAIN, MESSAGES)
    rendering = asyncio.create_task(renderer.render(ChatTemplate(LOOP), MESSAGES))
    turns = 0
    while not rendering.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert turns > 20
    with pytest.raises(InvalidArgument):
        await rendering


async def test_a_caller_that_goes_away_leaves_no_answer_to_the_next(renderer: ChatRenderer) -> None:
    await renderer.render(PLAIN, MESSAGES)
    rendering = asyncio.create_task(renderer.render(ChatTemplate(LOOP), MESSAGES))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    rendering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rendering


async def test_nothing_outlives_the_box(renderer: ChatRenderer) -> None:
    await renderer.render(PLAIN, MESSAGES)
    process = renderer._process
    assert process is not None
    await renderer.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


async def test_its_process_has_no_token_of_the_server(monkeypatch: pytest.MonkeyPatch, renderer: ChatRenderer) -> None:
    monkeypatch.setenv("RDUKIT_BOX_TOKEN", "of the box alone")
    await renderer.render(PLAIN, MESSAGES)
    assert renderer._process is not None
    environment = Path(f"/proc/{renderer._process.pid}/environ").read_bytes()
    assert b"of the box alone" not in environment and b"PATH=" in environment


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "[]", "\udcff"])
def test_a_damaged_configuration_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "tokenizer_config.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InvalidArgument, match="is damaged"):
        find_chat_template(tmp_path / "model.safetensors")

"""Chat templates with what published ones use, next to transformers' rendering of them."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from rdukit_serving.text.chat_template import PLAIN, ChatRenderer, ChatTemplate, find_chat_template
from support import shows

pytestmark = shows("inference")

CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": {"word": "<x> é", "most": 3}}}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "hi 'there' & <you>"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": '{"found": 1}', "tool_call_id": "c1", "name": "find"},
]
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "find", "description": "Find a wörd.", "parameters": {
        "type": "object", "properties": {"word": {"type": "string"}, "most": {"type": "integer"}}}}},
]  # fmt: skip
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

#: Each has a way in which published templates differ: loops, namespaces, tools, calls, dates, macros, whitespace.
TEMPLATES = {
    "loop controls": (
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{% continue %}{% endif %}"
        "{% if loop.index > 3 %}{% break %}{% endif %}[{{ message.role }}]{{ message.content or '' }}{{ eos_token }}"
        "{% endfor %}"
    ),
    "tools": (
        "{%- if tools %}\n    {{- '<tools>' }}\n    {%- for tool in tools %}\n        {{- '\\n' }}\n"
        "        {{- tool | tojson }}\n    {%- endfor %}\n    {{- '\\n</tools>\\n' }}\n{%- endif %}\n"
        "{%- set ns = namespace(last=-1) %}\n{%- for message in messages %}\n"
        "    {%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}\n"
        "    {%- if message.content is not none %}{{- '<' + message.role + '>' + message.content }}{% endif %}\n"
        "    {%- for call in message.tool_calls or [] %}\n        {{- call.function.name }} "
        "{{ call.function.arguments | tojson(indent=2) }}\n    {%- endfor %}\n{%- endfor %}\n{{ ns.last }}\n"
        "{%- if add_generation_prompt %}{{- '<assistant>' }}{%- endif %}\n"
    ),
    "dates and macros": (
        "{% macro shown(value, sep=', ') %}{{ value | map('upper') | join(sep) }}{% endmacro %}"
        "{%- set day = strftime_now('%d %b %Y') if strftime_now is defined else '26 Jul 2024' -%}\n"
        "Today: {{ day }}\n{{ shown(messages | map(attribute='role') | list) }}\n"
        "{{- messages[1:] | length }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}\n"
    ),
    "thinking": (
        "{% for m in messages if m.role != 'tool' %}{{ m.role }}{% if not loop.last %}\n\n{% endif %}{% endfor %}"
        "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>{% endif %}"
        "{{ reasoning_effort | default('medium') }}"
    ),
    "generation tags": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{% set x = 1 %}said{{ eos_token }}"
        "{% endgeneration %}{% else %}{{ m.content | trim }}{% endif %}{% endfor %}{{ x is defined }}"
    ),
    "json": "{{ messages | tojson(ensure_ascii=True, sort_keys=True) }}{{ tools | tojson(separators=(',', ':')) }}\n\n",
}


@pytest.fixture
async def renderer() -> AsyncIterator[ChatRenderer]:
    renderer = ChatRenderer()
    yield renderer
    await renderer.close()


@pytest.mark.parametrize("name", TEMPLATES)
async def test_a_template_gives_what_it_gives_in_transformers(renderer: ChatRenderer, name: str) -> None:
    values: dict[str, Any] = {"enable_thinking": False, "reasoning_effort": "low"}
    (expected,), _ = render_jinja_template(
        [CHAT], tools=TOOLS, chat_template=TEMPLATES[name], add_generation_prompt=True, **TOKENS, **values
    )
    found = await renderer.render(ChatTemplate(TEMPLATES[name], TOKENS), CHAT, {"tools": TOOLS, **values})
    assert found == expected


async def test_the_plain_template_shows_tools_calls_and_answers(renderer: ChatRenderer) -> None:
    text = await renderer.render(PLAIN, CHAT, {"tools": TOOLS})
    assert '"name": "find", "description": "Find a wörd."' in text
    assert '<tool_call>{"name": "find", "arguments": {"word": "<x> é", "most": 3}}</tool_call>\ntool: {"found"' in text
    assert await renderer.render(PLAIN, CHAT[:2]) == "system: Be short.\nuser: hi 'there' & <you>\nassistant:"


def test_template_and_tokens_are_found_where_tokenizers_keep_them(tmp_path: Path) -> None:
    checkpoint = tmp_path / "model.safetensors"
    assert find_chat_template(checkpoint) is PLAIN
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<old>", "unk_token": "<unk>"}))
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    configuration = {"bos_token": {"content": "<s>", "special": True}, "eos_token": "</s>", "chat_template": named}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(configuration))
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert find_chat_template(checkpoint) == ChatTemplate("plain", tokens)
    assert find_chat_template(checkpoint, has_tools=True).text == "with tools"
    (tmp_path / "chat_template.jinja").write_text("a file of its own")
    (tmp_path / "additional_chat_templates").mkdir()
    assert find_chat_template(checkpoint, has_tools=True).text == "a file of its own"
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("a file for tools")
    assert find_chat_template(checkpoint).text == "a file of its own"
    assert find_chat_template(checkpoint, has_tools=True).text == "a file for tools"

"""Messages of a chat → one prompt, by the tokenizer's template or a plain one of ours.

A template is a program of the model's author. It runs in a process of its own (``chat_process``), warm after the first
chat, with limits of memory and time.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import sha256_of_file
from rdukit.pef.checkpoint_files import check_tokenizer
from rdukit.settings import resolve
from rdukit.system.limits import small_environment
from rdukit_serving.settings import TEMPLATE_S

#: Longest file with a tokenizer's configuration, and longest answer of the process.
_MAX_CONFIGURATION: Final = 64 << 20
_MAX_LINE: Final = 64 << 20
#: Seconds for the process to begin, which are not the template's.
_START_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """Jinja template of a chat, and the special tokens that it may name (``bos_token`` …)."""

    text: str
    tokens: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """Return whether it is the plain template, which names no special token; then the tokenizer adds its own."""
        return self is PLAIN


#: For tokenizers without a template. Tools are described and called in Hermes' format. Source: ours.
PLAIN: Final = ChatTemplate(
    "{% if tools %}system: You may call these functions:\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    'To call one, answer <tool_call>{"name": NAME, "arguments": OBJECT}</tool_call> and nothing else.\n{% endif %}'
    "{% for message in messages %}{{ message.role }}: {{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}"
    "<tool_call>{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}</tool_call>"
    "{% endfor %}{{ '\n' }}{% endfor %}assistant:"
)


def find_chat_template(checkpoint: Path | None, has_tools: bool = False) -> ChatTemplate:
    """Return the template next to a checkpoint, else the plain one.

    If there are several, ``tool_use`` is for chats with tools. Source: transformers, "Chat templates".

    Raises:
        InvalidArgument: a file is damaged.
    """
    if checkpoint is None:
        return PLAIN
    return _read_template(tuple(_stamped(companion(checkpoint, name)) for name in TEMPLATE_FILES), has_tools)


def _stamped(path: Path) -> tuple[Path, int, int]:
    """Return a path with the file's size and time, which change with it; size -1 if it is missing."""
    try:
        status = path.stat()
    except OSError:
        return path, 0, -1
    return path, status.st_mtime_ns, status.st_size


@lru_cache(maxsize=16)
def _read_template(files: tuple[tuple[Path, int, int], ...], has_tools: bool) -> ChatTemplate:
    for path, _, size in files:
        if size > _MAX_CONFIGURATION:
            raise InvalidArgument(f"{path} has {size} bytes; expected up to {_MAX_CONFIGURATION}")
    (own, _, own_size), (for_tools, _, tools_size), (configuration, _, size), (special, _, special_size) = files
    if has_tools and tools_size >= 0:
        own, own_size = for_tools, tools_size
    values = _read_object(special) if special_size >= 0 else {}
    values |= _read_object(configuration) if size >= 0 else {}
    try:
        text = own.read_text() if own_size >= 0 else choose_template(values.get("chat_template"), has_tools)
    except (OSError, ValueError) as cause:
        raise InvalidArgument(f"{own} is damaged: {cause}") from cause
    return PLAIN if text is None else ChatTemplate(text, special_tokens(values))


def _read_object(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()).items())
    except (ValueError, AttributeError, RecursionError, OSError) as cause:
        raise InvalidArgument(f"{path} is damaged: {cause}") from cause


def choose_template(value: object, has_tools: bool) -> str | None:
    """Choose a template of ``tokenizer_config.json``: one text, or several with names; None if there is none."""
    if isinstance(value, list):
        named = {each.get("name"): each.get("template") for each in value if isinstance(each, dict)}
        value = (named.get("tool_use") if has_tools else None) or named.get("default")
    return value if isinstance(value, str) else None


def special_tokens(configuration: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens of a tokenizer's configuration by name; they are texts or objects with one."""
    found = {}
    for name, value in configuration.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


class ChatRenderer:
    """Renderer of templates, in a process that is started when it is first needed."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def render(
        self, template: ChatTemplate, messages: Sequence[Mapping[str, Any]],
        values: Mapping[str, Any] | None = None, *, is_turn_next: bool = True,
    ) -> str:  # fmt: skip
        """Return the prompt after which the assistant speaks; ``values`` are more variables of the template.

        ``is_turn_next`` off: the chat ends with its last message.

        Raises:
            InvalidArgument: the template refuses these messages, fails, or takes too long.
        """
        seconds = resolve(TEMPLATE_S)
        variables = {
            "bos_token": "", "eos_token": "", **template.tokens, **(values or {}), "messages": list(messages),
            "add_generation_prompt": is_turn_next,
        }  # fmt: skip
        line = json.dumps({"template": template.text, "values": variables, "seconds": seconds}).encode() + b"\n"
        async with self._lock:
            try:
                process = await self._started()
                assert process.stdin is not None and process.stdout is not None
                async with asyncio.timeout(seconds):
                    process.stdin.write(line)
                    await process.stdin.drain()
                    answer = await process.stdout.readline()
                if not answer.endswith(b"\n"):
                    raise ConnectionError
            except TimeoutError as cause:
                await self._end()
                raise _refused(f"it takes longer than {seconds:g} s (box.template_s)") from cause
            except (OSError, ValueError) as cause:
                await self._end()
                raise _refused("its process ended, perhaps for lack of memory or time") from cause
            except BaseException:  # the caller has gone: the answer would be taken for that of the next
                await self._end()
                raise
        reply = json.loads(answer)
        if "refused" in reply:
            raise _refused(reply["refused"])
        return str(reply["prompt"])

    async def close(self) -> None:
        """End the process."""
        async with self._lock:
            await self._end()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "rdukit_serving.text.chat_process",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=_MAX_LINE, start_new_session=True,
                env=small_environment(),
            )  # fmt: skip
            try:
                async with asyncio.timeout(_START_S):
                    await self._greet(self._process)
            except TimeoutError as cause:
                raise OSError("it does not start") from cause
        return self._process

    async def _greet(self, process: asyncio.subprocess.Process) -> None:
        """Wait until it is ready: its start is not the template's time."""
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"template": "", "values": {}, "seconds": _START_S}).encode() + b"\n")
        await process.stdout.readline()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())


def _refused(reason: str) -> InvalidArgument:
    return InvalidArgument(f"messages: the model's chat template refuses them: {reason}", field="messages")


#: The tokenizer, the tokens that end a text, and the number of tokens.
TOKENIZER_FILE: Final = "tokenizer.json"
GENERATION_FILE: Final = "generation_config.json"
#: Names of the tokenizers' own libraries: a template, the one for tools, one in the key ``chat_template``,
#: special tokens.
TEMPLATE_FILES: Final = (
    "chat_template.jinja", "additional_chat_templates/tool_use.jinja",
    "tokenizer_config.json", "special_tokens_map.json",
)  # fmt: skip


def companion(checkpoint: Path, name: str) -> Path:
    """Return the path of the file ``name`` next to a checkpoint. It may not exist."""
    return (checkpoint if checkpoint.is_dir() else checkpoint.parent) / name


def check_draft_tokens(checkpoint: Path, draft: Path) -> None:
    """Refuse a draft's checkpoint whose tokenizer has other tokens than the model's; a draft without a tokenizer uses
    the model's.

    Raises:
        InvalidArgument: the tokens differ, or a tokenizer is damaged.
    """
    from tokenizers import Tokenizer  # others need the names of the files only

    file, other = companion(checkpoint, TOKENIZER_FILE), companion(draft, TOKENIZER_FILE)
    check_tokenizer(draft, other if other.is_file() else file)
    if not other.is_file() or sha256_of_file(file) == sha256_of_file(other):
        return
    try:
        is_alike = Tokenizer.from_file(str(file)).get_vocab() == Tokenizer.from_file(str(other)).get_vocab()
    except Exception as cause:  # what the library raises has no other class
        raise InvalidArgument(f"{file} or {other} is damaged: {cause}") from cause
    if not is_alike:
        raise InvalidArgument("the draft's tokenizer.json differs from the model's; expected equal tokens")

"""Messages of a chat → one prompt, by the template that came with the tokenizer or a plain one of ours.

A template is a program of whoever made the model: it runs in a process of its own (``chat_process``), warm after the
first chat, with limits of memory and time.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit.settings import resolve
from rdukit_serving.settings import TEMPLATE_S

#: For tokenizers without one. Source: ours.
PLAIN: Final = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
#: Longest file with a tokenizer's configuration, and longest answer of the process.
_MAX_CONFIGURATION: Final = 64 << 20
_MAX_LINE: Final = 64 << 20
#: Seconds for the process to begin, which are not the template's.
_START_S: Final = 20.0


def find_chat_template(checkpoint: Path | None) -> str:
    """Return the template beside a checkpoint; the plain one where there is none.

    Raises:
        InvalidArgument: the file is damaged.
    """
    path = None if checkpoint is None else companion(checkpoint, CONFIGURATION_FILE)
    if path is None or not path.is_file():
        return PLAIN
    status = path.stat()
    return _read_template(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=16)
def _read_template(path: Path, changed_ns: int, size: int) -> str:
    if size > _MAX_CONFIGURATION:
        raise InvalidArgument(f"{path} has {size} bytes; legal: up to {_MAX_CONFIGURATION}")
    try:
        template = json.loads(path.read_text()).get("chat_template")
    except (ValueError, AttributeError, RecursionError, OSError) as cause:
        raise InvalidArgument(f"{path} is damaged: {cause}") from cause
    return template if isinstance(template, str) else PLAIN


class ChatRenderer:
    """Renderer of templates, in a process that is started when it is first needed."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def render(self, template: str, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the prompt after which the assistant speaks.

        Raises:
            InvalidArgument: the template refuses these messages, fails, or takes too long.
        """
        seconds = resolve(TEMPLATE_S)
        line = json.dumps({"template": template, "messages": list(messages), "seconds": seconds}).encode() + b"\n"
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
                raise _refused("its process ended; it may need too much memory or time") from cause
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
        process.stdin.write(json.dumps({"template": "", "messages": [], "seconds": _START_S}).encode() + b"\n")
        await process.stdout.readline()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())


def _refused(reason: str) -> InvalidArgument:
    return InvalidArgument(f"messages: the model's chat template refuses them: {reason}", field="messages")


#: The tokenizer; and which tokens end a text and how many the tokenizer has.
TOKENIZER_FILE: Final = "tokenizer.json"
GENERATION_FILE: Final = "generation_config.json"
#: As the tokenizers' own libraries name it; its key ``chat_template`` is a Jinja template.
CONFIGURATION_FILE: Final = "tokenizer_config.json"


def companion(checkpoint: Path, name: str) -> Path:
    """Return the path of the file ``name`` next to a checkpoint. It may not exist."""
    return (checkpoint if checkpoint.is_dir() else checkpoint.parent) / name

"""A process that renders chat templates, which come with models and may compute for ever: one JSON line in, one out.

``{"template", "values", "seconds"}`` → ``{"prompt"}`` or ``{"refused"}``. It has limits that it cannot lift, and its
parent kills it when an answer is late. It ends when its input does.

Source: transformers, "Chat templates": names of published templates in addition to Jinja's own.
"""

import json
import resource
import signal
import sys
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from rdukit.system.limits import limit_this_process

#: Memory in addition to that of a ready process.
MEMORY_BYTES: Final = 256 << 20
MAX_PROMPT: Final = 4 << 20
MAX_TEMPLATE: Final = 1 << 20


def main() -> None:
    """Answer until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the box
    environment = _make_environment()
    limit_this_process(MEMORY_BYTES)
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        _allow_seconds(float(asked["seconds"]))
        try:
            answer = {"prompt": _render(environment, asked["template"], asked["values"])}
        except MemoryError:
            answer = {"refused": f"it needs more than {MEMORY_BYTES >> 20} MiB of memory"}
        except Exception as error:  # noqa: BLE001 the border of what a stranger wrote
            kind = "" if type(error).__name__ == "TemplateError" else f"{type(error).__name__}: "
            answer = {"refused": f"{kind}{error}"[:1000]}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _make_environment() -> Any:
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Tag around the assistant's words, which marks them for training; here it is plain text."""

        tags = {"generation"}

        def parse(self, parser: Any) -> nodes.Node:
            """Return the statements in it."""
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )

    def refuse(message: str) -> str:
        raise TemplateError(message)

    def tojson(
        value: object, ensure_ascii: bool = False, indent: int | None = None,
        separators: tuple[str, str] | None = None, sort_keys: bool = False,
    ) -> str:  # fmt: skip
        # Jinja's own function escapes characters that HTML cannot contain.
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    warm = "{% for one in [1] %}{% if one %}{% continue %}{% endif %}{% endfor %}{{ strftime_now('%d %b') | tojson }}"
    for template in (warm, "{{ 1 // 0 }}", "{% for"):
        with suppress(ZeroDivisionError, TemplateError):  # what it imports, also for its errors, it has now
            environment.from_string(template).render()
    return environment


def _render(environment: Any, template: str, values: dict[str, Any]) -> str:
    if len(template) > MAX_TEMPLATE:
        raise ValueError(f"the template has {len(template)} characters; expected up to {MAX_TEMPLATE}")
    parts, length = [], 0
    for part in _compiled(environment, template).generate(**values):
        length += len(part)
        if length > MAX_PROMPT:
            raise ValueError(f"it writes more than {MAX_PROMPT} characters")
        parts.append(part)
    return "".join(parts)


@lru_cache(maxsize=8)
def _compiled(environment: Any, template: str) -> Any:
    return environment.from_string(template)


def _allow_seconds(seconds: float) -> None:
    """Limit seconds of the processor from now on: then the kernel ends this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + seconds) + 2, hard))


if __name__ == "__main__":
    main()

"""Messages of a chat → one prompt, by the template that came with the tokenizer or a plain one of ours. Pure but for
reading the file.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit_modelbox.serving.text.companions import CONFIGURATION_FILE, companion

#: For tokenizers without one. Source: ours.
PLAIN: Final = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


def find_chat_template(checkpoint: Path | None) -> str:
    """The template beside a checkpoint; the plain one where there is none.

    Raises:
        InvalidArgument: the file is damaged.
    """
    path = None if checkpoint is None else companion(checkpoint, CONFIGURATION_FILE)
    if path is None or not path.is_file():
        return PLAIN
    try:
        template = json.loads(path.read_text()).get("chat_template")
    except (ValueError, AttributeError) as cause:
        raise InvalidArgument(f"{path} is damaged: {cause}") from cause
    return template if isinstance(template, str) else PLAIN


def render_chat(template: str, messages: Sequence[Mapping[str, str]]) -> str:
    """The prompt after which the assistant speaks.

    Raises:
        InvalidArgument: the template refuses these messages.
    """
    # Not before it is needed: a box that makes no text has no use for it.
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)

    def refuse(message: str) -> str:
        raise TemplateError(message)

    environment.globals["raise_exception"] = refuse
    try:
        return environment.from_string(template).render(
            messages=list(messages), add_generation_prompt=True, bos_token="", eos_token=""
        )  # fmt: skip
    except TemplateError as cause:
        raise InvalidArgument(f"messages: the model's chat template refuses them: {cause}") from cause

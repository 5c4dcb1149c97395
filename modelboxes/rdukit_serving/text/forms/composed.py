"""Composed forms: thinking first, then a call of a tool or a text of a form. Pure.

Parts are llguidance's Lark with two additions, which ``spelling`` resolves with the tokenizer. ``@"TEXT"`` is a text,
as one token if the tokenizer has it; ``@until "TEXT"`` is everything up to it.
"""

import json
import re
from typing import Final

from rdukit_serving.text.constraints import LITERAL, FormKind, TextForm, json_part
from rdukit_serving.text.reasoning import Thinking

#: Names of the parts' rules, outside of literals: grammars of callers may have them, too.
_NAMES: Final = re.compile(LITERAL.pattern + r"|(?<![\w%])(?:start|answer|thinking|blanks|opened|calls|body)(?![\w-])")


def compose(thinking: Thinking | None, body: TextForm | None, calls: TextForm | None, opener: str = "") -> TextForm:
    """Return the form of a text that may think first, and then is a call after ``opener`` or has a form.

    At least one of ``body`` and ``calls`` is given.

    Raises:
        InvalidArgument: the form is too long.
    """
    answers = ([] if calls is None else ["opened"]) + ([] if body is None else ["body"])
    lines = [f"answer: {' | '.join(answers)}"]
    if thinking is None or thinking.has_ended:
        lines.insert(0, "start: answer")
    else:
        begins = "" if thinking.has_begun else f"@{_written(thinking.marks.begin)} "
        thought = f"{begins}thinking blanks"
        lines[:0] = [
            f"start: {thought} answer" if thinking.has_begun else f"start: ({thought})? answer",
            f"thinking: @until {_written(thinking.marks.end)}", r"blanks: /\n{0,3}/",
        ]  # fmt: skip
    if calls is not None:
        lines += [f"opened: @{_written(opener)} calls" if opener else "opened: calls", _renamed(calls.text, "calls")]
    if body is not None:
        lines.append(_lark(body))
    field = body.field if body is not None else calls.field if calls is not None else "tools"
    return TextForm(FormKind.PARTS, "\n".join(lines), field)


def _lark(form: TextForm) -> str:
    """Return a form as a rule ``body``, with the rules that it needs."""
    if form.kind == FormKind.JSON:
        return f"body: {json_part(form.text)}"
    if form.kind == FormKind.REGEX:
        pattern = re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", form.text, flags=re.DOTALL)
        return f"body: /{pattern}/".replace("\n", r"\n")
    return _renamed(form.text, "body")


def _renamed(grammar: str, name: str) -> str:
    """Return a grammar that begins with the rule ``name``; its other rules get names that the parts lack."""

    def rename(found: re.Match[str]) -> str:
        word = found[0]
        return word if word[0] in '"/' else name if word == "start" else f"{name}_{word}"

    return _NAMES.sub(rename, grammar)


def _written(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)

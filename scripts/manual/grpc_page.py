"""Reference of the gRPC services, from the ``.proto`` files: services, methods, messages and their comments."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from manual.contents import TREE

#: Files in the order of the page, each with where its services answer.
FILES: Final = {
    "jobs": "The gateway, where `gateway.grpc_address` is set. [jobs.md](jobs.md) explains jobs, "
    "[permissions.md](permissions.md) has the scopes.",
    "modelbox": "Every ModelBox, at its gRPC port. [operations.md](operations.md) shows calls.",
    "inference": "Every ModelBox that serves, and `rdukit serve`. [inference.md](inference.md) shows calls.",
    "snml": "The node, at `/var/snml.sock` and 127.0.0.1:50053. [snml.md](snml.md) shows calls.",
}
INTRODUCTION: Final = """Every gRPC service, method and message. `core/rdukit/proto` has the same as
`.proto` files, from which any language generates a client. REST has the same permissions, limits and messages.
"""
_RPC: Final = re.compile(r"rpc (\w+)\((stream )?([\w.]+)\) returns \((stream )?([\w.]+)\)")
_FIELD: Final = re.compile(r"(?:(optional|repeated) )?(map<[^>]+>|[\w.]+) (\w+) = (\d+)")
_OPEN: Final = re.compile(r"(service|message|enum|oneof) (\w+) \{(\}?)")
_VALUE: Final = re.compile(r"(\w+) = (\d+);")


@dataclass(slots=True)
class Block:
    """A service, message or enum: its rows are methods, fields or values."""

    kind: str
    name: str
    comment: str
    rows: list[tuple[str, ...]] = field(default_factory=list)


def grpc_page(head: str) -> str:
    """Return the page ``grpc.md``; ``head`` is the comment that says that the page is generated."""
    blocks = ["# gRPC", head, INTRODUCTION]
    for name, where in FILES.items():
        text = (TREE / f"core/rdukit/proto/{name}.proto").read_text()
        package = re.search(r"^package (.+);", text, re.MULTILINE)
        assert package is not None, name
        blocks += [f"## {name}.proto", f"{where} The package is `{package[1]}`.", _file_comment(text)]
        blocks += [each for block in read_blocks(text) for each in _block_lines(block)]
    return "\n\n".join(block.strip("\n") for block in blocks if block) + "\n"


def read_blocks(text: str) -> Iterator[Block]:
    """Yield the services, messages and enums of a ``.proto`` file in their order (pure).

    A comment belongs to what follows it. A nested type has its outer one's name before its own: ``Outer.Inner``. The
    fields of a ``oneof`` are fields of its message.
    """
    found: list[Block] = []
    open_blocks: list[Block] = []
    comment: list[str] = []
    for line in map(str.strip, text.partition("\npackage ")[2].splitlines()[1:]):
        if line.startswith("//"):
            comment.append(_as_markdown(line))
            continue
        words = "" if comment and comment[0].startswith("--") else " ".join(comment)
        code, _, trailing = line.partition("//")
        words = " ".join(filter(None, (words, _as_markdown(trailing))))
        if start := _OPEN.match(code):
            if start[1] == "oneof":
                open_blocks.append(open_blocks[-1])
            else:
                name = ".".join([*(block.name for block in open_blocks[-1:]), start[2]])
                open_blocks.append(Block(start[1], name, words))
                found.append(open_blocks[-1])
            if start[3]:
                open_blocks.pop()
        elif code.startswith("}"):
            open_blocks.pop()
        elif row := _row(code, words):
            open_blocks[-1].rows.append(row)
        if line:
            comment = []
    yield from found


def _row(code: str, words: str) -> tuple[str, ...] | None:
    """Return the cells of a method, a field or a value; ``None``: the line has none, such as ``reserved``."""
    if rpc := _RPC.match(code):
        return f"`{rpc[1]}`", f"`{rpc[2] or ''}{rpc[3]}`", f"`{rpc[4] or ''}{rpc[5]}`", words
    if member := _FIELD.match(code):
        return member[4], f"`{member[3]}`", f"`{' '.join(filter(None, (member[1], member[2])))}`", words
    if value := _VALUE.match(code):
        return value[2], f"`{value[1]}`", words
    return None


def _file_comment(text: str) -> str:
    """Return the comment at a file's head as paragraphs."""
    return "\n".join(_as_markdown(line) for line in text.partition("\nsyntax")[0].splitlines())


def _as_markdown(comment: str) -> str:
    """Return a line of a comment as Markdown that shows it."""
    return re.sub(r"([<*_])", r"\\\1", comment.strip().removeprefix("//").strip())


def _block_lines(block: Block) -> Iterator[str]:
    """Yield a block's heading, comment and table. Messages and enums are headings below their file's services."""
    heads = {
        "service": ("method", "request", "answer", "what"),
        "message": ("number", "field", "type", "what"),
        "enum": ("number", "value", "what"),
    }[block.kind]
    yield f"### {block.name}" if block.kind == "service" else f"**{block.kind} `{block.name}`**"
    yield block.comment
    if block.rows:
        rows = [heads, ("---",) * len(heads), *block.rows]
        yield "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)

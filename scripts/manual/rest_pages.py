"""Reference of the gateway's REST interface for the site, from its OpenAPI document: one page for each group."""

import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from manual.cli_pages import escaped, toctree

Document = Mapping[str, Any]


def read_document() -> Document:
    """Return the OpenAPI document of a gateway, which is built over an empty home folder and never started."""
    from rdukit_platform.api.context import open_platform
    from rdukit_platform.gateway.app import create_app
    from rdukit_platform.settings import Home

    with tempfile.TemporaryDirectory() as folder:
        platform = open_platform(Home(Path(folder)))
        document: Document = create_app(platform).openapi()
        platform.audit.close()
        platform.notifier.close()
        platform.database.close()
    return document


def rest_pages(document: Document) -> dict[str, str]:
    """Return Markdown by place in the site: ``rest``, the list of routes, and ``rest/GROUP`` for each group."""
    groups: dict[str, list[tuple[str, str, Document]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    names = {title: title.replace(" ", "-") for title in sorted(groups)}
    lines = [
        "# REST",
        f"The gateway of the platform has {sum(map(len, groups.values()))} routes. A request carries a token: "
        "`Authorization: Bearer TOKEN` ([identity](identity.md)). [Permissions](permissions.md) has what each route "
        "asks for, [errors](errors.md) every error. A running gateway has its OpenAPI document at `/openapi.json`.",
    ]
    pages: dict[str, str] = {}
    for title, name in names.items():
        rows = [f"| `{method} {path}` | {escaped(each['summary'])} |" for method, path, each in groups[title]]
        lines += [f"## [{title}](rest/{name}.md)", "\n".join(["| route | what it does |", "| --- | --- |", *rows])]
        blocks = [f"# REST: {title}"]
        for method, path, operation in groups[title]:
            blocks += _operation_blocks(method, path, operation, document)
        pages[f"rest/{name}"] = "\n\n".join(blocks) + "\n"
    pages["rest"] = "\n\n".join([*lines, toctree("\n".join(f"rest/{name}" for name in names.values()))]) + "\n"
    return pages


def _operation_blocks(method: str, path: str, operation: Document, document: Document) -> Iterator[str]:
    yield f"## {method} {_plain_path(path)}"
    description = operation.get("description") or operation["summary"]
    yield from (escaped(part) for part in re.split(r"\n\s*\n", description.strip()))
    if given := operation.get("parameters"):
        rows = [
            f"| `{each['name']}` | {each['in']} | {_kind(each['schema'])} | {_default(each['schema'], each)} "
            f"| {escaped(each.get('description', ''))} |"
            for each in given
        ]
        yield "\n".join(["| parameter | in | type | default | what |", "| --- " * 5 + "|", *rows])
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield from _fields(f"Body, `{kind}`", content.get("schema", {}), document)
    for status, answer in operation["responses"].items():
        if status.startswith("2"):
            for kind, content in answer.get("content", {}).items():
                yield from _fields(f"Answer {status}, `{kind}`", content.get("schema", {}), document)


def _plain_path(path: str) -> str:
    return escaped(path)


def _fields(title: str, schema: Document, document: Document) -> Iterator[str]:
    """Yield what a body has: its fields, or its type if it is no object with fields."""
    name = schema.get("$ref", "").rpartition("/")[2]
    found = document["components"]["schemas"].get(name, schema)
    fields = found.get("properties")
    yield f"**{title}:** {_kind(schema)}"
    if fields:
        required = found.get("required", ())
        rows = [
            f"| `{key}` | {_kind(field)} | {_default(field, {'required': key in required})} "
            f"| {escaped(field.get('description', ''))} |"
            for key, field in fields.items()
        ]
        yield "\n".join(["| field | type | default | what |", "| --- " * 4 + "|", *rows])


def _default(schema: Document, owner: Document) -> str:
    if "default" in schema:
        return "–" if schema["default"] in (None, "") else f"`{schema['default']}`"
    return "required" if owner.get("required") else "–"


def _kind(schema: Document) -> str:
    """Return a JSON schema's type in words."""
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(_kind(each) for each in schema[key] if each.get("type") != "null")
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    return str(schema.get("type", "any"))

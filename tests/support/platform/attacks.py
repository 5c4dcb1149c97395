"""Attacks on a gateway: the largest legal and illegal bodies of every route, slow writers, slow readers, connections.

``python attacks.py`` reads JSON from stdin (``AttackPlan``), attacks until its time is up, and prints how many answers
it got by status. It needs the standard library only, so that it is a process of little memory.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

#: Depth to which schemas are followed, and entries of lists and mappings that may have any number.
MAX_DEPTH: Final = 6
ENTRIES: Final = 20
#: Seconds between two bytes of a slow writer or reader.
DRIP_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class AttackedRoute:
    """A route with its parameters filled in, and the schema of its JSON body; None: it takes no JSON."""

    method: str
    path: str
    schema: Mapping[str, Any] | None = None


def targets_of(document: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[AttackedRoute]:
    """Yield every operation of an OpenAPI document (pure).

    Args:
        names: values for parameters of paths; others are ``x``.
    """
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            filled = path
            for part in path.split("{")[1:]:
                name = part.partition("}")[0]
                filled = filled.replace(f"{{{name}}}", names.get(name, "x"))
            content = operation.get("requestBody", {}).get("content", {})
            yield AttackedRoute(method.upper(), filled, content.get("application/json", {}).get("schema"))


def largest(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int = 0) -> Any:
    """Return a value that a schema takes, with all keys, long texts and many entries (pure)."""
    while "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return largest(next(one for one in schema[union] if one.get("type") != "null"), definitions, depth)
    if "enum" in schema or "const" in schema:
        return schema.get("const", schema.get("enum", [None])[-1])
    match schema.get("type"):
        case "object" if depth < MAX_DEPTH:
            found = {name: largest(each, definitions, depth + 1) for name, each in schema.get("properties", {}).items()}
            extra = schema.get("additionalProperties")
            if isinstance(extra, Mapping):
                most = min(schema.get("maxProperties", ENTRIES), ENTRIES)
                found |= {f"k{number}": largest(extra, definitions, depth + 1) for number in range(most)}
            return found
        case "array" if depth < MAX_DEPTH:
            item = largest(schema.get("items", {}), definitions, depth + 1)
            return [item] * min(schema.get("maxItems", ENTRIES), ENTRIES)
        case "string":
            return "x" * min(schema.get("maxLength", 1000), 1000)
        case "integer" | "number":
            return schema.get("maximum", 1)
        case "boolean":
            return True
        case "object":
            return {}
        case "array":
            return []
    return "x"


def bodies_of(kind: str, target: AttackedRoute, definitions: Mapping[str, Any], size: int) -> bytes:
    """Return a body of up to ``size`` bytes for a route (pure): ``legal``, or one of the illegal kinds."""
    match kind:
        case "legal":
            return json.dumps({} if target.schema is None else largest(target.schema, definitions)).encode()[:size]
        case "unknown keys":
            keys = ",".join(f'"k{number:08}":0' for number in range((size - 2) // 14))
            return b"{" + keys.encode() + b"}"
        case "wrong entries":
            body = largest(target.schema, definitions) if target.schema is not None else {}
            wrong = {name: [0] * 10 for name in body} if isinstance(body, dict) else {}
            entries = "[" + ",".join("[]" for _ in range(max((size - 1000) // 3, 1))) + "]"
            names = [*wrong, "x"]
            return (json.dumps(wrong)[:-1] + f"{',' if wrong else ''}{json.dumps(names[0] + '_')}:{entries}}}").encode()
        case "deep":
            return b"[" * size
        case "one text":
            return b'{"box":"' + b"x" * (size - 10) + b'"}'
        case "no JSON":
            return b"\xff" * size
    raise ValueError(f"{kind!r} is no kind of body")


@dataclass(frozen=True, slots=True)
class AttackPlan:
    """Requests that are sent again and again by so many connections, for so many seconds."""

    host: str
    port: int
    seconds: float
    connections: int
    #: Heads without length, and bodies.
    requests: Sequence[tuple[str, str]]
    #: ``fast``; ``slow-write`` and ``slow-read`` let each byte or block wait; ``idle`` sends half a head.
    manner: str = "fast"


def heads_of(target: AttackedRoute, token: str | None) -> str:
    """Return the head of a request, without its end (pure)."""
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    return (
        f"{target.method} {target.path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\n{authorization}"
    )


async def attack(plan: AttackPlan) -> Counter[str]:
    """Attack until the time is up. Returns the number of answers by status; ``none``: the connection ended."""
    statuses, end = Counter[str](), time.monotonic() + plan.seconds
    prepared = [
        f"{head}Content-Length: {len(body.encode('latin-1'))}\r\n\r\n".encode() + body.encode("latin-1")
        for head, body in plan.requests
    ]

    async def one(number: int) -> None:
        while time.monotonic() < end:
            with suppress(OSError, TimeoutError, ValueError):
                async with asyncio.timeout(max(end - time.monotonic(), 0.01)):
                    statuses[await exchange(plan, prepared[number % len(prepared)])] += 1
            number += plan.connections

    await asyncio.gather(*(one(number) for number in range(plan.connections)))
    return statuses


async def exchange(plan: AttackPlan, request: bytes) -> str:
    """Send one request in the plan's manner. Returns the answer's status."""
    reader, writer = await asyncio.open_connection(plan.host, plan.port, limit=1 << 16)
    try:
        if plan.manner == "idle":
            writer.write(request[:20])
            await asyncio.sleep(plan.seconds)
            return "none"
        if plan.manner == "slow-write":
            writer.write(request[: len(request) // 2])
            for byte in request[len(request) // 2 :][:100]:
                await asyncio.sleep(DRIP_S)
                if writer.is_closing():
                    break
                writer.write(bytes([byte]))
                await writer.drain()  # tells whether the gateway has closed it
            return "none"
        writer.write(request)
        line = await reader.readline()
        status = line.split()[1].decode() if line.startswith(b"HTTP/1.1 ") else "none"
        while await reader.read(1 << 16 if plan.manner == "fast" else 1024):
            if plan.manner == "slow-read":
                await asyncio.sleep(DRIP_S)
        return status
    finally:
        writer.close()


def main() -> None:
    """Attack as stdin says."""
    plan = AttackPlan(**json.load(sys.stdin))
    print(json.dumps(asyncio.run(attack(plan))))


def encode(plan: AttackPlan) -> str:
    """Return what ``main`` reads."""
    return json.dumps(asdict(plan))


if __name__ == "__main__":
    main()

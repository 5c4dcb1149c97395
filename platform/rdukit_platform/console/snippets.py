"""Snippets that read one thing of the platform from a shell, from Python and with curl (pure)."""

from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import quote as quote_url

_PYTHON: Final = """from rdukit_platform.client import Platform

platform = Platform("{address}")
{variable} = platform.{collection}.get("{key}")
{use}"""


class Readable(Enum):
    """Kinds of things in snippets: client collection and route, command, and a line of Python for one.

    A value has the collection's name in the Python client and in REST, the command, and a line of Python about the
    variable, which has the member's name.
    """

    JOB = ("jobs", "rdukit job show {key}", "print(job.state, job.result)")
    PIPELINE = (
        "pipelines",
        "rdukit pipeline show {key}",
        "print(pipeline.state, {step: job.state for step, job in pipeline.jobs.items()})",
    )
    SWEEP = ("sweeps", "rdukit sweep show {key}", "print(sweep.state, sweep.info.counts, sweep.info.best)")
    ARTIFACT = ("artifacts", "rdukit artifact get {key} --output {key}", 'artifact.download("{key}")')
    ENDPOINT = ("endpoints", "rdukit endpoint show {key}", "print(endpoint.info.state, endpoint.url)")


@dataclass(frozen=True, slots=True)
class Snippet:
    """Text to copy, and its language or program."""

    title: str
    text: str


def snippets_of(kind: Readable, key: str, address: str) -> tuple[Snippet, ...]:
    """Return examples that read a thing: in a shell, in Python and with curl.

    Args:
        key: its id, or an endpoint's name.
        address: of the gateway, without a slash at its end.
    """
    collection, command, use = kind.value
    python = _PYTHON.format(
        variable=kind.name.lower(), address=address, collection=collection, key=key, use=use.replace("{key}", key)
    )
    url = f"{address}/v1/{collection}/{quote_url(key, safe='')}"
    return (
        Snippet("Shell", command.format(key=key)),
        Snippet("Python", python),
        Snippet("curl", f'curl -s -H "Authorization: Bearer $RDUKIT_TOKEN" {url}'),
    )

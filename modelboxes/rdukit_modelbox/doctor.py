"""Findings of ``rdukit doctor`` and lines of ``rdukit status`` about stand-alone boxes."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rdukit.cli.status import PartStatus
from rdukit.doctor.cli import Finding, FindingLevel
from rdukit.settings import resolve
from rdukit_serving.settings import HOSTS, TOKENS, running_file


def check_boxes() -> Iterator[Finding]:
    """Report whether boxes require a token."""
    tokens, hosts = resolve(TOKENS), resolve(HOSTS)
    mode = Path(tokens).stat().st_mode & 0o077 if tokens and Path(tokens).exists() else 0
    yield tokens_finding(tokens, hosts, mode)


def tokens_finding(tokens: str, hosts: str, others_may: int) -> Finding:
    """Judge the settings of a box's callers (pure). ``others_may``: rights of other users on the tokens' file."""
    if tokens and others_may:
        return Finding("box.tokens", FindingLevel.BAD, f"other users may read {tokens}", f"chmod 600 {tokens}")
    if tokens:
        return Finding("box.tokens", FindingLevel.GOOD, f"boxes require a token from {tokens}")
    if hosts:
        what = f"boxes answer {hosts} without a token"
        return Finding("box.tokens", FindingLevel.BAD, what, f"name a file with tokens in {TOKENS.variable}")
    what = (
        "a manually started box requires no token and answers loopback names, so every user of this machine can call it"
    )
    return Finding("box.tokens", FindingLevel.WARN, what, f"name a file with tokens in {TOKENS.variable}")


def report_boxes() -> Iterator[PartStatus]:
    """Report each box that ``rdukit box run`` serves from this home folder."""
    found = []
    for file in sorted(running_file(0).parent.glob("*.json")):
        with suppress(OSError, ValueError, KeyError):
            one = json.loads(file.read_bytes())
            # A killed box leaves its file behind.
            command = Path(f"/proc/{one['pid']}/cmdline").read_bytes()
            if b"box" in command or b"serve" in command:
                found.append(PartStatus("box", "running", f"{one['box']} {one['rest']}, process {one['pid']}", one))
    yield from found or [PartStatus("box", "stopped", "none running; start one: rdukit box run logreg")]

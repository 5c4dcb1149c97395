"""Figures as JSON, for the benchmarks that compare with no peer; the others are ``rdukit_zoo.comparisons``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rdukit.files.atomic import write_json_atomic
from rdukit_zoo.comparisons.machine import describe_machine


def write_json(path: str, value: Mapping[str, Any]) -> None:
    """Write figures with the machine's description."""
    write_json_atomic(Path(path), {"machine": describe_machine(), **value})

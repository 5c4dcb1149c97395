"""The routes of this machine: the setting's, or measured once for each processor and torch, and kept in a file."""

import json
import logging
from dataclasses import asdict
from pathlib import Path

import torch

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_atomic
from rdukit.settings import home_folder, resolve
from rdukit.system.cpu import cpu_signature, has_avx512_bf16
from rdukit_compiler.backend.cpp_compiler import find_cpp_compiler
from rdukit_compiler.backend.measure_routes import measure_routes
from rdukit_compiler.backend.routes import Routes, parse_routes
from rdukit_compiler.settings import ROUTES

logger = logging.getLogger(__name__)


def load_routes() -> Routes:
    """The routes of this machine: the setting's, or measured once for each processor and torch and kept.

    Raises:
        InvalidArgument: the setting names a way that does not exist, or not on this processor.
    """
    asked = resolve(ROUTES)
    if asked:
        routes = parse_routes(asked)
        if routes.linear == "own" and not has_avx512_bf16():
            raise InvalidArgument("route linear=own needs a processor with avx512_bf16; legal here: linear=aten")
        return routes
    path = home_folder() / "machine" / f"routes-{cpu_signature()}-{torch.__version__.replace('+', '-')}.json"
    kept = _read(path)
    if kept is None:
        measured = measure_routes()
        kept = _read(path) or measured  # another process may have measured meanwhile: all take one answer
        try:
            words = asdict(kept)
            if find_cpp_compiler() is None:
                for own in ("few", "rows", "attention", "linear", "convolution"):
                    del words[own]  # not measured
            write_atomic(path, json.dumps(words).encode())
        except OSError as cause:
            logger.warning("routes are measured again next time path=%s reason=%s", path, cause)
    return kept


def _read(path: Path) -> Routes | None:
    try:
        value = json.loads(path.read_bytes())
        needed = {"bf16", "f32"} if find_cpp_compiler() is None else asdict(Routes()).keys()
        if not needed <= value.keys():
            return None
        return parse_routes(",".join(f"{dtype}={value[dtype]}" for dtype in asdict(Routes()) if dtype in value))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidArgument):
        return None

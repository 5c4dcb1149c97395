"""From a program's options to a compile: names, folders, logs, metadata.

Source: SDK reference 6.1, 21; compiler reference 1.5, 1.7.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rdukit.errors import InvalidArgument
from rdukit.files import write_atomic, write_json_atomic
from rdukit.settings import resolve
from rdukit_compiler.options import CompileOptions
from rdukit_compiler.pipeline import TracedGraph, compile_graphs
from rdukit_compiler.report import ConsoleReporter
from rdukit_compiler.settings import ARCH, KERNELS, PRECISION


def compile_traced(
    graphs: Sequence[TracedGraph], name: str, config: Mapping[str, Any], inference: bool, metadata: Mapping[str, Any],
    regions: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """Compile traced graphs as ``config`` says; returns the PEF's path.

    ``config`` holds a program's parsed options (``vars(args)``); what it does not name takes its default.
    ``regions``: tensor → device memory region, where it is not the tensor's own.
    """
    pef_name = str(config.get("pef_name") or default_pef_name(name))
    folder = Path(str(config.get("output_folder") or "out")) / pef_name
    options = CompileOptions(
        name=name,
        pef_path=folder / f"{pef_name}.pef",
        mode=optimization_mode(config),
        arch=str(config.get("arch") or resolve(ARCH)),
        num_tiles=max(int(config.get("num_tiles") or 0), 0),
        precision=str(config.get("precision") or resolve(PRECISION)),
        inference=inference,
        rules=Path(rules) if (rules := config.get("optimization_rules")) else None,
        kernels=resolve(KERNELS),
        regions=dict(regions or {}),
        metadata=_embedded(metadata, config),
    )
    options.check()
    quiet = str(config.get("log_level") or "info").lower() in {"error", "critical", "none"}
    reporter = ConsoleReporter(quiet)
    if not quiet:
        print(f"[Info][SAMBA]# Placing log files in {folder / pef_name}.samba.log", flush=True)
    path = compile_graphs(graphs, options, reporter)
    write_atomic(folder / f"{pef_name}.samba.log", "".join(line + "\n" for line in reporter.lines).encode())
    write_json_atomic(folder / f"{pef_name}.configs", {k: _jsonable(v) for k, v in sorted(config.items())})
    return str(path)


def default_pef_name(name: str) -> str:
    """Application name, time and process id."""
    application = Path(sys.argv[0]).stem or name
    return f"{application}_{time.strftime('%m_%d_%H_%M_%S')}_{os.getpid()}"


def optimization_mode(config: Mapping[str, Any]) -> str:
    """``o0``, ``o1`` or ``o3`` from any spelling of the options; o3 if none is given."""
    for mode in ("o0", "o1", "o3"):
        if config.get(mode):
            return mode
    text = str(config.get("optim_level") or config.get("mode") or "o3").lower().lstrip("-")
    text = text if text.startswith("o") else f"o{text}"
    if text == "o1hd":
        return "o1"
    if text not in {"o0", "o1", "o3"}:
        raise InvalidArgument(
            f"optimisation level {text!r} is not legal; legal: o0, o1, o3 (--o0, -o1, --optim-level o1)"
        )
    return text


def _embedded(metadata: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """What ``get_pef_info`` finds later: the program's metadata, over all its options."""
    found = {key: _jsonable(value) for key, value in config.items()}
    found.update({str(key): _jsonable(value) for key, value in metadata.items()})
    return found


def _jsonable(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return str(value)

"""From a program's options to a compile: names, folders, logs, metadata.

Source: SDK reference 6.1, 21; compiler reference 1.5, 1.7.
"""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_atomic, write_json_atomic
from rdukit.pef import read_pef
from rdukit.pef.picture import draw_pef
from rdukit.settings import resolve
from rdukit_compiler.options import CompileOptions
from rdukit_compiler.pipeline import TracedGraph, compile_graphs
from rdukit_compiler.reports import ConsoleReporter
from rdukit_compiler.settings import ARCH, HOST_FALLBACK, KERNELS, PRECISION
from sambaflow.sessions.data_parallel import is_switched_on


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
        precision=_precision(config),
        weight_dtype=str(config.get("weight_dtype") or ""),
        inference=inference,
        data_parallel=is_switched_on(config.get("data_parallel")),
        replicas=int(config.get("world_size") or 1),
        graphamp=str(config["graphamp_preset"]) if config.get("graphamp_preset") else None,
        mixed_precision_families=_words(config.get("enable_mixed_precision_ops")),
        accumulates=not inference and accumulation_steps(config) > 1,
        rules=_paths(config, "optimization_rules"),
        heuristics=_paths(config, "heuristics"),
        human_decision=Path(decided) if (decided := config.get("mac_human_decision")) else None,
        kernels=resolve(KERNELS),
        host_fallback=resolve(HOST_FALLBACK, True if config.get("host_fallback") else None),
        regions=dict(regions or {}),
        metadata=_embedded(metadata, {**config, **read_expert_knobs(config)}),
    )
    options.check()
    check_batches(config)
    quiet = str(config.get("log_level") or "info").lower() in {"error", "critical", "none"}
    reporter = ConsoleReporter(quiet)
    if not quiet:
        print(f"[Info][SAMBA]# Placing log files in {folder / pef_name}.samba.log", flush=True)
        print(f"[Info][MAC]# Placing log files in {folder / pef_name}.mac.log", flush=True)
    with reporter:
        path = compile_graphs(graphs, options, reporter)
    write_atomic(folder / f"{pef_name}.samba.log", "".join(line + "\n" for line in reporter.lines).encode())
    write_json_atomic(folder / f"{pef_name}.configs", {k: _jsonable(v) for k, v in sorted(config.items())})
    if config.get("plot"):
        write_atomic(folder / f"{pef_name}.svg", draw_pef(read_pef(path).pef).encode())
    return str(path)


def _precision(config: Mapping[str, Any]) -> str:
    if config.get("precision") is None and config.get("disable_bf16_conversion") is True:
        return "f32"
    return str(config.get("precision") or resolve(PRECISION))


def check_batches(config: Mapping[str, Any]) -> None:
    """Microbatches divide the batch: on the chip they follow each other through the pipeline of a section.

    Their size has no effect on results. Source: compiler reference 4.1.

    Raises:
        InvalidArgument: they do not.
    """
    batch, microbatch = config.get("batch_size"), config.get("microbatch_size")
    if isinstance(batch, int) and isinstance(microbatch, int) and (microbatch < 1 or batch % microbatch):
        raise InvalidArgument(
            f"--microbatch-size {microbatch} is not legal with --batch-size {batch}; legal: a size that divides it"
        )


def read_expert_knobs(config: Mapping[str, Any]) -> dict[str, Any]:
    """What ``--compiler-configs-file`` holds, to be recorded; the knobs have no effect here.

    Raises:
        InvalidArgument: the file does not exist, or is not a JSON object.
    """
    path = config.get("compiler_configs_file")
    if not path:
        return {}
    try:
        found = json.loads(Path(str(path)).read_text())
    except (OSError, ValueError) as cause:
        raise InvalidArgument(f"--compiler-configs-file {path}: {cause}; legal: a file with a JSON object") from cause
    if not isinstance(found, dict):
        raise InvalidArgument(f"--compiler-configs-file {path} holds {type(found).__name__}; legal: a JSON object")
    return {"compiler_configs": found}


def _words(option: Any) -> tuple[str, ...]:
    """An option that is a list, or a text of words, as words."""
    if isinstance(option, str):
        return tuple(option.replace(",", " ").split())
    return tuple(str(word) for word in option) if isinstance(option, list | tuple | set) else ()


def _paths(config: Mapping[str, Any], option: str) -> tuple[Path, ...]:
    """An option that is one file, or a list of files.

    Raises:
        InvalidArgument: it is something else.
    """
    given = config.get(option) or ()
    listed = [given] if isinstance(given, str | Path) else given
    if not isinstance(listed, list | tuple) or not all(isinstance(path, str | Path) for path in listed):
        raise InvalidArgument(f"{option} is {given!r}; legal is the path of a file, or a list of paths")
    return tuple(map(Path, listed))


def accumulation_steps(config: Mapping[str, Any]) -> int:
    """Backwards before one optimizer step, under either spelling of the option.

    Raises:
        InvalidArgument: it is no positive number.
    """
    given = [config[key] for key in ("grad_accumulation_steps", "gradient_accumulation_steps") if config.get(key)]
    try:
        steps = max([int(value) for value in given], default=1)
    except (TypeError, ValueError) as cause:
        raise InvalidArgument(f"grad_accumulation_steps is {given!r}; legal: a positive number") from cause
    return max(steps, 1)


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

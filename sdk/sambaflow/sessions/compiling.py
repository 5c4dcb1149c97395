"""Compilation from a program's options: names, folders, logs, metadata.

Source: SDK reference 6.1, 21; compiler reference 1.5, 1.7.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save

from rdukit.files.atomic import write_atomic, write_json_atomic
from rdukit.pef import read_pef
from rdukit.pef.model import CONSTANTS, UNSAVED_STATE
from rdukit.pef.picture import draw_pef
from rdukit.settings import KERNELS, resolve
from rdukit.telemetry.model import Attribute
from rdukit.telemetry.spans import span
from rdukit_compiler import (
    ARCH,
    HOST_FALLBACK,
    PRECISION,
    CompileOptions,
    ConsoleReporter,
    ModelGraph,
    TracedGraph,
    compile_graphs,
)
from rdukit_runtime.settings import PROFILE_OUTPUT_FOLDER
from sambaflow.sessions.data_parallel import is_switched_on
from sambaflow.sessions.options import (
    accumulation_steps,
    check_batches,
    default_pef_name,
    jsonable,
    model_parallel,
    optimization_mode,
    paths,
    read_expert_knobs,
    words,
)
from sambaflow.tracing.tracer import TracedModel

#: ``log_level`` of callers other than SambaFlow programs: it prints no messages, and the PEF does not record it.
SILENT: Final = "none"
#: Receiver of phases and counts of compiles inside ``followed_compiles``: ``follow`` of ``ConsoleReporter``.
_FOLLOW: Final[ContextVar[Callable[[str, int, int], None] | None]] = ContextVar("follow", default=None)
#: Maximum bytes of a value that a PEF embeds.
_MAX_CONSTANT_BYTES: Final = 1 << 20


@contextmanager
def followed_compiles(follow: Callable[[str, int, int], None]) -> Iterator[None]:
    """Let compiles of this thread report to ``follow``: phase, count so far, and total.

    A phase without a count reports 0 of 0. Any thread may call ``follow``.
    """
    token = _FOLLOW.set(follow)
    try:
        yield
    finally:
        _FOLLOW.reset(token)


def embed_constants(
    metadata: Mapping[str, Any], traced: Iterable[TracedModel], graphs: Iterable[ModelGraph]
) -> Mapping[str, Any]:  # fmt: skip
    """Return a PEF's metadata with the values that ``graphs`` read and that checkpoints lack.

    Values without data, and large ones, are only named; a server then refuses the PEF.
    """
    read = {name for graph in graphs for operator in graph.operators for name in operator.inputs}
    known: dict[str, torch.Tensor] = {}
    names: set[str] = set()
    for model in traced:
        for symbol, name in model.unsaved.items():
            if symbol not in read:
                continue
            value = model.state[symbol].detach()
            if value.is_meta or value.is_complex() or value.nbytes > _MAX_CONSTANT_BYTES:
                names.add(name)
            else:
                known[symbol] = value.clone(memory_format=torch.contiguous_format)
    found = dict(metadata)
    if known:
        found[CONSTANTS] = base64.b64encode(save(known)).decode()
    if names:
        found[UNSAVED_STATE] = sorted(names)
    return found


def compile_traced(
    graphs: Sequence[TracedGraph], name: str, config: Mapping[str, Any], inference: bool, metadata: Mapping[str, Any],
    regions: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """Compile traced graphs with the options ``config``; return the PEF's path.

    ``config`` holds a program's parsed options (``vars(args)``); missing options have their defaults.
    ``regions``: tensor → device memory region, if it is not the tensor's own.
    """
    pef_name = str(config.get("pef_name") or default_pef_name(name))
    folder = Path(resolve(PROFILE_OUTPUT_FOLDER) or str(config.get("output_folder") or "out")) / pef_name
    chips, parallel = model_parallel(config)
    options = CompileOptions(
        name=name,
        pef_path=folder / f"{pef_name}.pef",
        mode=optimization_mode(config),
        arch=str(config.get("arch") or resolve(ARCH)),
        num_tiles=max(int(config.get("num_tiles") or 0), 0),
        chips=chips,
        parallel=parallel,
        precision=_precision(config),
        weight_dtype=str(config.get("weight_dtype") or ""),
        inference=inference,
        data_parallel=is_switched_on(config.get("data_parallel")),
        replicas=int(config.get("world_size") or 1),
        graphamp=str(config["graphamp_preset"]) if config.get("graphamp_preset") else None,
        mixed_precision_families=words(config.get("enable_mixed_precision_ops")),
        accumulates=not inference and accumulation_steps(config) > 1,
        rules=paths(config, "optimization_rules"),
        heuristics=paths(config, "heuristics"),
        human_decision=Path(decided) if (decided := config.get("mac_human_decision")) else None,
        kernels=resolve(KERNELS, config.get("kernels")),
        builds_kernels=bool(config.get("builds_kernels", True)),
        host_fallback=resolve(HOST_FALLBACK, True if config.get("host_fallback") else None),
        is_plan=bool(config.get("is_plan")),
        regions=dict(regions or {}),
        metadata=_embedded(metadata, {**config, **read_expert_knobs(config)}),
    )
    options.check()
    check_batches(config)
    quiet = str(config.get("log_level") or "info").lower() in {"error", "critical", SILENT}
    reporter = ConsoleReporter(quiet, _FOLLOW.get())
    if not quiet:
        print(f"[Info][SAMBA]# Placing log files in {folder / pef_name}.samba.log", flush=True)
        print(f"[Info][MAC]# Placing log files in {folder / pef_name}.mac.log", flush=True)
    about: dict[str, Attribute] = {"rdukit.pef": pef_name, "rdukit.mode": options.mode, "rdukit.graphs": len(graphs)}
    with reporter, span("compile", about):
        path = compile_graphs(graphs, options, reporter)
    write_atomic(folder / f"{pef_name}.samba.log", "".join(line + "\n" for line in reporter.lines).encode())
    write_json_atomic(folder / f"{pef_name}.configs", {k: jsonable(v) for k, v in sorted(config.items())})
    if config.get("plot"):
        write_atomic(folder / f"{pef_name}.svg", draw_pef(read_pef(path).pef).encode())
    if config.get("gen_tensorboard"):
        from sambaflow.sessions.tensorboard_files import FOLDER, write_event_file

        write_event_file(read_pef(path), folder / FOLDER)
    return str(path)


def _precision(config: Mapping[str, Any]) -> str:
    if config.get("precision") is None and config.get("disable_bf16_conversion") is True:
        return "f32"
    return str(config.get("precision") or resolve(PRECISION))


def _embedded(metadata: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata for ``get_pef_info``: all options, overwritten by the program's metadata."""
    found = {key: jsonable(value) for key, value in config.items() if (key, value) != ("log_level", SILENT)}
    found.update({str(key): jsonable(value) for key, value in metadata.items()})
    return found

"""Options of a program, from a command line, a mapping or files.

Source: SDK reference 6.1, compiler reference 1.5 and 4.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rdukit.errors import InvalidArgument

logger = logging.getLogger(__name__)


def read_options(args: Any) -> dict[str, Any]:
    """Return the options in ``argconf`` arguments, a mapping or a namespace.

    Raises:
        InvalidArgument: the argument is of another type.
    """
    if hasattr(args, "model_dump"):
        values = args.model_dump()
    elif isinstance(args, Mapping):
        values = args
    elif hasattr(args, "__dict__"):
        values = vars(args)
    else:
        raise InvalidArgument(f"session.setup got {type(args).__name__}; expected CompileArgs, RunArgs or a mapping")
    return {str(name): value for name, value in values.items()}


def read_dynamic_dims(path: Path) -> dict[str, int]:
    """Read a YAML file of dynamic dimensions: a mapping from name to largest size, or to ``{max: size}``.

    Raises:
        InvalidArgument: the file is not such a mapping.
    """
    import yaml

    values = yaml.safe_load(path.read_text()) or {}
    if not isinstance(values, dict):
        raise InvalidArgument(f"{path} must map names of dimensions to largest sizes")
    found: dict[str, int] = {}
    for name, value in values.items():
        largest = value.get("max") if isinstance(value, dict) else value
        if not isinstance(largest, int) or largest < 1:
            raise InvalidArgument(f"{path}: {name}: {value!r} is not valid; expected a positive size, or max: size")
        found[str(name)] = largest
    return found


def optimization_mode(config: Mapping[str, Any]) -> str:
    """Return ``o0``, ``o1`` or ``o3`` from any spelling of the options; o3 if none is given."""
    for mode in ("o0", "o1", "o3"):
        if config.get(mode):
            return mode
    text = str(config.get("optim_level") or config.get("mode") or "o3").lower().lstrip("-")
    text = text if text.startswith("o") else f"o{text}"
    if text == "o1hd":
        return "o1"
    if text not in {"o0", "o1", "o3"}:
        raise InvalidArgument(
            f"optimisation level {text!r} is not valid; expected o0, o1, o3 (--o0, -o1, --optim-level o1)"
        )
    return text


def accumulation_steps(config: Mapping[str, Any]) -> int:
    """Return the number of backwards before one optimizer step, under either spelling of the option.

    Raises:
        InvalidArgument: it is not a positive number.
    """
    given = [config[key] for key in ("grad_accumulation_steps", "gradient_accumulation_steps") if config.get(key)]
    try:
        steps = max([int(value) for value in given], default=1)
    except (TypeError, ValueError) as cause:
        raise InvalidArgument(f"grad_accumulation_steps is {given!r}; expected a positive number") from cause
    return max(steps, 1)


def model_parallel(config: Mapping[str, Any]) -> tuple[int, str]:
    """Return the number of chips, and how the model is divided among them: ``batch``, ``weight`` or ``pipeline``.

    Several chips without ``--tensor-parallel`` are a pipeline over sections; on one chip, the model is not divided.

    Raises:
        InvalidArgument: the number of chips is invalid.
    """
    given, how = config.get("n_chips"), config.get("tensor_parallel")
    try:
        chips = int(1 if given is None else given)
    except (TypeError, ValueError) as cause:
        raise InvalidArgument(f"--n-chips {given!r} is not valid; expected 1 to 8") from cause
    word = "" if how is None or how is False or str(how).lower() in {"", "none", "false"} else str(how).lower()
    if chips == 1 and (word or config.get("model_parallel")):
        logger.warning("event=one-chip: a single chip holds the whole model; add --n-chips 2 to 8 to divide it")
    return chips, (word or "pipeline") if chips > 1 else ""


def check_batches(config: Mapping[str, Any]) -> None:
    """Check that microbatches divide the batch: on the chip they follow each other through the pipeline of a section.

    Their size has no effect on results. Source: compiler reference 4.1.

    Raises:
        InvalidArgument: the microbatch size does not divide the batch size.
    """
    batch, microbatch = config.get("batch_size"), config.get("microbatch_size")
    if isinstance(batch, int) and isinstance(microbatch, int) and (microbatch < 1 or batch % microbatch):
        raise InvalidArgument(
            f"--microbatch-size {microbatch} is not valid with --batch-size {batch}; expected a size that divides it"
        )


def read_expert_knobs(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contents of ``--compiler-configs-file``, to be recorded; the knobs have no effect here.

    Raises:
        InvalidArgument: the file does not exist, or is not a JSON object.
    """
    path = config.get("compiler_configs_file")
    if not path:
        return {}
    try:
        found = json.loads(Path(str(path)).read_text())
    except (OSError, ValueError) as cause:
        raise InvalidArgument(f"--compiler-configs-file {path}: {cause}; expected a file with a JSON object") from cause
    if not isinstance(found, dict):
        raise InvalidArgument(f"--compiler-configs-file {path} holds {type(found).__name__}; expected a JSON object")
    return {"compiler_configs": found}


def default_pef_name(name: str) -> str:
    """Return a name from the application, the time and the process id."""
    application = Path(sys.argv[0]).stem or name
    return f"{application}_{time.strftime('%m_%d_%H_%M_%S')}_{os.getpid()}"


def words(option: Any) -> tuple[str, ...]:
    """Return the words of an option that is a list or a text."""
    if isinstance(option, str):
        return tuple(option.replace(",", " ").split())
    return tuple(str(word) for word in option) if isinstance(option, list | tuple | set) else ()


def paths(config: Mapping[str, Any], option: str) -> tuple[Path, ...]:
    """Return an option that is one file, or a list of files.

    Raises:
        InvalidArgument: it is of another type.
    """
    given = config.get(option) or ()
    listed = [given] if isinstance(given, str | Path) else given
    if not isinstance(listed, list | tuple) or not all(isinstance(path, str | Path) for path in listed):
        raise InvalidArgument(f"{option} is {given!r}; expected the path of a file, or a list of paths")
    return tuple(map(Path, listed))


def jsonable(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return str(value)

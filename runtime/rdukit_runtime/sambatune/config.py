"""The configuration of ``sambatune``: YAML text → programs to compile and run. Pure.

Source: sambatune reference 1.3 and compiler reference 10.2 (keys; the vendor's name of ``existing-compile-output``
is not public); how relative paths and unknown variables are treated is ours.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument, suggest
from rdukit.strict_yaml import MarkedYaml, read_yaml

#: Keys that a configuration may have; the last one is ours.
KEYS: Final = (
    "app", "run-app", "model-args", "compile-args", "run-args", "env", "samba-sweep-parameters",
    "existing-compile-output",
)  # fmt: skip
#: Modes, of which the first is the default.
MODES: Final = ("benchmark", "instrument", "run")
#: A documented key that the vendor does not implement either.
_NOT_IMPLEMENTED: Final = "parameter-sweep-batch"
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


#: Value of an option in a sweep. True: the flag alone; False: no flag; None: the option is left out.
SweepValue = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class TuneConfig:
    """A program to compile and run, with its arguments."""

    #: The file's name without its suffix.
    name: str
    app: str
    run_app: str
    model_args: tuple[str, ...] = ()
    compile_args: tuple[str, ...] = ("compile",)
    run_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    #: Option of the program → values to try; all combinations are run.
    sweep: Mapping[str, tuple[SweepValue, ...]] = field(default_factory=dict)
    #: Folder of an earlier compile, with its PEF; empty: compile. Ours.
    existing: str = ""

    def option(self, *flags: str) -> str:
        """Return the value of a program's option, such as ``--arch``; empty if it is not given."""
        words = [word for text in (*self.model_args, *self.compile_args) for word in text.split("=", 1)]
        found = [value for flag, value in pairwise(words) if flag in flags]
        return found[-1] if found else ""

    def combinations(self) -> Iterator[tuple[dict[str, SweepValue], "TuneConfig"]]:
        """Yield each combination of the sweep with the configuration that runs it; without a sweep, itself."""
        for values in product(*self.sweep.values()):
            chosen = dict(zip(self.sweep, values, strict=True))
            options = [word for name, value in chosen.items() for word in _option(name, value)]
            yield chosen, replace(self, model_args=(*self.model_args, *options), sweep={})


def _option(name: str, value: SweepValue) -> list[str]:
    if value is None or value is False:
        return []
    flag = name if name.startswith("-") else f"--{name}"
    return [flag] if value is True else [flag, str(value)]


def read_config(file: str, text: str, environ: Mapping[str, str]) -> TuneConfig:
    """Read a configuration.

    Args:
        file: the file's name, for messages; without its suffix it names the configuration.
        environ: variables in addition to ``env``, for ``$NAME`` in arguments.
    Raises:
        InvalidArgument: the text is not a mapping, a key is unknown or missing, a value is of another kind, or a
            variable is not set.
    """
    values = _mapping_of(file, read_yaml(text))
    env = {key: str(value) for key, value in _mapping(values, "env").items()}
    known = {**environ, **env}
    app = _text(values, "app", known)
    existing = _text(values, "existing-compile-output", known)
    if not app:
        raise InvalidArgument(f"{file}: 'app' is missing; expected the path of the program to compile and run")
    compile_args = _words(values, "compile-args", known)
    run_app = _text(values, "run-app", known)
    if not run_app and compile_args and compile_args[0] != "compile":
        raise InvalidArgument(
            f"{file}: compile-args begin with {compile_args[0]!r}; expected 'compile', or a separate 'run-app'"
        )
    return TuneConfig(
        Path(file).stem, app, run_app or app, _words(values, "model-args", known), compile_args or ("compile",),
        _words(values, "run-args", known), env, _sweep(values), existing,
    )  # fmt: skip


def _mapping_of(file: str, read: MarkedYaml) -> dict[str, object]:
    for fault in read.faults:
        raise InvalidArgument(f"{file}: line {fault.mark.line}: {fault.message}")
    if not isinstance(read.value, dict):
        raise InvalidArgument(f"{file}: expected keys such as 'app' and 'compile-args', found {read.value!r}")
    for key in read.value:
        line = read.mark_of((key,)).line
        if key == _NOT_IMPLEMENTED:
            raise InvalidArgument(f"{file}: line {line}: {key!r} is not implemented; use 'samba-sweep-parameters'")
        if key not in KEYS:
            raise InvalidArgument(
                f"{file}: line {line}: unknown key {key!r}.{suggest(key, KEYS)} Expected: {', '.join(KEYS)}"
            )
    return read.value


def _text(values: Mapping[str, object], key: str, known: Mapping[str, str]) -> str:
    value = values.get(key)
    if value is None:
        return ""
    if isinstance(value, dict | list | bool):
        raise InvalidArgument(f"{key!r} is {value!r}; expected text")
    return _expand(key, str(value).strip(), known)


def _words(values: Mapping[str, object], key: str, known: Mapping[str, str]) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(_text(values, key, known)))
    except ValueError as cause:
        raise InvalidArgument(f"{key!r} cannot be read as arguments: {cause}") from cause


def _expand(key: str, text: str, known: Mapping[str, str]) -> str:
    def value_of(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in known:
            raise InvalidArgument(f"{key!r} uses ${name}, which is not set; set it under 'env', or in the environment")
        return known[name]

    return _VARIABLE.sub(value_of, text)


def _mapping(values: Mapping[str, object], key: str) -> dict[str, object]:
    value = values.get(key) or {}
    if not isinstance(value, dict):
        raise InvalidArgument(f"{key!r} is {value!r}; expected a mapping from names to values")
    return value


def _sweep(values: Mapping[str, object]) -> dict[str, tuple[SweepValue, ...]]:
    found = {}
    for name, listed in _mapping(values, "samba-sweep-parameters").items():
        is_plain = isinstance(listed, list) and all(isinstance(v, str | int | float | None) for v in listed)
        if not isinstance(listed, list) or not listed or not is_plain:
            raise InvalidArgument(f"samba-sweep-parameters: {name!r} is {listed!r}; expected a list of values")
        found[name] = tuple(listed)
    return found


def find_program(app: str, folders: tuple[Path, ...]) -> Path:
    """Return the program's path: as given, or in the first of ``folders`` that has it.

    Raises:
        InvalidArgument: there is no such file.
    """
    found = next((path for folder in folders if (path := (folder / app).absolute()).is_file()), None)
    if found is None:
        searched = " or ".join(dict.fromkeys(map(str, folders)))
        raise InvalidArgument(f"there is no program {app!r} in {searched}; check 'app'")
    return found

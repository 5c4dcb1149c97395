"""Load and unload as the repository extension has them, on both wires."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from rdukit.errors import InvalidArgument, NotFound
from rdukit_modelbox.serving.model_version import VersionState
from rdukit_modelbox.serving.repository import Repository

#: A path or URI, and what it is for → its file, fetched if it is elsewhere.
BringFile = Callable[[str, str], Awaitable[Path]]

LOAD_PARAMETERS = ("pef", "checkpoint", "version", "keep_others")
UNLOAD_PARAMETERS = ("version", "unload_dependents")


async def load_model(
    repository: Repository, name: str, parameters: Mapping[str, object], resolve_path: BringFile
) -> None:
    """Load a version: the files that ``parameters`` name, or again those of the version or of the newest one.

    What was unloaded comes back under its number.

    Raises:
        NotFound: another model's name, or a file that is not there.
        InvalidArgument: an unknown parameter, a path outside the mounts, or nothing to load.
        RdukitError: the files cannot be loaded; what answered before goes on.
    """
    if name != repository.name:
        raise NotFound(f"there is no model {name!r}; legal: {repository.name}")
    given = {key: _text(key, value) for key, value in parameters.items() if key != "keep_others"}
    _refuse_unknown(parameters, LOAD_PARAMETERS)
    keep = parameters.get("keep_others", False)
    if not isinstance(keep, bool):
        raise InvalidArgument(f"parameter 'keep_others' {keep!r} is not legal; legal: true or false")
    named = repository.versions.get(given.get("version", ""))
    newest = named or repository.current or repository.latest
    if "pef" in given:
        pef = await _existing("pef", given["pef"], resolve_path)
        checkpoint = await _existing("checkpoint", given["checkpoint"], resolve_path) if "checkpoint" in given else None
    elif newest is not None:
        pef, checkpoint = newest.files.pef, newest.files.checkpoint
        if "checkpoint" not in given and newest.state is VersionState.UNAVAILABLE:
            given.setdefault("version", newest.version)
        elif "checkpoint" in given:
            checkpoint = await _existing("checkpoint", given["checkpoint"], resolve_path)
    else:
        raise InvalidArgument("nothing was loaded before: pass the parameter pef, and checkpoint if it has parameters")
    await repository.load(pef, checkpoint, given.get("version", ""), keep)


async def unload_model(repository: Repository, name: str, parameters: Mapping[str, object]) -> None:
    """Unload a version, or all.

    Raises:
        NotFound: no such model or version. InvalidArgument: an unknown parameter.
    """
    if name != repository.name:
        raise NotFound(f"there is no model {name!r}; legal: {repository.name}")
    _refuse_unknown(parameters, UNLOAD_PARAMETERS)
    await repository.unload(_text("version", parameters.get("version", "")))


def _refuse_unknown(parameters: Mapping[str, object], legal: tuple[str, ...]) -> None:
    unknown = sorted(set(parameters) - set(legal))
    if unknown:
        raise InvalidArgument(f"parameter {unknown[0]!r} is not legal; legal: {', '.join(legal)}")


def _text(key: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise InvalidArgument(f"parameter {key!r} {value!r} is not legal; legal: text")
    return str(value)


async def _existing(key: str, text: str, resolve_path: BringFile) -> Path:
    path = await resolve_path(text, f"parameter {key!r}")
    if not path.exists():
        raise NotFound(f"parameter {key!r}: there is nothing at {path}")
    return path

"""Metadata in PEFs. Source: SDK reference 7.4."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rdukit.errors import PefError
from rdukit.pef import read_pef

#: ``sambaflow.__version__``: the release whose interface rdukit emulates. Programs compare it with the releases that
#: they need.
SAMBAFLOW_VERSION: Final = "1.23.0"
#: Options of the compile, not of the program, which the metadata excludes.
_LEFT_OUT: Final = frozenset({"command", "pef_name", "output_folder", "arch", "log_level", "pef"})


@dataclass(frozen=True, slots=True)
class PefInfoStruct:
    """A field to read; ``mock_value`` is the value for a program without a device."""

    mock_value: Any = None


def get_pefmeta(args: Any, model: Any) -> dict[str, str]:
    """Return all parsed arguments as strings, the model's text and the SambaFlow version."""
    return get_pefmeta_dict(vars(args), model)


def get_pefmeta_dict(mapping: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """Return the metadata of a dict of arguments; lists survive a round trip."""
    found: dict[str, Any] = {
        key: value if isinstance(value, list) else str(value) for key, value in mapping.items() if key not in _LEFT_OUT
    }
    return {**found, "model": str(model), "samba_version": SAMBAFLOW_VERSION}


def get_pef_info(pef: str, fields: Mapping[str, PefInfoStruct]) -> dict[str, Any]:
    """Return the values of metadata ``fields``.

    Raises:
        ValueError: a field was not embedded. PefNotFound: the file is missing.
    """
    metadata = read_pef(pef).pef.metadata
    missing = [name for name in fields if name not in metadata]
    if missing:
        raise ValueError(f"{pef} has no metadata {missing}; it has {sorted(metadata)}")
    return {name: _parsed(metadata[name]) for name in fields}


def _parsed(value: Any) -> Any:
    """Convert strings that are Python literals to their values, because metadata are stored as strings."""
    if not isinstance(value, str):
        return value
    import ast

    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value


__all__ = ["PefError", "PefInfoStruct", "get_pef_info", "get_pefmeta", "get_pefmeta_dict"]

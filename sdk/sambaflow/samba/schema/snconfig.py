"""SNConfig: a schema of parameters with defaults. Source: SDK reference 2, 8 (only its name and use are public)."""

from typing import Any


class SNConfig:
    """Base of configurations: class attributes of a subclass are parameters and their defaults. Source: ours."""

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return parameters by name; those of subclasses take precedence."""
        found: dict[str, Any] = {}
        for base in reversed(cls.__mro__[:-1]):
            found.update({k: v for k, v in vars(base).items() if not k.startswith("_") and not _is_code(v)})
        return found


def _is_code(value: Any) -> bool:
    return callable(value) or isinstance(value, classmethod | staticmethod | property)


__all__ = ["SNConfig"]

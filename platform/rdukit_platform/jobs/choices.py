"""Plain fields of a job's request, from which the command line, the console and lists of facts derive their parts."""

from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote


@dataclass(frozen=True, slots=True)
class JobChoice:
    """A field of ``JobRequest`` whose value is a number, a flag, a text or a mapping of texts.

    ``kind`` is ``int``, ``float``, ``bool``, ``text`` or ``labels``. ``lowest`` and ``highest`` are the limits of a
    number; for a text ``highest`` is the largest number of characters.
    """

    name: str
    kind: str
    help: str
    default: object = None
    lowest: float | None = None
    highest: float | None = None

    @property
    def option(self) -> str:
        """Return the option of the command line, such as ``--max-attempts``."""
        return f"--{self.label.replace(' ', '-')}"

    @property
    def label(self) -> str:
        """Return the field's name as people read it, such as ``max attempts``."""
        return self.name.replace("_", " ")

    @property
    def legal(self) -> str:
        """Return the values that are expected, in words; empty: any."""
        if self.kind == "labels":
            return "KEY=VALUE on a line each"
        if self.kind == "text":
            return "" if self.highest is None else f"up to {self.highest:g} characters"
        return "" if self.lowest is None or self.highest is None else f"{self.lowest:g} to {self.highest:g}"

    def write(self, value: object) -> list[str]:
        """Return a job's value as texts, one for each key of a mapping; an empty list for the default."""
        if value is None or value == self.default:
            return []
        if isinstance(value, Mapping):
            return [f"{key}={each}" for key, each in value.items()]
        if isinstance(value, bool):
            return ["yes"] if value else []
        return [f"{value:.15g}" if isinstance(value, float) else str(value)]

    def arguments(self, value: object) -> list[str]:
        """Return the arguments of a shell command for a job's value; an empty list for the default."""
        if self.kind == "bool":
            return [self.option] if value else []
        return [f"{self.option} {quote(text)}" for text in self.write(value)]

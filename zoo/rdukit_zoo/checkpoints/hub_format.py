"""Names and layouts of a model's parameters in a Hugging Face folder. Pure; ``folder`` reads and writes.

Modules of the zoo use the parameter names that ``save_pretrained`` writes. A format therefore lists the differences
only: a prefix that some files lack, transposed weights, tied weights, old spellings, buffers.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdukit.errors import InvalidArgument
from rdukit.pef.identity import SizeValue

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class HubFormat:
    """The format of one architecture's folders.

    ``sizes_of_config`` reads a ``config.json`` and refuses unsupported values with ``InvalidArgument``;
    ``config_of_sizes`` writes one. Patterns are searched in names on disk.
    """

    #: Names in ``architectures`` of ``config.json``; the first is written.
    architectures: tuple[str, ...]
    sizes_of_config: Callable[[Mapping[str, Any]], dict[str, SizeValue]]
    config_of_sizes: Callable[[Mapping[str, SizeValue]], dict[str, Any]]
    #: Prefix of the body's names; files that were saved without a head lack it.
    prefix: str = ""
    #: Whether the prefix is written; false for a body without a head.
    writes_prefix: bool = True
    #: Name → the name whose tensor it shares if the sizes tie them; it may be absent on disk, or present twice.
    tied: Mapping[str, str] = field(default_factory=dict)
    #: Names of other tensors than parameters, such as masks and tables of old files.
    ignored: tuple[str, ...] = ()
    #: Buffers of ours that folders do not have, such as tables of rotary angles.
    tables: tuple[str, ...] = ()
    #: Names of buffers that keep the files' dtype in a module of another one: transformers does not round them either.
    exact: tuple[str, ...] = ()
    #: Names of weights that are stored [in, out], where ``nn.Linear`` has [out, in].
    transposed: tuple[str, ...] = ()
    #: Old name → present name, applied in order.
    renamed: tuple[tuple[str, str], ...] = ()
    #: Parts of our names ↔ of those on disk, between dots, applied in this order when a name is read.
    spelled: tuple[tuple[str, str], ...] = ()
    #: Spelled name → name on disk, applied in order when a name is written.
    respelled: tuple[tuple[str, str], ...] = ()
    #: Returns the format for a model's sizes, if it depends on them.
    by_sizes: "Callable[[Mapping[str, SizeValue]], HubFormat] | None" = None
    #: Further sizes, which other files of the folder state.
    sizes_of_folder: Callable[[Path], dict[str, SizeValue]] | None = None
    #: Path in the folder → JSON value of each file that states these sizes.
    files_of_sizes: Callable[[Mapping[str, SizeValue]], dict[str, Any]] | None = None

    def of_sizes(self, sizes: Mapping[str, SizeValue]) -> "HubFormat":
        """Return the format of a model of these sizes."""
        return self.by_sizes(sizes) if self.by_sizes else self

    def name_of(self, stored: str, names: Iterable[str]) -> str | None:
        """Return the model's name of a tensor on disk; None if the tensor is ignored.

        ``names``: all names of the model. A name that the model does not have is returned unchanged.
        """
        for pattern, replacement in self.renamed:
            stored = re.sub(pattern, replacement, stored)
        for ours, theirs in self.spelled:
            stored = _replace_parts(stored, theirs, ours)
        if any(re.search(pattern, stored) for pattern in self.ignored):
            return None
        known = names if isinstance(names, set | frozenset | dict) else set(names)
        return self.prefix + stored if stored not in known and self.prefix + stored in known else stored

    def stored_name(self, name: str) -> str:
        """Return the name on disk of a name of the model."""
        stored = name if self.writes_prefix else name.removeprefix(self.prefix)
        for ours, theirs in reversed(self.spelled):
            stored = _replace_parts(stored, ours, theirs)
        for pattern, replacement in self.respelled:
            stored = re.sub(pattern, replacement, stored)
        return stored

    def is_table(self, name: str) -> bool:
        """Return whether folders lack this buffer of the model."""
        return any(re.search(pattern, name) for pattern in self.tables)

    def is_exact(self, name: str) -> bool:
        """Return whether a buffer of the model keeps the files' dtype."""
        return any(re.search(pattern, name) for pattern in self.exact)

    def is_transposed(self, name: str) -> bool:
        """Return whether the weight is stored [in, out]."""
        return any(re.search(pattern, name) for pattern in self.transposed)

    def convert(self, name: str, tensor: "torch.Tensor") -> "torch.Tensor":
        """Return a tensor in the other layout, disk to model or model to disk, which is the same operation.

        The result is a view: a tensor that is mapped from a file stays mapped.
        """
        return tensor.t() if self.is_transposed(name) else tensor


def _replace_parts(name: str, old: str, new: str) -> str:
    """Return the dotted name with ``old``, one part or more, replaced between dots or at the ends."""
    return re.sub(rf"(?<![^.]){re.escape(old)}(?![^.])", new, name)


def require_value(config: Mapping[str, Any], key: str, wanted: object) -> None:
    """Refuse a ``config.json`` with an unsupported value; an absent key is accepted.

    Raises:
        InvalidArgument: the value is not supported.
    """
    found = config.get(key, wanted)
    if found != wanted:
        raise InvalidArgument(f"config.json: {key} is {found!r}; this model has {wanted!r} only")

"""PEFs with something changed in them, as somebody makes them who knows the format and means harm."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rdukit.pef.operators import operator_lines
from support.pefs.examples import forge_pef

#: What takes the place of a value.
_VALUES: Final[tuple[Any, ...]] = (
    None, True, False, -1, 0, 1, 2, 3, 7, 255, 65536, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, 2**63, 2**70, 0.5, -0.0,
    1e308, "", "x", "cpu", "cuda", "float32", "int64", "bool", "../../etc/passwd", "/etc/passwd", "__class__", "\0",
    "é" * 50,
    [], [0], [[]], {}, {"ref": "x"}, {"ref": "y"}, {"dtype": "bfloat16"}, {"dtype": "int64"}, {"device": "cuda"},
    {"scalar": "lr"}, {"float": "nan"}, {"float": "inf"}, {"complex": "1j"}, {"memory_format": "channels_last"},
)  # fmt: skip
#: Operators that no PEF may name.
_FORBIDDEN: Final = (
    "aten.from_file.default", "aten.save.default", "aten.resize_.default", "aten.set_.source_Storage",
    "aten._reshape_alias.default", "inductor.resize_storage_bytes_.default", "os.system.default",
    "aten.__init__.default",
)  # fmt: skip


def mutate_pef(path: Path, seed: int) -> Path:
    """Change one to three things in the PEF at ``path``; equal seeds change the same."""
    draw = random.Random(seed)
    if draw.random() < 0.08:
        _damage(path, draw)
        return path

    def change(index: dict[str, Any], kernels: dict[str, Any], entries: dict[str, bytes]) -> None:
        for _ in range(draw.choice([1, 1, 1, 2, 3])):
            if entries and draw.random() < 0.1:
                name = draw.choice(sorted(entries))
                entries[name] = _flip(entries[name], draw)
            elif kernels and draw.random() < 0.8:
                kernel = kernels[draw.choice(sorted(kernels))]
                draw.choice([_change_operator, _change_operator, _change_number, _change_number, _change_anything])(
                    kernel, draw
                )
            else:
                draw.choice([_change_anything, _change_number, _swap_names])(index["pef"], draw)

    return forge_pef(path, change)


def _damage(path: Path, draw: random.Random) -> None:
    """Change bytes of the file, whatever they are for."""
    data = path.read_bytes()
    path.write_bytes(draw.choice([_flip, _cut, _repeat])(data, draw))


def _flip(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice([1, 8, 64])):
        if changed:
            changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def _cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def _repeat(data: bytes, draw: random.Random) -> bytes:
    return data + data[draw.randrange(len(data)) :]


def _change_operator(kernel: dict[str, Any], draw: random.Random) -> None:
    """Put another operator in one's place, mostly one that takes the same arguments."""
    if isinstance(kernel.get("nodes"), list) and kernel["nodes"]:
        node = draw.choice(kernel["nodes"])
        if isinstance(node, list) and len(node) > 1:
            lines = operator_lines()
            alike = [op for op, line in lines.items() if _kinds(line) == _kinds(lines.get(str(node[1]), "-"))]
            others = draw.choices([_FORBIDDEN, sorted(lines), alike], [1, 2, 7])[0]
            node[1] = draw.choice(others or _FORBIDDEN)


def _kinds(line: str) -> list[str]:
    """Return the kinds of an operator's parameters."""
    return [word.partition(":")[2] for word in line.split()]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Find every (container, key) inside ``value``."""
    found: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        container = pending.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            found.append((container, key))
            if isinstance(container[key], dict | list):
                pending.append(container[key])
    return found


def _change_anything(value: Any, draw: random.Random) -> None:
    """Replace, remove, double or exchange something, wherever it is."""
    places = _places(value)
    if not places:
        return
    container, key = draw.choice(places)
    match draw.randrange(5):
        case 0:
            del container[key]
        case 1 if isinstance(container, list):
            container.insert(key, container[key])
        case 2:
            other, position = draw.choice(places)
            if not isinstance(other[position], dict | list):
                container[key] = other[position]
        case _:
            container[key] = draw.choice(_VALUES)


def _change_number(value: Any, draw: random.Random) -> None:
    """Replace a whole number by another: sizes, axes, offsets, positions."""
    places = [(c, k) for c, k in _places(value) if type(c[k]) is int]
    if places:
        container, key = draw.choice(places)
        near: list[Callable[[int], int]] = [
            lambda n: n + 1, lambda n: n - 1, lambda n: -n, lambda n: n * 2, lambda n: n * 1000, lambda n: n + 2**33,
        ]  # fmt: skip
        container[key] = draw.choice(near)(container[key])


def _swap_names(value: Any, draw: random.Random) -> None:
    """Exchange two texts of the table of contents."""
    places = [(c, k) for c, k in _places(value) if isinstance(c[k], str)]
    if len(places) > 1:
        (one, first), (other, second) = draw.sample(places, 2)
        one[first], other[second] = other[second], one[first]

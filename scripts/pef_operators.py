"""Write the lines of ``core/rdukit/pef/operators.txt`` from torch's schemas.

    scripts/pef_operators.py                  write the file again, for the torch that is installed
    scripts/pef_operators.py aten.foo.default add operators
    scripts/pef_operators.py --check          exit status 1 if the file differs from what would be written

Lines of our own operators (``rdukit.``) are written by hand and kept.
"""

import argparse
import operator
import sys
from pathlib import Path

import torch

from rdukit.pef.operators import operator_lines

FILE = Path(__file__).parents[1] / "core" / "rdukit" / "pef" / "operators.txt"
#: Torch's types → kinds of the list. Arguments of other types, such as storages, have none, and no line can be written.
KINDS = {
    "Tensor": "tensor", "number": "scalar", "int": "int", "float": "float", "bool": "bool", "str": "text",
    "ScalarType": "dtype", "Layout": "layout", "MemoryFormat": "memory_format", "Device": "device",
    "Generator": "generator",
}  # fmt: skip


def kind_of(written: str) -> str:
    """``Optional[List[int]]`` → ``int[]?``."""
    for prefix, suffix in (("Optional[", "?"), ("List[", "[]")):
        if written.startswith(prefix):
            return kind_of(written.removeprefix(prefix).removesuffix("]")) + suffix
    return KINDS[written]


def line_of(op: str) -> str:
    """Return the line of an operator of torch."""
    schema = operator.attrgetter(op)(torch.ops)._schema
    words, has_bar = [op], False
    for argument in schema.arguments:
        if argument.kwarg_only and not has_bar:
            words.append("|")
            has_bar = True
        default = "=" if argument.has_default_value() else ""
        words.append(f"{argument.name}:{kind_of(str(argument.real_type))}{default}")
    return " ".join(words)


def main() -> int:
    """Write the lines; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*", help="names to add, such as aten.add.Tensor")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    kept = operator_lines()
    own = [f"{op} {rest}".rstrip() for op, rest in kept.items() if op.startswith("rdukit.") or op in OWN_FORMS]
    others = {op for op in {*kept, *arguments.operators} if not op.startswith("rdukit.")} - OWN_FORMS
    head = [line for line in FILE.read_text().splitlines() if line.startswith("#")]
    text = "\n".join([*head, *sorted(own), *sorted(map(line_of, others))]) + "\n"
    if arguments.check:
        return int(text != FILE.read_text())
    FILE.write_text(text)
    return 0


#: Operators of torch that have a form of our own.
OWN_FORMS = {"aten._functional_assert_async.msg"}

if __name__ == "__main__":
    sys.exit(main())

"""Whether a box agrees with its model: the zoo has it, and it has the sizes that the box gives it."""

from collections.abc import Iterator

from rdukit.errors import InvalidArgument
from rdukit_modelbox.box import Box, check_compiler_version
from rdukit_modelbox.contract.agreement import Problem
from rdukit_modelbox.contract.faults import suggest
from rdukit_modelbox.models import entry_of
from rdukit_zoo.registry import model_names


def find_model_problems(box: Box, *, import_module: bool = False) -> Iterator[Problem]:
    """What does not fit, with its key. A box's own module is imported only with ``import_module``."""
    try:
        check_compiler_version(box)
    except InvalidArgument as error:
        yield ("compilerVersion",), error.message
    if box.module is None and box.model not in model_names():
        yield ("model",), f"{box.model!r} is not in the zoo; {suggest(box.model, model_names())}"
        return
    if box.module is not None and not import_module:
        return
    try:
        legal = list(entry_of(box).sizes)
    except InvalidArgument as error:
        yield ("module",), error.message
        return
    for name in box.sizes:
        if name not in legal:
            yield ("sizes", name), f"not a size of its model; {suggest(name, legal)}"
    for number, parameter in enumerate(box.parameters):
        if parameter.size and parameter.name not in legal:
            yield (
                ("parameters", number, "size"),
                f"{parameter.name!r} is not a size of its model; " + suggest(parameter.name, legal),
            )

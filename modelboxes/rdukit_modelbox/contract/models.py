"""The model of a box, which is an entry of the zoo or comes from the box's own module, and its problems.

An own module is a Python file in the box's folder. It is imported in the processes that run verbs, never in the
box's own.
"""

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit.pef import read_pef
from rdukit.pef.file import LoadedPef
from rdukit.pef.model import SymbolKind
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.contract.box import Box, check_compiler_version
from rdukit_modelbox.contract.parameter import holds
from rdukit_modelbox.contract.validation import Problem
from rdukit_serving.checks import find_tables, forward_sections
from rdukit_serving.shape import Shape, shape_of
from rdukit_serving.strict_yaml.schema_errors import suggest
from rdukit_zoo.registry import ModelEntry, SizeValue, get_model, model_names

#: Name under which a box's own module is imported; a process has one box only.
MODULE_NAME: Final = "rdukit_box_module"
#: Parameter of compile that names published sizes, and its value for the box's own small ones.
VARIANT: Final = "variant"
TINY: Final = "tiny"
#: Tasks whose target is a class and whose output has a score for each class.
CLASS_TASKS: Final = frozenset({"image-classification", "sequence-classification", "segmentation"})


def entry_of(box: Box) -> ModelEntry:
    """Return the model that ``box`` names.

    Raises:
        InvalidArgument: the zoo has no such model, or the own module does not return one.
    """
    return get_model(box.model) if box.module is None else load_own_module(box.folder, box.module)


def load_own_module(folder: Path, place: str) -> ModelEntry:
    """Call the function at ``file.py:function`` below ``folder``; it takes nothing and returns a ``ModelEntry``.

    Raises:
        InvalidArgument: there is no such file or function, it raises, or it returns something else.
    """
    file_name, _, function_name = place.partition(":")
    path = (folder / file_name).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise InvalidArgument(f"module {place!r}: there is no file {file_name} in the box's folder {folder}")
    spec = importlib.util.spec_from_file_location(MODULE_NAME, path)
    if spec is None or spec.loader is None:
        raise InvalidArgument(f"module {place!r}: {file_name} is not a Python file; expected a name ending in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE_NAME] = module
    # Any error of the box's own code is its own fault.
    try:
        spec.loader.exec_module(module)
        entry = getattr(module, function_name or "model_entry")()
    except Exception as cause:
        raise InvalidArgument(f"module {place!r} failed: {type(cause).__name__}: {cause}") from cause
    if not isinstance(entry, ModelEntry):
        raise InvalidArgument(
            f"module {place!r} returned {type(entry).__name__}; expected a rdukit_zoo.registry.ModelEntry"
        )
    return entry


def chosen_sizes(box: Box, entry: ModelEntry, parameters: Mapping[str, ParameterValue]) -> dict[str, SizeValue]:
    """Return all sizes of the model: the box's and those of ``parameters`` override the variant's, if one is named.

    Raises:
        InvalidArgument: the model has no such size or variant.
    """
    variant = str(parameters.get(VARIANT, TINY))
    if variant == TINY:
        return entry.check_sizes(box.sizes_with(parameters))
    given = {p.name: parameters[p.name] for p in box.parameters if p.size and holds(p.when, parameters)}
    return entry.check_sizes(entry.sizes_of(variant) | given)


def model_name_of(box: Box) -> str:
    """Return the model's name in PEFs and checkpoints: its zoo entry, or the path of its own module."""
    return str(box.module or box.model)


def read_shape(box: Box, pef: Path) -> Shape:
    """Return the shape that the PEF at ``pef`` was compiled with.

    Raises:
        PefError: the file cannot be read.
        PefMismatch: it was not compiled by a ModelBox, or by one with another model.
    """
    loaded = read_pef(pef)
    shape = shape_of(loaded.pef, str(pef))
    shape = replace(shape, choices=_choices_of(loaded, shape.task))
    if shape.model != model_name_of(box):
        raise PefMismatch(
            f"{pef} was compiled from model {shape.model!r}, but box {box.name} serves {model_name_of(box)!r}"
        )
    # An earlier version wrote only the sizes.
    return shape if shape.identity else replace(shape, identity=entry_of(box).identity(shape.sizes))


def _choices_of(loaded: LoadedPef, task: str) -> dict[str, int]:
    """Return the number of legal values of each integer input: rows of its smallest table, or classes.

    In a task of classes, the target [B, …] is compared with an output [B, classes, …], as in torch's cross entropy.
    """
    pef = loaded.pef
    inputs = [symbol.name for symbol in pef.symbols.values() if symbol.kind is SymbolKind.INPUT]
    found: dict[str, int] = {}
    for graph in pef.main_graphs():
        found |= find_tables(pef, loaded.kernels, forward_sections(pef, graph), inputs)
        if task in CLASS_TASKS and graph.inputs and graph.outputs:
            target, output = (pef.symbols[names[-1]] for names in (graph.inputs, graph.outputs))
            is_of_classes = len(output.shape) > 1 and (output.shape[0], *output.shape[2:]) == target.shape
            # A single score is not a class index: its targets may be 0 and 1.
            if target.host_dtype.startswith("int") and is_of_classes and output.shape[1] > 1:
                found[target.name] = output.shape[1]
    return found


def find_model_problems(box: Box, *, import_module: bool = False) -> Iterator[Problem]:
    """Yield contradictions between box and model, with their keys. A box's own module is imported only with
    ``import_module``.
    """
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

"""``--gen-tensorboard``: a compiled PEF as TensorBoard's event file: its graph, and figures of its sections.

The graph has a scope for each section with the operators of its kernel, and a node for each tensor that no section
makes. Scalars have the section's id as their step; all of them are projected by the cost model.

Source: SDK reference 8.1 (the option's name); what the file holds is ours. Written by tensorboardX.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rdukit.hardware import ChipSpec, find_chip
from rdukit.pef.file import LoadedPef
from rdukit.pef.kernel import KernelGraph, references
from rdukit.pef.model import Pef, Section

#: Folder of the event file, next to the PEF.
FOLDER: Final = "tensorboard"
#: End of the file's name, which distinguishes it from files of the program, such as training logs.
_ENDING: Final = ".compile"
#: Characters that TensorBoard does not allow in names of nodes.
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_.\-]")
#: The version of TensorFlow's graphs that the nodes follow.
_PRODUCER: Final = 22


def write_event_file(loaded: LoadedPef, folder: Path) -> Path:
    """Write the event file into ``folder``, in the place of earlier ones of this kind; returns the folder.

    Raises:
        OSError: it cannot be written.
    """
    from tensorboardX.summary import scalar
    from tensorboardX.writer import FileWriter

    folder.mkdir(parents=True, exist_ok=True)
    for earlier in folder.glob(f"events.out.tfevents.*{_ENDING}"):
        earlier.unlink()
    writer = FileWriter(str(folder), filename_suffix=_ENDING)
    try:
        writer.add_onnx_graph(make_graph(loaded.pef, loaded.kernels))
        for section in loaded.pef.sections:
            for name, value in section_figures(section, find_chip(loaded.pef.arch)).items():
                writer.add_summary(scalar(name, value), section.id)
    finally:
        writer.close()
    return folder


def make_graph(pef: Pef, kernels: Mapping[str, KernelGraph]) -> Any:
    """Return the graph of all sections in the order of their ids, as TensorFlow's ``GraphDef``."""
    from tensorboardX.proto.graph_pb2 import GraphDef
    from tensorboardX.proto.node_def_pb2 import NodeDef
    from tensorboardX.proto.versions_pb2 import VersionDef

    found = [NodeDef(name=name, op=op, input=inputs) for name, op, inputs in _nodes(pef, kernels)]
    return GraphDef(node=found, versions=VersionDef(producer=_PRODUCER))


def _nodes(pef: Pef, kernels: Mapping[str, KernelGraph]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each node's name, operator and inputs."""
    made: dict[str, str] = {}  # tensor → node that has it
    taken: set[str] = set()

    def unique(name: str) -> str:
        number, found = 2, name
        while found in taken:
            found, number = f"{name}_{number}", number + 1
        taken.add(found)
        return found

    for section in pef.sections:
        scope = f"{_plain(section.graph)}/{section.id}_{_plain(section.name)}"
        kernel = kernels[section.kernel]
        values: dict[str, str] = {}
        for spec, tensor in zip(kernel.inputs, section.inputs, strict=True):
            if tensor not in made:
                made[tensor] = unique(f"tensors/{_plain(tensor)}")
                yield made[tensor], pef.symbols[tensor].kind.value, []
            values[spec.name] = made[tensor]
        for node in kernel.nodes:
            read = [values[name] for name in references([*node.args, *node.kwargs.values()])]
            values[node.name] = unique(f"{scope}/{_plain(node.name)}")
            yield values[node.name], node.op, list(dict.fromkeys(read))
        for tensor, output in zip(section.outputs, kernel.outputs, strict=True):
            if output is not None:
                made[tensor] = values[output]


def _plain(name: str) -> str:
    """Return a name that TensorBoard takes for one level."""
    return _FOREIGN.sub("_", name).lstrip("_-") or "unnamed"


def section_figures(section: Section, chip: ChipSpec) -> dict[str, float]:
    """Return a section's projected scalars."""
    cost, used = section.cost, section.resources
    pcus, pmus = used.tiles * chip.pcus_per_tile, used.tiles * chip.pmus_per_tile
    return {
        "projected/seconds": cost.seconds,
        "projected/flops": float(cost.flops),
        "projected/bytes": float(cost.bytes_in + cost.bytes_weights + cost.bytes_out),
        "projected/pcu_utilization": used.pcus / pcus if pcus else 0.0,
        "projected/pmu_utilization": used.pmus / pmus if pmus else 0.0,
    }

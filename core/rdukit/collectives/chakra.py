"""Execution traces in MLCommons Chakra's schema, which ASTRA-sim and other simulators of networks read.

A trace is one projected training step of one rank. It has a node for each section in the order of the schedule, and
each node depends on the one before. Compute nodes have the projected time of their section. Reduce sections are
collective nodes with a size; the simulator finds their time.

Source: https://github.com/mlcommons/chakra, ``schema/protobuf/et_def.proto`` and the attributes that its feeder reads.
"""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from google.protobuf.proto import serialize_length_prefixed

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_atomic
from rdukit.pef.model import Pef, Section, SectionType
from rdukit.proto.chakra_pb2 import ALL_REDUCE, COMM_COLL_NODE, COMP_NODE, AttributeProto, GlobalMetadata, Node

#: Version of the schema in the first message of each file.
SCHEMA: Final = "0.0.4"
#: Bytes of all files of a trace together.
MAX_BYTES: Final = 2**30


def chakra_trace(sections: Sequence[Section], slowdown: float = 1.0) -> bytes:
    """Return one rank's step as the bytes of an ``.et`` file: metadata, then nodes, each after its length as a varint.

    Times are whole microseconds, ``slowdown`` times the projected ones. Ends of nodes are rounded, not their lengths,
    so that no rounding adds up.
    """
    out = io.BytesIO()
    serialize_length_prefixed(GlobalMetadata(version=SCHEMA), out)
    for node in _nodes(sections, slowdown):
        serialize_length_prefixed(node, out)
    return out.getvalue()


def write_chakra(folder: Path, name: str, pef: Pef, ranks: int, straggler: float = 1.0) -> list[Path]:
    """Write ``folder/NAME.RANK.et`` for each rank, and return the files. ``folder`` is created.

    Rank 0 takes ``straggler`` times as long for its sections as the others.

    Raises:
        InvalidArgument: the files would be too large together.
        OSError: the folder cannot be written.
    """
    sections = [pef.sections[number] for graph in pef.main_graphs() for number in graph.schedule]
    trace, slow = chakra_trace(sections), chakra_trace(sections, straggler)
    if ranks * len(trace) > MAX_BYTES:
        raise InvalidArgument(
            f"traces of {ranks} ranks have {ranks * len(trace)} bytes; expected at most {MAX_BYTES}; choose fewer "
            "--ranks"
        )
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.{rank}.et" for rank in range(ranks)]
    for rank, file in enumerate(files):
        write_atomic(file, trace if rank else slow)
    return files


def _nodes(sections: Sequence[Section], slowdown: float) -> Iterator[Node]:
    clock, last = 0.0, 0
    for number, section in enumerate(sections):
        node = Node(id=number, name=section.name, data_deps=[number - 1] if number else [])
        node.attr.append(AttributeProto(name="is_cpu_op", bool_val=False))
        if section.type is SectionType.REDUCE:
            node.type = COMM_COLL_NODE
            node.attr.append(AttributeProto(name="comm_type", int64_val=ALL_REDUCE))
            node.attr.append(AttributeProto(name="comm_size", int64_val=section.cost.bytes_in))
        else:
            clock += section.cost.seconds * slowdown
            end = round(clock * 1e6)
            node.type, node.start_time_micros, node.duration_micros, last = COMP_NODE, last, end - last, end
            moved = section.cost.bytes_in + section.cost.bytes_out + section.cost.bytes_weights
            node.attr.append(AttributeProto(name="num_ops", int64_val=section.cost.flops))
            node.attr.append(AttributeProto(name="tensor_size", uint64_val=moved))
        yield node

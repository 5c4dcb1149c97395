"""The cost model: what operators do, and what a section would take on the emulated chip. All of it is projected."""

from rdukit_compiler.cost.model import memory_bandwidth, project
from rdukit_compiler.cost.work import OpWork, Shape, WorkKind, operator_work

__all__ = ["OpWork", "Shape", "WorkKind", "memory_bandwidth", "operator_work", "project"]

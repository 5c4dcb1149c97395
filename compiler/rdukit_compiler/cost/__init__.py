"""The cost model: what operators do, and what a section would take on the emulated chip. All of it is projected."""

from rdukit_compiler.cost.model import StageCost, memory_bandwidth, project, project_stages
from rdukit_compiler.cost.work import OpWork, Shape, WorkKind, operator_work

__all__ = ["OpWork", "Shape", "StageCost", "WorkKind", "memory_bandwidth", "operator_work", "project", "project_stages"]

"""The cost model: the work of operators, and the projected time and resources of a section on the emulated chip."""

from rdukit_compiler.cost.model import StageCost, memory_bandwidth, project, project_stages
from rdukit_compiler.cost.work import OpWork, Shape, WorkKind, operator_work

__all__ = ["OpWork", "Shape", "StageCost", "WorkKind", "memory_bandwidth", "operator_work", "project", "project_stages"]

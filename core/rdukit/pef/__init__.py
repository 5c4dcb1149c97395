"""The PEF file: what the compiler writes and the runtime reads, and the only thing between them."""

from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, TensorSpec
from rdukit.pef.model import Cost, Graph, Pef, Resources, Section, SectionType, Symbol, SymbolKind
from rdukit.pef.read import read_pef
from rdukit.pef.write import write_pef

__all__ = [
    "Cost",
    "Graph",
    "KernelGraph",
    "KernelNode",
    "Pef",
    "Ref",
    "Resources",
    "Section",
    "SectionType",
    "Symbol",
    "SymbolKind",
    "TensorSpec",
    "read_pef",
    "write_pef",
]

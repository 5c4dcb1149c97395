"""The PEF file, which the compiler writes and the runtime reads: the only connection between them."""

from rdukit.pef.file import read_pef, write_pef
from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, TensorSpec
from rdukit.pef.model import Cost, Graph, Pef, Section, SectionResources, SectionType, Symbol, SymbolKind

__all__ = [
    "Cost",
    "Graph",
    "KernelGraph",
    "KernelNode",
    "Pef",
    "Ref",
    "Section",
    "SectionResources",
    "SectionType",
    "Symbol",
    "SymbolKind",
    "TensorSpec",
    "read_pef",
    "write_pef",
]

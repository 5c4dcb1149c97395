"""The compiler: a traced graph in, a PEF out. Read ``pipeline.py`` first.

Front ends, such as the SDK, use only the names below. A module is imported when one of its names is first used: a
program that runs a PEF does not wait for the passes.
"""

from typing import TYPE_CHECKING, Final

from rdukit.system.lazy_names import lazy_face

if TYPE_CHECKING:
    from rdukit_compiler.capture.evaluation import computes_the_same as computes_the_same
    from rdukit_compiler.capture.evaluation import evaluation_graph as evaluation_graph
    from rdukit_compiler.capture.evaluation import evaluation_name as evaluation_name
    from rdukit_compiler.capture.evaluation import with_shared_names as with_shared_names
    from rdukit_compiler.capture.from_fx import model_graph_from_fx as model_graph_from_fx
    from rdukit_compiler.capture.gradient_flow import check_frozen as check_frozen
    from rdukit_compiler.capture.gradient_hooks import ModuleHooks as ModuleHooks
    from rdukit_compiler.capture.gradient_hooks import RecordedHook as RecordedHook
    from rdukit_compiler.capture.gradient_hooks import hook_tensor as hook_tensor
    from rdukit_compiler.capture.known_lengths import DATA_DEPENDENT as DATA_DEPENDENT
    from rdukit_compiler.capture.lazy_torch_imports import without_dynamo as without_dynamo
    from rdukit_compiler.capture.meta_rules import FakeMode as FakeMode
    from rdukit_compiler.capture.record import is_of_transformation as is_of_transformation
    from rdukit_compiler.capture.record import record_forward as record_forward
    from rdukit_compiler.capture.record_nodes import DTYPE_READERS_META as DTYPE_READERS_META
    from rdukit_compiler.capture.record_nodes import LABELS_META as LABELS_META
    from rdukit_compiler.capture.record_nodes import MODULE_META as MODULE_META
    from rdukit_compiler.capture.record_nodes import READ_META as READ_META
    from rdukit_compiler.capture.signature import check_signature as check_signature
    from rdukit_compiler.capture.signature import graph_signature as graph_signature
    from rdukit_compiler.ir import ModelGraph as ModelGraph
    from rdukit_compiler.ir import Operator as Operator
    from rdukit_compiler.ir import Value as Value
    from rdukit_compiler.ir import ValueKind as ValueKind
    from rdukit_compiler.operators.run_operator import call_promoting as call_promoting
    from rdukit_compiler.operators.run_operator import quiet_refusals as quiet_refusals
    from rdukit_compiler.optimizer import STATES as STATES
    from rdukit_compiler.optimizer import OptimizerGroup as OptimizerGroup
    from rdukit_compiler.options import CompileOptions as CompileOptions
    from rdukit_compiler.passes.join_regions import convert_output as convert_output
    from rdukit_compiler.pipeline import TracedGraph as TracedGraph
    from rdukit_compiler.pipeline import compile_graphs as compile_graphs
    from rdukit_compiler.reports import ConsoleReporter as ConsoleReporter
    from rdukit_compiler.settings import ARCH as ARCH
    from rdukit_compiler.settings import HOST_FALLBACK as HOST_FALLBACK
    from rdukit_compiler.settings import PRECISION as PRECISION
    from rdukit_compiler.settings import SUPPOSE_EXAMPLE as SUPPOSE_EXAMPLE
else:
    #: Module → its public names.
    FACE: Final = {
        "rdukit_compiler.capture.evaluation": "computes_the_same evaluation_graph evaluation_name with_shared_names",
        "rdukit_compiler.capture.from_fx": "model_graph_from_fx",
        "rdukit_compiler.capture.gradient_flow": "check_frozen",
        "rdukit_compiler.capture.gradient_hooks": "ModuleHooks RecordedHook hook_tensor",
        "rdukit_compiler.capture.known_lengths": "DATA_DEPENDENT",
        "rdukit_compiler.capture.lazy_torch_imports": "without_dynamo",
        "rdukit_compiler.capture.meta_rules": "FakeMode",
        "rdukit_compiler.capture.record": "is_of_transformation record_forward",
        "rdukit_compiler.capture.record_nodes": "DTYPE_READERS_META LABELS_META MODULE_META READ_META",
        "rdukit_compiler.capture.signature": "check_signature graph_signature",
        "rdukit_compiler.ir": "ModelGraph Operator Value ValueKind",
        "rdukit_compiler.operators.run_operator": "call_promoting quiet_refusals",
        "rdukit_compiler.optimizer": "STATES OptimizerGroup",
        "rdukit_compiler.options": "CompileOptions",
        "rdukit_compiler.passes.join_regions": "convert_output",
        "rdukit_compiler.pipeline": "TracedGraph compile_graphs",
        "rdukit_compiler.reports": "ConsoleReporter",
        "rdukit_compiler.settings": "ARCH HOST_FALLBACK PRECISION SUPPOSE_EXAMPLE",
    }

    __getattr__, __dir__ = lazy_face(__name__, FACE)

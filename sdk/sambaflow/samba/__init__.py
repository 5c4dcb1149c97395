"""``samba``: SambaTensors, conversion, the session, optimizers, utilities.

``samba.session`` is the process's one ``SambaSession``; the module of that name stays importable by its full path.
"""

import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.serialization import add_safe_globals

from sambaflow.samba import conversion, directives, env, nn, optim, sambaloader, sambatensor, utils
from sambaflow.samba.conversion import (
    arange,
    from_named_dict,
    from_torch,
    from_torch_,
    from_torch_model_,
    full,
    normal,
    ones,
    rand,
    randint,
    randn,
    randn_like,
    tensor,
    to_torch,
    zeros,
)
from sambaflow.samba.functional import addmm, torch_function
from sambaflow.samba.nn.parameter import SambaParameter
from sambaflow.samba.sambaloader import SambaLoader
from sambaflow.samba.sambatensor import SambaTensor, SambaTensors, from_torch_tensor
from sambaflow.samba.session import SambaSession
from sambaflow.samba.sn_private import groupby, triu_fill
from sambaflow.samba.utils import set_seed, trace_multigraph
from sambaflow.sessions import set_current_session
from sambaflow.sessions.data_parallel import offer_mpi_backend, offer_rdu_backend
from sambaflow.sessions.loaded import LegacyRun
from sambaflow.sessions.loop_requests import watch_torch_loops

#: The process's session. Importing the module ``sambaflow.samba.session`` bound this name to the module; the instance
#: replaces it.
session = SambaSession()
set_current_session(session)

# torch.load then accepts our models and tensors with weights_only; programs must register their own classes.
for _own in (SambaTensor, SambaTensors, SambaParameter, sambatensor.DimInfo, LegacyRun, *optim.OPTIMIZERS):
    add_safe_globals([_own])

# This must be here: programs call init_process_group('mpi') right after this import.
offer_mpi_backend()
offer_rdu_backend()
watch_torch_loops()


#: Submodules that are imported when first used.
_SUBMODULES = frozenset(
    {"argconf", "experiment_logger", "graph", "lazy_param", "materialize", "profiler", "schema", "test"}
)


def is_internal() -> bool:
    """Return whether this is the vendor's internal build: always False."""
    return False


def patched_torch() -> AbstractContextManager[None]:
    """Return a context for a host's gold run: operators on the host are torch's own already, so it has no effect."""
    return nullcontext()


def __getattr__(name: str) -> Any:
    """Return torch's function of that name on SambaTensors: ``samba.cat``, ``samba.sigmoid`` …"""
    if name.startswith("_"):
        raise AttributeError(name)
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    return torch_function(name)


__all__ = [
    "SambaLoader",
    "SambaParameter",
    "SambaSession",
    "SambaTensor",
    "SambaTensors",
    "addmm",
    "arange",
    "conversion",
    "directives",
    "env",
    "from_named_dict",
    "from_torch",
    "from_torch_",
    "from_torch_model_",
    "from_torch_tensor",
    "full",
    "groupby",
    "is_internal",
    "nn",
    "normal",
    "ones",
    "optim",
    "patched_torch",
    "rand",
    "randint",
    "randn",
    "randn_like",
    "sambaloader",
    "sambatensor",
    "session",
    "set_seed",
    "tensor",
    "to_torch",
    "trace_multigraph",
    "triu_fill",
    "utils",
    "zeros",
]

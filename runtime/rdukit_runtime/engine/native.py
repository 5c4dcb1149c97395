"""Loads native kernels: AOTInductor libraries with all state among their inputs. No compiler, no inductor needed."""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rdukit.cpu import cpu_signature
from rdukit.pef.model import Pef
from rdukit_runtime.engine.portable import Kernel

logger = logging.getLogger(__name__)

#: Libraries of this process by digest: the system's loader never really unloads one, so neither do we.
_RUNNERS: dict[str, Any] = {}


def why_not_native(pef: Pef, trusted: bool) -> str | None:
    """The reason why the PEF's libraries cannot be used here; None if they can."""
    if pef.torch_version != torch.__version__:
        return f"they were built for torch {pef.torch_version}, this is {torch.__version__}"
    if pef.cpu_capability != cpu_signature():
        return f"they were built for processor {pef.cpu_capability}, this is {cpu_signature()}"
    if not trusted:
        return "they were not built by this installation, and a library is code"
    return None


def load_native(digest: str, library: bytes) -> Kernel:
    """Load a library from memory and return its kernel; a library that this process has already is used again.

    Args:
        digest: of the library's bytes, or of the kernel that it was built from.
    """
    runner = _RUNNERS.get(digest)
    if runner is None:
        # The descriptor stays open: the system's loader takes a path that it has seen for the library it knows.
        descriptor = os.memfd_create("rdukit-kernel", os.MFD_CLOEXEC)
        with os.fdopen(os.dup(descriptor), "wb") as stream:
            stream.write(library)
        runner = _RUNNERS[digest] = torch._C._aoti.AOTIModelContainerRunnerCpu(f"/proc/self/fd/{descriptor}", 1)
    run = runner.run

    def kernel(inputs: Sequence[torch.Tensor], scalars: Mapping[str, float]) -> Sequence[torch.Tensor]:
        made: Sequence[torch.Tensor] = run(inputs)  # type: ignore[arg-type]  # a list, as the engine passes it
        return made

    return kernel

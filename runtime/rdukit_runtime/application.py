"""An application on a node: a PEF and a lease, from set-up to tear-down (runtime reference 3.1)."""

import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rdukit.errors import PefMismatch, RdukitError
from rdukit.hardware import find_chip
from rdukit.pef.model import Pef
from rdukit.pef.read import LoadedPef, read_pef
from rdukit_runtime.engine.native import load_native, why_not_native
from rdukit_runtime.engine.portable import Kernel, build_portable
from rdukit_runtime.engine.program import Program, persistent_layout
from rdukit_runtime.node import NodeLease, open_lease

logger = logging.getLogger(__name__)

#: Runs between two reports of counters to the node.
REPORT_EVERY = 64


class Application:
    """A loaded PEF that holds its tiles and memory until ``close``."""

    def __init__(self, loaded: LoadedPef, lease: NodeLease, kernels: Mapping[str, Kernel], native: int) -> None:
        self.path = loaded.path
        self.pef: Pef = loaded.pef
        self.lease = lease
        #: Kernels that run as native libraries.
        self.native_kernels = native
        _, size = persistent_layout(self.pef)
        self._region = lease.allocate("persistent", max(size, 1))
        self.program = Program(self.pef, kernels, self._region.buffer)
        self._reported = 0
        self._closed = False

    def run(self, graph: str | None, sections: tuple[int, ...], scalars: Mapping[str, float]) -> None:
        """Run sections of a graph; counters go to the node from time to time."""
        self.program.run(self.program.find_graph(graph), sections, scalars)
        if self.program.counters.runs - self._reported >= REPORT_EVERY:
            self.report()

    def report(self) -> None:
        """Tell the node what has run so far."""
        counters = self.program.counters
        self._reported = counters.runs
        self.lease.report(
            {
                "runs": counters.runs, "sections": counters.sections, "cycles": counters.emulated_cycles,
                "flops": counters.flops, "bytes": counters.bytes, "host_seconds": counters.host_seconds,
                "phase": "exec",
            }
        )  # fmt: skip

    def figures(self) -> dict[str, Any]:
        """Counters as plain values: emulated figures are projections, host figures are this machine's."""
        found = asdict(self.program.counters)
        found["native_kernels"] = self.native_kernels
        found["tiles"] = list(self.lease.tiles)
        found["node"] = self.lease.kind
        return found

    def close(self) -> None:
        """Tear down: free the memory, end the lease. Calling again does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._reported < self.program.counters.runs:
                self.report()
        except RdukitError as error:  # the lease is gone already, or the daemon is: there is nobody to tell
            logger.warning("last report failed pef=%s reason=%s", self.path.name, error.message)
        finally:
            self.lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_application(
    path: Path | str, name: str, arch: str | None = None, launch: str | None = None
) -> Application:  # fmt: skip
    """Read and check the PEF at ``path``, lease what it needs, and load it.

    Args:
        name: of the application, for the node's tools. arch: the chip that the caller expects; None takes the PEF's.
        launch: shared by the ranks of one program, which count as one application.
    Raises:
        PefError: the file cannot be used; NoResources: the node has no room, with what would fit.
    """
    loaded = read_pef(path)
    pef = loaded.pef
    if arch is not None and find_chip(arch).name != pef.arch:
        raise PefMismatch(f"{path} was compiled for {pef.arch}, not for {arch}; compile with --arch {arch}")
    lease = open_lease(
        name, arch=pef.arch, tiles=pef.num_tiles, memory_bytes=max(pef.region_bytes, 1) + (1 << 20), launch=launch
    )
    for section in pef.sections:
        if section.heuristic == "host":
            logger.warning("runs on the host pef=%s section=%s reason=%s", loaded.path.name, section.name, section.why)
    try:
        kernels, native = _load_kernels(loaded)
        return Application(loaded, lease, kernels, native)
    except BaseException:
        lease.release()
        raise


def _load_kernels(loaded: LoadedPef) -> tuple[dict[str, Kernel], int]:
    """Kernels by digest, native where that is possible, and how many are."""
    reason = why_not_native(loaded.pef, loaded.natives_trusted) if loaded.natives else None
    if reason is not None:
        logger.warning("native kernels not used pef=%s reason=%s; running generated code", loaded.path.name, reason)
    natives = loaded.natives if reason is None else {}
    kernels = {
        digest: load_native(digest, natives[digest]) if digest in natives else build_portable(graph)
        for digest, graph in loaded.kernels.items()
    }
    return kernels, len(natives)

"""An application on a node: a PEF and a lease, from set-up to tear-down (runtime reference 3.1).

SIGTERM ends a program with a lease in order: callbacks run, the lease is released, then the signal kills the program.

Source: runtime reference 2.1, 3.2 (jobs are stopped with SIGTERM so that the runtime can end cleanly; sn.log
distinguishes cancelled and failed ones).
"""

import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch

from rdukit.system.process import gc_paused

# A full collection looks at all of torch's objects, for longer than the first run of a small PEF takes.
with gc_paused():
    from rdukit.errors import LeaseLost, NumericalException, PefError, PefMismatch, RuntimeFault, SNRuntimeError
    from rdukit.hardware import find_chip
    from rdukit.interfaces import Closable
    from rdukit.pef.chips import leased_bytes
    from rdukit.pef.debug import DebugLevel, describe_addresses, print_debug
    from rdukit.pef.file import LoadedPef, read_pef
    from rdukit.pef.kernel import KernelGraph
    from rdukit.pef.memory import persistent_layout
    from rdukit.pef.model import Graph, Pef
    from rdukit.pef.units import KERNELS_LATER
    from rdukit.settings import TELEMETRY_RUN_SPANS, TELEMETRY_SECTIONS, resolve
    from rdukit.telemetry.model import Attribute, Span
    from rdukit.telemetry.spans import begin_span, end_span, is_traced, span
    from rdukit_node.logs.files import application_log
    from rdukit_node.private_node import NodeLease, open_lease
    from rdukit_node.status_page import HOST, PROGRAM_LOAD, QUIESCE
    from rdukit_runtime.engine.device import CPU, application_closed, application_opened, engine_device, run_on_host
    from rdukit_runtime.engine.native import load_native, why_not_native
    from rdukit_runtime.engine.portable import Kernel, build_portable
    from rdukit_runtime.engine.program import HostTensors, LoadedProgram, RunTimes
    from rdukit_runtime.engine.threads import LeasedThreads
    from rdukit_runtime.settings import NUMERICS_TRAP

logger = logging.getLogger(__name__)

#: Name of programs in sn.log, as in the vendor's runtime.
PROGRAM = "python"


class Application(Closable):
    """A loaded PEF that holds its tiles and memory until ``close``."""

    def __init__(
        self, loaded: LoadedPef, lease: NodeLease, kernels: Mapping[str, Kernel], native: frozenset[str],
        device: torch.device = CPU, why_portable: str = "",
    ) -> None:  # fmt: skip
        self.path = loaded.path
        self.pef: Pef = loaded.pef
        self.lease = lease
        #: Digests of the kernels that run as native libraries, and their number.
        self.native_digests = native
        self.native_kernels = len(native)
        #: Which kernels run, in words: native libraries or generated code, and why.
        self.kernels_told = tell_kernels(len(native), len(loaded.kernels), why_portable)
        _, size = persistent_layout(self.pef)
        self._region = lease.allocate("persistent", max(size, 1))
        self._threads = LeasedThreads(lease.cores)
        self.program = LoadedProgram(self.pef, kernels, self._region.buffer, lease.page, device, self._threads)
        self._traps = resolve(NUMERICS_TRAP)
        self._log = application_log(PROGRAM)
        #: The span of everything until ``close``, and the number of runs that still get a span of their own below it.
        self._span: Span | None = None
        self._runs_to_trace = 0
        if is_traced():
            about: dict[str, Attribute] = {"rdukit.pef": loaded.pef.name, "rdukit.arch": loaded.pef.arch}
            self._span = begin_span("device", {**about, "rdukit.tiles": len(lease.tiles)})
            self._runs_to_trace = resolve(TELEMETRY_RUN_SPANS)
        self._owner = os.getpid()
        self._closed = False
        call_at_termination(self._cancel)
        application_opened()

    @property
    def threads(self) -> int:
        """The most threads that a run computes with."""
        return self._threads.most

    def run(self, graph: str | None, sections: tuple[int, ...], scalars: Mapping[str, float]) -> None:
        """Run sections of a graph.

        Raises:
            HwException: the hardware failed before or during the run; its results cannot be trusted.
            LeaseLost: the node daemon ended. NumericalException: an output is not finite, and ``numerics.trap`` is on.
        """
        found = self.program.find_graph(graph)
        try:
            self.lease.check()
            if self._runs_to_trace > 0:
                self._run_traced(found, sections, scalars)
            else:
                self.program.run(found, sections, scalars)
            self.lease.check()
            if self._traps:
                self._check_numbers(found)
        except (SNRuntimeError, LeaseLost) as error:
            self._log.err("sn_run", error.message)
            raise

    def _run_traced(self, graph: Graph, sections: tuple[int, ...], scalars: Mapping[str, float]) -> None:
        """Run with a span; with ``telemetry.sections`` also one per section, unless other code times sections."""
        assert self._span is not None
        self._runs_to_trace -= 1
        program, before, earlier = self.program, self.program.counters, self.program.section_seconds
        is_split = resolve(TELEMETRY_SECTIONS) and earlier is None
        about: dict[str, Attribute] = {"rdukit.graph": graph.name, "rdukit.sections": len(sections)}
        with span(f"run {graph.name}", about, parent=self._span.context) as run_span:
            try:
                if is_split:
                    program.section_seconds = []
                program.run(graph, sections, scalars)
            finally:
                measured, program.section_seconds = program.section_seconds, earlier
            run_span.set({"rdukit.emulated.cycles": program.counters.emulated_cycles - before.emulated_cycles})
            if is_split:
                self._tell_sections(run_span, measured or ())

    def _tell_sections(self, run: Span, measured: Sequence[tuple[int, float]]) -> None:
        """Record sections by their measured seconds, one after the other from the run's beginning."""
        at, by_id = run.start_ns, {section.id: section for section in self.pef.sections}
        for number, seconds in measured:
            section = by_id[number]
            about: dict[str, Attribute] = {"rdukit.section": number, "rdukit.section_type": str(section.type)}
            one = begin_span(f"section {section.name}", about, parent=run.context, start_ns=at)
            at += int(seconds * 1e9)
            end_span(one, at)

    def repeated(
        self, graph: str | None, sections: tuple[int, ...], scalars: Mapping[str, float], inputs: HostTensors,
        outputs: HostTensors,
    ) -> Callable[[], RunTimes]:  # fmt: skip
        """Return one call that copies ``inputs``, runs, and copies into ``outputs``, for repeated use.

        Args:
            inputs, outputs: tensors of the host by their symbols; each call uses their present content.
        Raises:
            UnknownTensor, ShapeMismatch: as ``LoadedProgram.write``; the call raises what ``run`` does.
        """
        found = self.program.find_graph(graph)
        run, check = self.program.repeated(found, sections, scalars, inputs, outputs), self.lease.check

        def checked() -> RunTimes:
            try:
                times = run()
                check()  # also of what failed before: nothing was answered then
                if self._traps:
                    self._check_numbers(found)
            except (SNRuntimeError, LeaseLost) as error:
                self._log.err("sn_run", error.message)
                raise
            return times

        return checked

    def _check_numbers(self, graph: Graph) -> None:
        for name in graph.outputs:
            if not self.program.has_value(name):
                continue
            tensor = self.program.device_tensor(name)
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise NumericalException(
                    f"output {name!r} of graph {graph.name!r} has NaN or infinite elements; unset "
                    f"${NUMERICS_TRAP.variable} to continue, or check the inputs, the learning rate and the precision",
                    tensor=name, graph=graph.name,
                )  # fmt: skip

    def figures(self) -> dict[str, Any]:
        """Return counters as plain values: emulated figures are projections, host figures are this machine's.

        On the daemon's node, ``route`` describes how the gradients avoid links that are out of service.
        """
        from rdukit_runtime.collectives.route import find_route  # only reports need plans

        found = asdict(self.program.counters)
        found["native_kernels"] = self.native_kernels
        found["device"] = str(self.program.device)
        found["threads"] = self._threads.most
        found["tiles"] = list(self.lease.tiles)
        found["node"] = self.lease.kind
        if self.program.exchange is not None:
            gradients = found["gradients"] = self.program.exchange.figures()
            is_shared = self.lease.kind == "daemon"
            size, ranks = max(gradients["bytes"], 1), gradients["world_size"]
            gradients["route"] = find_route(ranks, self.pef.num_tiles, size) if is_shared else None
        return found

    def _counted(self) -> dict[str, Attribute]:
        counters = self.program.counters
        return {
            "rdukit.runs": counters.runs, "rdukit.host_seconds": round(counters.host_seconds, 6),
            "rdukit.emulated.seconds": counters.emulated_seconds, "rdukit.emulated.cycles": counters.emulated_cycles,
        }  # fmt: skip

    def close(self) -> None:
        """Tear down: free the memory, end the lease. Calling again does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._span is not None:
            self._span.set(self._counted())
            end_span(self._span)
        self.lease.page.enter(QUIESCE)
        self.lease.release()
        application_closed()
        self._log.info("sn_destroy_session", f"PEF File: {self.path}")

    def _cancel(self) -> None:
        """Handle SIGTERM: log that it was not a failure, and release everything."""
        if not self._closed and os.getpid() == self._owner:
            self._log.notice("sn_cancel", f"cancelled by SIGTERM, lease {self.lease.id}")
            self.close()


#: Why a PEF has none.
_NO_LIBRARIES = (
    "the PEF has no libraries: it was compiled without a C++ compiler, with RDUKIT_KERNELS=portable or in mode o0; "
    "build them with rdukit pef build"
)
#: The same, of a model that is served before they are built.
_LIBRARIES_COME = "native kernels are not built yet"


@gc_paused()
def open_application(
    path: Path | str, name: str, arch: str | None = None, launch: str | None = None,
    build: Callable[[KernelGraph], Kernel] | None = None,
) -> Application:  # fmt: skip
    """Read and check the PEF at ``path``, lease its resources, and load it.

    Args:
        name: of the application, for the node's tools. arch: the chip that the caller expects; None: the PEF's.
        launch: shared by the ranks of one program, which count as one application.
        build: makes every kernel from its graph; None: native libraries are used if they fit.
    Raises:
        PefError: the file cannot be used; NoResources: the node has no room; the message says what would fit.
    """
    sn_log = application_log(PROGRAM)
    sn_log.info("sn_create_session", f"PEF File: {path}")
    with span("load PEF", {"rdukit.pef": Path(path).stem}):
        try:
            loaded = read_pef(path)
            pef = loaded.pef
            if arch is not None and find_chip(arch).name != pef.arch:
                raise PefMismatch(f"{path} was compiled for {pef.arch}, not for {arch}; compile with --arch {arch}")
            device = engine_device()
            lease = _lease_for(pef, name, launch)
        except (PefError, RuntimeFault) as error:
            sn_log.err("sn_create_session", error.message)
            raise
        sn_log.info("sn_create_session", f"lease {lease.id}: {', '.join(lease.tiles)}")
        for section in pef.sections:
            if section.heuristic == "host":
                logger.warning(
                    "runs on the host pef=%s section=%s reason=%s", loaded.path.name, section.name, section.why
                )
        print_debug(DebugLevel.ADDRESSES, f"device memory of {loaded.path.name}", lambda: describe_addresses(pef))
        with _released_on_failure(lease):
            lease.page.enter(PROGRAM_LOAD)
            kernels, native, why = _load_kernels(loaded, build, device)
            lease.page.enter(HOST)
    with _released_on_failure(lease):
        return Application(loaded, lease, kernels, native, device, why)


@contextmanager
def _released_on_failure(lease: NodeLease) -> Iterator[None]:
    try:
        yield
    except BaseException:
        lease.release()
        raise


def _lease_for(pef: Pef, name: str, launch: str | None) -> NodeLease:
    return open_lease(name, arch=pef.arch, tiles=pef.num_tiles, memory_bytes=leased_bytes(pef), launch=launch)


def tell_kernels(native: int, total: int, why_portable: str) -> str:
    """Describe which kernels run, for people. Pure.

    Args:
        why_portable: reason why all kernels are portable; empty if some are native, or could be.
    """
    if native == total:
        return f"native: all {total}"
    if native:
        return f"native: {native} of {total}; the other libraries have no native form or failed to build"
    return f"portable: {why_portable}"


def _load_kernels(
    loaded: LoadedPef, build: Callable[[KernelGraph], Kernel] | None, device: torch.device
) -> tuple[dict[str, Kernel], frozenset[str], str]:
    """Return kernels by digest (native if possible and ``build`` is None), the digests of native ones, and the reason
    if all are portable.
    """
    if build is not None:
        return {digest: build(graph) for digest, graph in loaded.kernels.items()}, frozenset(), "asked for"
    if device.type != "cpu":
        return _load_elsewhere(loaded, device), frozenset(), f"they run on {device}"
    reason = why_not_native(loaded.pef, loaded.is_trusted) if loaded.natives else None
    if reason is not None:
        logger.warning("native kernels not used pef=%s reason=%s; running generated code", loaded.path.name, reason)
    natives = loaded.natives if reason is None else {}
    kernels = {
        digest: (
            load_native(digest, natives[digest], len(graph.inputs), sum(name is not None for name in graph.outputs))
            if digest in natives
            else build_portable(graph, is_trusted=loaded.is_trusted)
        )
        for digest, graph in loaded.kernels.items()
    }
    why = _LIBRARIES_COME if KERNELS_LATER in loaded.pef.metadata else _NO_LIBRARIES
    return kernels, frozenset(natives), reason or why


def _load_elsewhere(loaded: LoadedPef, device: torch.device) -> dict[str, Kernel]:
    """Return kernels by digest for a GPU: generated code; sections that the program keeps on the host stay there."""
    if loaded.natives:
        logger.warning(
            "native kernels not used pef=%s device=%s reason=they were built for the host's processor; running "
            "generated code", loaded.path.name, device,
        )  # fmt: skip
    hosted = {section.kernel for section in loaded.pef.sections if section.heuristic == "host"}
    return {
        digest: (
            run_on_host(build_portable(graph, is_trusted=loaded.is_trusted), device)
            if digest in hosted
            else build_portable(graph, device, loaded.is_trusted)
        )
        for digest, graph in loaded.kernels.items()
    }


#: Called at SIGTERM, newest first, while their owners live.
_callbacks: Final[list["weakref.WeakMethod[Callable[[], None]]"]] = []
_is_installed = False


def call_at_termination(callback: Callable[[], None]) -> None:
    """Call the bound method ``callback`` on SIGTERM, before the signal kills the process.

    Has no effect if the program handles SIGTERM itself, or outside the main thread.
    """
    global _is_installed
    _callbacks[:] = [held for held in _callbacks if held() is not None]
    _callbacks.append(weakref.WeakMethod(callback))
    if _is_installed or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
        _is_installed = True


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one kills at once
    for held in reversed(_callbacks):
        callback = held()
        if callback is not None:
            callback()
    os.kill(os.getpid(), signal.SIGTERM)

"""All error classes of rdukit.

Each class has a stable ``code``, the exit status of a command, an HTTP status and a gRPC status. A class's docstring is
its manual entry. A message says what happened, with which value, what was expected, and the next step.
``find_system_error`` converts errors of the operating system.
"""

import errno
from collections.abc import Iterable, Mapping
from typing import ClassVar, Final

#: Header of an answer whose body has no place for an error's code.
ERROR_HEADER: Final = "x-rdukit-error"


class RdukitError(Exception):
    """Base class of all errors that rdukit raises."""

    code: ClassVar[str] = "internal"
    exit_status: ClassVar[int] = 1
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, /, **detail: object) -> None:
        super().__init__(message)
        self.message = message
        #: Values for machines, which ``json.dumps`` can encode.
        self.detail: dict[str, object] = detail

    def body(self, request_id: str | None = None) -> dict[str, object]:
        """Return the error body that all REST interfaces share."""
        return {"error": {"code": self.code, "message": self.message, "detail": self.detail, "request_id": request_id}}


# -- what the caller asked for ---------------------------------------------------------------------------------------


class InvalidArgument(RdukitError):
    """A value is invalid; the message lists the expected values."""

    code, exit_status, http_status, grpc_status = "invalid-argument", 2, 400, "INVALID_ARGUMENT"


class UnknownParameter(InvalidArgument):
    """A parameter that this ModelBox verb does not have."""

    code = "unknown-parameter"


class IllegalValue(InvalidArgument):
    """A parameter's value is outside its legal values."""

    code = "illegal-value"


class NotFound(RdukitError):
    """The named thing does not exist, or belongs to another tenant."""

    code, exit_status, http_status, grpc_status = "not-found", 3, 404, "NOT_FOUND"


class Unauthenticated(RdukitError):
    """No token, or one that is not valid."""

    code, exit_status, http_status, grpc_status = "unauthenticated", 5, 401, "UNAUTHENTICATED"


class PermissionDenied(RdukitError):
    """The token is valid but does not allow this, or the system does not allow it for a file."""

    code, exit_status, http_status, grpc_status = "permission-denied", 5, 403, "PERMISSION_DENIED"


class Conflict(RdukitError):
    """The object exists already, or another caller changed it first."""

    code, exit_status, http_status, grpc_status = "conflict", 6, 409, "ABORTED"


class InvalidTransition(Conflict):
    """A state machine has no transition for this event in this state."""

    code, grpc_status = "invalid-transition", "FAILED_PRECONDITION"


class PreconditionFailed(Conflict):
    """The content is not the version that ``If-Match`` names: another caller has replaced it. Start again."""

    code, http_status, grpc_status = "precondition-failed", 412, "FAILED_PRECONDITION"


class RangeNotSatisfiable(InvalidArgument):
    """The requested range begins beyond the end of the content."""

    code, http_status = "range-not-satisfiable", 416


class Unavailable(RdukitError):
    """A service that is needed does not answer; trying again later may help."""

    code, exit_status, http_status, grpc_status = "unavailable", 7, 503, "UNAVAILABLE"


class BackendUnavailable(Unavailable):
    """The container engine or cluster that runs ModelBoxes does not answer; its boxes may continue."""

    code = "backend-unavailable"


class StoreUnavailable(Unavailable):
    """The bucket of artifacts does not answer, or refuses. Jobs wait for it, and the request can be repeated."""

    code = "store-unavailable"


class ContentDamaged(RdukitError):
    """An artifact's content no longer matches its digest: the disk or another program changed it. Add the artifact
    again.
    """

    code = "content-damaged"


class NotFenced(RdukitError):
    """There are several tenants, and this machine cannot isolate their programs."""

    code, exit_status, http_status, grpc_status = "not-fenced", 5, 409, "FAILED_PRECONDITION"


class OutputRefused(RdukitError):
    """A box's output has something else than files and folders, or exceeds its limits."""

    code, exit_status, http_status, grpc_status = "output-refused", 4, 422, "FAILED_PRECONDITION"


class Overloaded(RdukitError):
    """More work waits than is allowed; send less, or again later."""

    code, exit_status, http_status, grpc_status = "overloaded", 7, 429, "RESOURCE_EXHAUSTED"


class DiskFull(RdukitError):
    """A file could not be written: no space is left on its disk, or of its quota."""

    code, exit_status, http_status, grpc_status = "disk-full", 7, 507, "RESOURCE_EXHAUSTED"


class QuotaExceeded(RdukitError):
    """A tenant has as many bytes of artifacts as it may; delete some, or ask an administrator for more."""

    code, exit_status, http_status, grpc_status = "quota-exceeded", 7, 413, "RESOURCE_EXHAUSTED"


class Cancelled(RdukitError):
    """The work was cancelled before it ended."""

    code, exit_status, http_status, grpc_status = "cancelled", 130, 409, "CANCELLED"


# -- requests and operations of a ModelBox ---------------------------------------------------------------------------


class MalformedRequest(InvalidArgument):
    """The request cannot be read: no JSON, an unknown field or query, or another type; the detail names each."""

    code, http_status = "malformed-request", 422


class RequestTooLarge(InvalidArgument):
    """The request's body is longer than the setting ``max_body_bytes`` of ``box`` or ``gateway`` allows."""

    code, http_status, grpc_status = "request-too-large", 413, "RESOURCE_EXHAUSTED"


class HeadersTooLarge(InvalidArgument):
    """The request's line and headers are longer than ``max_header_bytes`` of ``box`` or ``gateway`` allows."""

    code, http_status, grpc_status = "headers-too-large", 431, "RESOURCE_EXHAUSTED"


class RequestTimeout(InvalidArgument):
    """The rest of a request that had begun did not come in time."""

    code, http_status, grpc_status = "request-timeout", 408, "DEADLINE_EXCEEDED"


class DeadlineExceeded(RdukitError):
    """The work did not end within the time that its request gave it."""

    code, exit_status, http_status, grpc_status = "deadline-exceeded", 124, 504, "DEADLINE_EXCEEDED"


class ChildDied(RdukitError):
    """The process of an operation was killed or ended without a result; its log has details."""

    code, exit_status, http_status, grpc_status = "child-died", 8, 500, "INTERNAL"


class Stalled(ChildDied):
    """The process of an operation showed no sign of life for ``box.stall_s`` seconds and was killed."""

    code, http_status, grpc_status = "stalled", 504, "DEADLINE_EXCEEDED"


class OutOfMemory(ChildDied):
    """The process of an operation used more memory than its box allows, or the system killed it for memory."""

    code, http_status, grpc_status = "out-of-memory", 503, "RESOURCE_EXHAUSTED"


# -- compiler --------------------------------------------------------------------------------------------------------


class CompileError(RdukitError):
    """The model cannot be compiled without changes."""

    code, exit_status, http_status, grpc_status = "compile-error", 4, 422, "FAILED_PRECONDITION"


class TraceError(CompileError):
    """Tracing the forward pass failed: dynamic shapes, control flow that depends on data, or a bad input."""

    code = "trace-error"


class UnsupportedOperator(CompileError):
    """An operator that the compiler has no kernel for."""

    code = "unsupported-operator"


class DoesNotFit(CompileError):
    """A section needs more memory or units than its tiles have."""

    code = "does-not-fit"


class RuleError(CompileError):
    """A fusion rule file is wrong; the message names file, rule, entry, key and the expected values."""

    code, exit_status = "rule-error", 2


class InvalidGraph(CompileError):
    """A pass left a graph that breaks its spec: a bug of the compiler, reported with the pass's name."""

    code, http_status, grpc_status = "invalid-graph", 500, "INTERNAL"


# -- PEF -------------------------------------------------------------------------------------------------------------


class PefError(RdukitError):
    """A PEF file cannot be used."""

    code, exit_status, http_status, grpc_status = "pef-error", 4, 422, "FAILED_PRECONDITION"


class PefNotFound(PefError):
    """There is no PEF file at the path."""

    code, exit_status, http_status, grpc_status = "pef-not-found", 3, 404, "NOT_FOUND"


class PefCorrupt(PefError):
    """The file is not a PEF, is truncated, or does not match its own digests."""

    code = "pef-corrupt"


class PefNotAllowed(PefError):
    """The PEF names an operator that no PEF, or none that was not compiled by this installation, may run."""

    code = "pef-not-allowed"


class PefVersionMismatch(PefError):
    """The PEF was written in a format version that this runtime cannot read."""

    code = "pef-version-mismatch"


class PefMismatch(PefError):
    """The PEF was compiled from another graph, batch size, optimizer or target."""

    code = "pef-mismatch"


# -- runtime ---------------------------------------------------------------------------------------------------------


class RuntimeFault(RdukitError):
    """The runtime cannot do what was asked."""

    code, exit_status, http_status, grpc_status = "runtime-error", 8, 409, "FAILED_PRECONDITION"


class SectionFailed(RuntimeFault):
    """A section stopped at the values that it was given, such as an index beyond its table; the message names it."""

    code = "section-failed"


class NoResources(RuntimeFault):
    """The node has too few free tiles, memory or application places; the message says what would fit."""

    code, http_status, grpc_status = "no-resources", 503, "RESOURCE_EXHAUSTED"


class OutOfDeviceMemory(RuntimeFault):
    """The application's lease has less device memory than the application requests."""

    code, grpc_status = "out-of-device-memory", "RESOURCE_EXHAUSTED"


class LeaseLost(RuntimeFault):
    """The lease ended while it was still in use."""

    code = "lease-lost"


class LeaseWithdrawn(LeaseLost):
    """An administrator took the lease's tiles back: they are drained, or the lease was released. Start again."""

    code = "lease-withdrawn"


class PeerLost(RuntimeFault):
    """Another rank of a data-parallel program died, ended early, or did not answer in time."""

    code, http_status, grpc_status = "peer-lost", 503, "UNAVAILABLE"


class SNRuntimeError(RuntimeFault):
    """Something went wrong with the device under a running program. Links the failure to the node's fault database."""

    code = "device-error"

    def _detail(self, name: str) -> str | None:
        value = self.detail.get(name)
        return None if value is None else str(value)

    @property
    def component(self) -> str | None:
        """Path of the component, such as ``/NODE/XRDU_0/RDU_0/TILE_1``."""
        return self._detail("component")

    @property
    def error_uuid(self) -> str | None:
        """The row in ``snfadm -l error``."""
        return self._detail("error_uuid")

    @property
    def fault_uuid(self) -> str | None:
        """The row in ``snfadm -l fault``, if the error was diagnosed as a fault."""
        return self._detail("fault_uuid")

    @property
    def recovery(self) -> str | None:
        """Advice on what to do next."""
        return self._detail("recovery")


class HwException(SNRuntimeError):
    """The hardware failed under a running program; start it again after looking at ``snfadm -l fault -v``."""

    code = "hardware-error"


class DramUeException(HwException):
    """An uncorrectable error in device memory that the program's lease owns: its data cannot be trusted."""

    code = "dram-uncorrectable"


class ScratchpadUeException(HwException):
    """An uncorrectable error in the on-chip memory of one of the program's tiles."""

    code = "scratchpad-uncorrectable"


class D2dUeException(HwException):
    """An uncorrectable error of a link between dies that the program uses."""

    code = "d2d-uncorrectable"


class TileFaultException(HwException):
    """A tile of the program hung or was taken out of service."""

    code = "tile-fault"


class NumericalException(SNRuntimeError):
    """A run computed NaN or infinite outputs, which the setting ``numerics.trap`` turns into an exception."""

    code = "numerical-trap"


class UnknownTensor(InvalidArgument):
    """A tensor name that the PEF does not have."""

    code = "unknown-tensor"


class ShapeMismatch(InvalidArgument):
    """A tensor's shape or dtype differs from the one that was compiled."""

    code = "shape-mismatch"


def all_error_classes() -> Mapping[str, type[RdukitError]]:
    """Return every error class by its code, the root included; a class without a code of its own is left out."""
    found: dict[str, type[RdukitError]] = {}
    pending: list[type[RdukitError]] = [RdukitError]
    while pending:
        cls = pending.pop()
        if "code" in cls.__dict__:
            found[cls.code] = cls
        pending.extend(cls.__subclasses__())
    return found


def error_from_body(body: Mapping[str, object], fallback: type[RdukitError] = RdukitError) -> RdukitError:
    """Rebuild a received error from the body that ``RdukitError.body`` wrote."""
    error = body.get("error")
    if not isinstance(error, Mapping):
        return fallback(str(body))
    cls = all_error_classes().get(str(error.get("code")), fallback)
    detail = error.get("detail")
    return cls(str(error.get("message")), **(dict(detail) if isinstance(detail, Mapping) else {}))


#: Characters of a mistyped name that are compared; more would take longer.
MAX_SUGGESTED: Final = 100


def suggest(word: str, names: Iterable[str], *, is_sure: bool = False) -> str:
    """Return ``" Did you mean 'x'?"`` for the names similar to ``word``, or ``""`` if there are none.

    Args:
        is_sure: suggest all names, even dissimilar ones.
    """
    from difflib import get_close_matches

    near = list(names) if is_sure else get_close_matches(word[:MAX_SUGGESTED], list(names))
    return f" Did you mean {' or '.join(repr(str(name)) for name in near)}?" if near else ""


def name_legal(names: Iterable[str]) -> str:
    """Return ``legal: a, b`` for an error's message, or a note that there are no names yet (pure)."""
    listed = ", ".join(names)
    return f"expected {listed}" if listed else "there are none yet"


_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: Texts for a full disk in errors of libraries: Rust's, HDF5's, SQLite's.
_FULL_WORDS: Final = ("No space left on device", f"errno = {errno.ENOSPC}", "disk is full")
_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_NO_PATH: Final = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EEXIST, errno.ELOOP})


def find_system_error(error: Exception) -> RdukitError | None:
    """Return the rdukit error for a system error, with the file if known; None if there is no such error."""
    number = error.errno if isinstance(error, OSError) else None
    name = getattr(error, "filename", None)
    where = str(name) if isinstance(name, (str, bytes)) else ""
    detail = {"path": where} if where else {}
    if number in _FULL or (number is None and any(words in str(error) for words in _FULL_WORDS)):
        place = f"{where} cannot be written: " if where else ""
        return DiskFull(f"{place}no space is left on the disk or in the quota; make room and try again", **detail)
    if not isinstance(error, OSError) or not where:
        return None
    if number in _FORBIDDEN:
        return PermissionDenied(f"{where}: {error.strerror}; give the user of this process access to it", **detail)
    if number == errno.ENOENT:
        return NotFound(f"there is no file or folder {where}", **detail)
    if number in _NO_PATH:
        return InvalidArgument(f"{where}: {error.strerror}; choose another path", **detail)
    return None

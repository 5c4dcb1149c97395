"""Which parameters an inference, its inputs and its outputs may have; every other one is refused by name. Pure.

Source: Open Inference Protocol v2, whose parameters are the server's to define; Triton's extensions "sequence",
"schedule policy", "shared memory", "binary tensor data" and "classification".
"""

from collections.abc import Mapping
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit_modelbox.serving.classification import PARAMETER

#: Name → what is legal, in words. Of the request, over REST.
REQUEST_PARAMETERS: Final[Mapping[str, str]] = {"binary_data_output": "true or false"}
INPUT_PARAMETERS: Final[Mapping[str, str]] = {"binary_data_size": "a number of bytes"}
OUTPUT_PARAMETERS: Final[Mapping[str, str]] = {"binary_data": "true or false", PARAMETER: "a number of classes"}
#: Over gRPC, where contents are raw or typed for a whole request.
GRPC_OUTPUT_PARAMETERS: Final[Mapping[str, str]] = {PARAMETER: "a number of classes"}
NONE: Final[Mapping[str, str]] = {}

_SEQUENCES: Final = "sequences are not served: each request stands alone"
_SHARED_MEMORY: Final = "shared memory is not served: send and take tensors in the request and its answer"
#: The protocol's own parameters that mean nothing here, and why.
_NOT_SERVED: Final[Mapping[str, str]] = {
    "sequence_id": _SEQUENCES, "sequence_start": _SEQUENCES, "sequence_end": _SEQUENCES,
    "priority": "requests have no priorities: they are answered in the order in which they come",
    "timeout": "requests have no time limit here: close the connection, or set a deadline over gRPC, to take one back",
    "shared_memory_region": _SHARED_MEMORY, "shared_memory_offset": _SHARED_MEMORY,
    "shared_memory_byte_size": _SHARED_MEMORY,
}  # fmt: skip
#: What these have where a client does not use them.
_UNUSED: Final = (0, "", False)


def check_parameters(given: Mapping[str, object], legal: Mapping[str, str], where: str) -> None:
    """Raises ``InvalidArgument`` for the first parameter that is not in ``legal``, unless it says "not used"."""
    for name, value in given.items():
        if name in legal:
            continue
        reason = _NOT_SERVED.get(name)
        if reason is None:
            listed = ", ".join(legal) or "none"
            raise InvalidArgument(f"{where}: parameter {name[:80]!r} is not served; legal: {listed}")
        if value not in _UNUSED:
            raise InvalidArgument(f"{where}: parameter {name!r} is not served: {reason}; leave it out")

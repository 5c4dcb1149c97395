"""The process of one loaded model: ``python -m rdukit_serving.device.process --socket FD --parent PID``.

Sends ``{"kind": "ready", …}``, then runs its requests: batches in shared memory, or texts. A fault of the device, the
native kernels or their memory ends this process, but not the box.
"""

import contextlib
import gc
import mmap
import os
import re
import socket
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rdukit.system.process import die_with_parent
from rdukit_serving.device.messages import MAX_PACKET_BYTES, RAN, RUN, decode, encode, is_json

if TYPE_CHECKING:
    from rdukit_serving.device.loaded_model import LoadedModel

#: Paths of this machine in a message of torch or a kernel.
_PATH: Final = re.compile(r"(?<![\w.])/[^\s:,)\"']+")


def main(arguments: list[str]) -> int:
    """Load the model that the first message names, and serve until the box closes its end."""
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    die_with_parent(int(options["--parent"]))
    box = socket.socket(fileno=int(options["--socket"]))
    # After the watch on the parent: importing torch takes a second, and the box may end meanwhile.
    from rdukit.errors import RdukitError
    from rdukit.system.process import configure_logging
    from rdukit.telemetry.spans import BOX, name_service

    configure_logging()
    name_service(BOX)
    try:
        _serve(box, decode(box.recv(MAX_PACKET_BYTES)))
    except RdukitError as error:
        box.send(encode(kind="error", **error.body()))
        return error.exit_status
    except OSError:
        traceback.print_exc()
        return 1
    except Exception as error:  # noqa: BLE001 the process's boundary
        traceback.print_exc()
        box.send(encode(kind="error", error={"code": "internal", "message": f"{type(error).__name__}: {error}"}))
        return 1
    return 0


def _serve(box: socket.socket, first: dict[str, Any]) -> None:
    from rdukit.errors import InvalidArgument
    from rdukit.pef import read_pef
    from rdukit.pef.file import BOX_KEY
    from rdukit_serving.shape import shape_of

    pef = Path(first["pef"])
    checkpoint = Path(first["checkpoint"]) if first["checkpoint"] else None
    found = read_pef(pef).pef
    draft = tuple(map(Path, first["draft"]))
    if first["serving"].get("is_of_experts"):
        from rdukit_serving.text.expert_loop import serve_experts

        serve_experts(box, first["name"], pef, (draft[0], draft[1]) if draft else None)
        return
    if BOX_KEY in found.metadata and shape_of(found, str(pef)).text is not None:
        from rdukit_serving.text.process import serve_text

        serve_text(box, first["name"], pef, checkpoint, (draft[0], draft[1]) if draft else None)
        return
    if draft:
        raise InvalidArgument("a draft needs a model that generates text; serve this model without a draft")
    from rdukit_serving.device.loaded_model import LoadedModel

    with contextlib.closing(LoadedModel(first["name"], pef, checkpoint, first["serving"])) as model:
        _serve_batches(box, model)


def _serve_batches(box: socket.socket, model: "LoadedModel") -> None:
    import torch

    from rdukit.errors import RdukitError, RuntimeFault

    torch.set_grad_enabled(False)
    size = model.signature.shared_bytes
    descriptor = os.memfd_create("rdukit-batch", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size)
    shared = mmap.mmap(descriptor, size)
    model.bind(memoryview(shared))  # allocates, plans and touches everything before the first caller waits
    socket.send_fds(box, [encode(kind="ready", signature=model.signature.to_json())], [descriptor])
    os.close(descriptor)
    # Present objects stay; freezing them keeps garbage collections short.
    gc.collect()
    gc.freeze()
    while packet := box.recv(MAX_PACKET_BYTES):
        if is_json(packet):
            break
        sequence, rows = RUN.unpack(packet)
        try:
            box.send(RAN.pack(sequence, *(min(ns, 0xFFFFFFFF) for ns in model.run(rows))))
        except RdukitError as error:
            box.send(encode(kind="failed", sequence=sequence, **error.body()))
        except Exception as error:  # noqa: BLE001 a section that refuses its numbers has harmed nobody else's
            traceback.print_exc()
            reason = _PATH.sub("…", str(error).partition("\n")[0])
            fault = RuntimeFault(f"the model failed on this request: {type(error).__name__}: {reason}")
            box.send(encode(kind="failed", sequence=sequence, **fault.body()))


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is released; taking torch's modules apart would only cost a second.
    os._exit(status)

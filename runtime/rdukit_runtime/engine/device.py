"""The emulated device's real place: this machine's own memory, or a CUDA GPU; and memory kept between steps.

One PEF runs on either. On a GPU, persistent regions lie in its memory, and kernels run as generated ATen code (cuBLAS
and cuDNN); libraries built for the processor are not used. Runs are asynchronous as all of CUDA is: readers of a result
wait for it.

glibc returns large freed blocks to the system at once, and zeroes each new one page by page; that costs a fifth of a
step of a model with 124 million parameters. Freed memory therefore stays in the process while an
application is open. Source: ours.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from rdukit.errors import InvalidArgument, OutOfDeviceMemory
from rdukit.settings import DEVICE, resolve
from rdukit.system.allocator import find_glibc
from rdukit.units import format_bytes
from rdukit_runtime.settings import ENGINE_TF32, KEEP_MEMORY

CPU: Final = torch.device("cpu")

Kernel = Callable[[Sequence[torch.Tensor], Mapping[str, float]], Sequence[torch.Tensor]]


def engine_device() -> torch.device:
    """Return the device that the setting names; a CUDA device always with its number.

    Raises:
        InvalidArgument: the device does not exist, or this torch cannot use it.
    """
    text = resolve(DEVICE).strip().lower()
    if text == "cpu":
        return CPU  # asking torch about CUDA takes milliseconds
    has_cuda = torch.version.cuda is not None or torch.version.hip is not None
    count = torch.cuda.device_count() if has_cuda else 0
    return choose_device(text, count, torch.cuda.current_device() if count else 0, torch.__version__, has_cuda)


def choose_device(text: str, gpus: int, current: int, torch_version: str, has_cuda: bool) -> torch.device:
    """Return the device named ``text`` on a machine with ``gpus`` GPUs (pure).

    Args:
        current: number of the GPU that ``cuda`` alone means. has_cuda: whether this torch was built for CUDA.
    Raises:
        InvalidArgument: there is no such device; the message lists the legal ones.
    """
    if text == "cpu":
        return CPU
    found = re.fullmatch(r"cuda(?::(\d+))?", text)
    legal = ", ".join(["cpu", *(["cuda"] if gpus else []), *(f"cuda:{number}" for number in range(gpus))])
    if found is None:
        raise InvalidArgument(f"{DEVICE.name} is {text!r}; expected cpu, cuda, cuda:<number>; on this machine: {legal}")
    if not has_cuda:
        raise InvalidArgument(
            f"{DEVICE.name} is {text!r}, but torch {torch_version} was built without CUDA; expected cpu; for cuda "
            "install a CUDA build of torch (https://pytorch.org/get-started)"
        )
    number = current if found[1] is None else int(found[1])
    if number >= gpus:
        seen = f"torch sees {gpus} CUDA devices" if gpus else "torch sees no CUDA device: look at `nvidia-smi`"
        raise InvalidArgument(f"{DEVICE.name} is {text!r}, but {seen}; expected {legal}")
    return torch.device("cuda", number)


def allocate_regions(sizes: Mapping[str, int], device: torch.device) -> dict[str, torch.Tensor]:
    """Zeroed memory of each region, ``uint8`` [bytes], on a device that is not the host.

    One tensor per region: kernels may use an offset into the memory of an input, at whose begin they were traced.

    Raises:
        OutOfDeviceMemory: the GPU has less memory free.
    """
    try:
        return {name: torch.zeros(max(size, 1), dtype=torch.uint8, device=device) for name, size in sizes.items()}
    except torch.OutOfMemoryError as cause:
        raise out_of_memory(sum(sizes.values()), device) from cause


def out_of_memory(wanted: int, device: torch.device) -> OutOfDeviceMemory:
    """Return the error for a GPU that is full. ``wanted``: bytes that did not fit; 0: unknown."""
    what = f"{format_bytes(wanted)} of persistent memory" if wanted else "what a run needs"
    return OutOfDeviceMemory(
        f"{device} has no room for {what}; use a smaller model or batch, end other programs on that GPU, or run on the "
        f"host with {DEVICE.variable}=cpu",
        requested=wanted,
    )


def synchronise(device: torch.device) -> None:
    """Wait until everything that was started on ``device`` has ended."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def run_on_host(kernel: Kernel, device: torch.device) -> Kernel:
    """Return ``kernel``, whose operators exist on the host only, for tensors on ``device``: carried there and back."""

    def run(inputs: Sequence[torch.Tensor], scalars: Mapping[str, float]) -> Sequence[torch.Tensor]:
        carried = [tensor.to(CPU) for tensor in inputs]
        if type(inputs) is list:
            inputs.clear()  # see ``Kernel`` in portable.py
        made: list[Any] = [None if tensor is None else tensor.to(device) for tensor in kernel(carried, scalars)]
        return made

    return run


class _Precisions(NamedTuple):
    """Torch's process-wide switches that decide how a GPU multiplies."""

    matmul: str
    convolution: str
    recurrent: str
    bf16_sums: Any


@contextlib.contextmanager
def device_numbers(device: torch.device) -> Iterator[None]:
    """Let a CUDA device multiply as the setting ``engine.tf32`` says within the block, then as the program does.

    torch's default is TF32 in convolutions, and intermediate sums of bf16 products that may be rounded to bf16. Here
    both are off by default, so that f32 is f32 and sums are wide, as on the host. torch's switches apply to the
    process.
    """
    if device.type != "cuda":
        yield
        return
    former = _precisions()
    wanted = "tf32" if resolve(ENGINE_TF32) else "ieee"
    _set_precisions(_Precisions(wanted, wanted, wanted, False))
    try:
        yield
    finally:
        _set_precisions(former)


def _precisions() -> _Precisions:
    matmul, cudnn = _switches()
    return _Precisions(
        matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision,
        matmul.allow_bf16_reduced_precision_reduction,
    )  # fmt: skip


def _set_precisions(wanted: _Precisions) -> None:
    matmul, cudnn = _switches()
    matmul.fp32_precision = wanted.matmul
    cudnn.conv.fp32_precision = wanted.convolution
    cudnn.rnn.fp32_precision = wanted.recurrent
    matmul.allow_bf16_reduced_precision_reduction = wanted.bf16_sums


def _switches() -> tuple[Any, Any]:
    """torch's own names for them; it declares no types."""
    return torch.backends.cuda.matmul, torch.backends.cudnn


logger = logging.getLogger(__name__)

#: Parameters of ``mallopt``, of glibc's malloc.h.
_TRIM_THRESHOLD: Final = -1
_MMAP_MAX: Final = -4
#: Largest number of free bytes that glibc keeps at the heap's end: the maximum of ``mallopt``.
_KEPT: Final = 2**31 - 1

_open_applications = 0


def application_opened() -> None:
    """Keep freed memory in the process from now on, if the setting allows it and the C library is glibc."""
    global _open_applications
    _open_applications += 1
    libc = find_glibc()
    if libc is not None and resolve(KEEP_MEMORY):
        kept = libc.mallopt(_TRIM_THRESHOLD, _KEPT) and libc.mallopt(_MMAP_MAX, 0)
        logger.debug("freed memory is kept accepted=%s", bool(kept))


def return_freed_memory() -> None:
    """Return free memory to the system, after a program has loaded its data.

    Copies of weights in the host's dtypes would otherwise stay, because freed memory is kept for the next run.
    """
    libc = find_glibc()
    if libc is not None:
        libc.malloc_trim(0)


def application_closed() -> None:
    """Give the freed memory back to the system with the last application."""
    global _open_applications
    _open_applications -= 1
    libc = find_glibc()
    if _open_applications == 0 and libc is not None and resolve(KEEP_MEMORY):
        libc.malloc_trim(0)

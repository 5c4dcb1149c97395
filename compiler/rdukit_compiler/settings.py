"""Settings of the compiler."""

from typing import Final

from rdukit.settings import Setting, parse_bool

KERNEL_CHECK: Final = Setting(
    "kernel_check", "on",
    "Compare native kernels with portable ones before use; full: compare all inputs, without a time limit.",
    str, ("on", "full", "off"),
)  # fmt: skip
PRECISION: Final = Setting(
    "precision", "bf16", "Device arithmetic: bf16 as on the chip, or f32 for debugging.", str, ("bf16", "f32")
)
ARCH: Final = Setting("arch", "sn30", "Target chip for programs that name none.", str)
WORKERS: Final = Setting("compile.workers", 0, "Processes that build native kernels; 0 = one per usable core.", int)
SECTION_CACHE: Final = Setting(
    "compile.section_cache_mib", 256, "MiB of compiled sections kept for later compiles; 0 = none.", int
)
KERNEL_CACHE: Final = Setting(
    "compile.kernel_cache_mib", 2048, "MiB of native kernels kept for later compiles; 0 = none.", int
)

ROUTES: Final = Setting(
    "compile.routes", "",
    "Implementations of matrix products in native kernels: "
    "bf16=native|f32,f32=blas|onednn,few=f32|own,rows=ahead|sweep,"
    "attention=aten|own,linear=aten|own,convolution=onednn|winograd; empty: measured once per machine.", str,
)  # fmt: skip

HOST_FALLBACK: Final = Setting(
    "host_fallback", False, "Compile operators that the device lacks for the host instead of refusing them.",
    parse_bool,
)  # fmt: skip

SUPPOSE_EXAMPLE: Final = Setting(
    "suppose_example", False,
    "Where forward reads values that depend on inputs, compile for the values of the example inputs; each run checks "
    "them.", parse_bool,
)  # fmt: skip

"""Quantized weights of Hugging Face folders → numbers: fp8, AWQ, GPTQ and MXFP4, as ``quantization_config`` names them.

Each weight is several tensors on disk, which may be in different shards; they are read when the weight is.
Sources: the formats that transformers, AutoAWQ, AutoGPTQ and the OCP Microscaling specification (1.0) document.

Axes: O outputs, I inputs, G groups of inputs, P numbers of a 32-bit word, K blocks of 32 numbers, E experts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from rdukit.errors import InvalidArgument

Reader = Callable[[], torch.Tensor]

#: Methods of ``quantization_config`` that are read.
METHODS: Final = ("fp8", "awq", "gptq", "mxfp4")
#: Numbers of bits that fill a word.
_BITS: Final[Mapping[str, tuple[int, ...]]] = {"awq": (4,), "gptq": (2, 4, 8)}
#: Column of a word of AWQ's that each four bits hold, the lowest first.
_AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
#: Values of four bits, sign last: E2M1.
_FP4: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
#: Ends of the tensors that make one weight, the one that names it first.
_ENDS: Final[Mapping[str, tuple[str, ...]]] = {
    "fp8": (".weight", ".weight_scale_inv", ".activation_scale"),
    "awq": (".qweight", ".qzeros", ".scales"),
    "gptq": (".qweight", ".qzeros", ".scales", ".g_idx"),
    "mxfp4": ("_blocks", "_scales"),
}


@dataclass(frozen=True, slots=True)
class Quantization:
    """Quantization of a folder's weights.

    ``dtype`` is that of dequantized fp8 and MXFP4; those of AWQ and GPTQ have the dtype of their scales.
    """

    method: str
    bits: int = 0
    #: GPTQ: offset added to the zero points on disk.
    zero_offset: int = 0
    #: fp8: rows and columns that share a scale; (0, 0) for all.
    block: tuple[int, int] = (0, 0)
    dtype: torch.dtype = torch.bfloat16


def quantization_of(config: Mapping[str, Any], source: object) -> Quantization | None:
    """Return how the weights of a ``config.json`` are quantized; None if they are not.

    Raises:
        InvalidArgument: they are in a way that is not read.
    """
    about = config.get("quantization_config")
    if not about:
        return None
    method = str(about.get("quant_method")) if isinstance(about, dict) else str(about)
    if not isinstance(about, dict) or method not in METHODS:
        raise InvalidArgument(
            f"{source}: the weights are quantized by {method!r}; expected one of {', '.join(METHODS)}, or weights in "
            "float32, bfloat16 or float16, as transformers writes them after model.dequantize()"
        )
    named = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    dtype = {"float32": torch.float32, "float16": torch.float16}.get(named, torch.bfloat16)
    if method in _BITS:
        bits = about.get("bits", about.get("w_bit", 4))
        if bits not in _BITS[method]:
            raise InvalidArgument(
                f"{source}: quantization_config has {bits!r} bits; expected one of "
                f"{', '.join(map(str, _BITS[method]))} with {method}"
            )
        form = str(about.get("checkpoint_format") or about.get("format") or about.get("version") or method).lower()
        forms = {"awq": ("gemm", "awq"), "gptq": ("gptq", "gptq_v2")}[method]
        if form not in forms:
            raise InvalidArgument(
                f"{source}: quantization_config has the format {form!r}; expected {' or '.join(forms)} with {method}"
            )
        if method == "awq" and not about.get("zero_point", True):
            raise InvalidArgument(f"{source}: quantization_config has zero_point false; expected true with awq")
        return Quantization(method, int(bits), 0 if form == "gptq_v2" else 1, dtype=dtype)
    if method == "mxfp4":
        return Quantization(method, dtype=dtype)
    block = about.get("weight_block_size", (128, 128)) or (0, 0)
    is_pair = isinstance(block, list | tuple) and len(block) == 2
    if not is_pair or not all(isinstance(size, int) and size >= 0 for size in block):
        raise InvalidArgument(f"{source}: weight_block_size is {block!r}; expected two positive integers, or null")
    if about.get("expert_dtype", "fp8") != "fp8":
        raise InvalidArgument(f"{source}: expert_dtype is {about['expert_dtype']!r}; expected 'fp8'")
    return Quantization(method, block=(int(block[0]), int(block[1])), dtype=dtype)


def dequantized(
    stored: Iterable[tuple[str, Reader]], how: Quantization, source: object
) -> Iterator[tuple[str, Reader]]:  # fmt: skip
    """Yield name and reader of each weight; those that are quantized have one name, and their numbers when read.

    Readers raise InvalidArgument: a part of a weight is missing, or of another shape or dtype than the others.
    """
    readers = dict(stored)
    first, *others = _ENDS[how.method]
    for name, read in readers.items():
        if any(name.endswith(end) and name.removesuffix(end) + first in readers for end in others):
            continue
        stem = name.removesuffix(first)
        # A weight of its usual name is quantized if it has scales; others say it by their name.
        is_quantized = name.endswith(first) and (first != ".weight" or stem + others[0] in readers)
        if not is_quantized:
            yield name, read
            continue
        parts = {end: readers[stem + end] for end in (first, *others) if stem + end in readers}
        whole = stem if how.method == "mxfp4" else f"{stem}.weight"
        yield whole, partial(_read_weight, parts, how, f"{source}: {whole}")


def _read_weight(parts: Mapping[str, Reader], how: Quantization, what: str) -> torch.Tensor:
    found = {end: read() for end, read in parts.items()}
    try:
        return _WEIGHTS[how.method](found, how)
    except KeyError as cause:
        raise InvalidArgument(f"{what} is quantized by {how.method} and lacks its part {cause}") from cause
    except (ValueError, IndexError, RuntimeError) as cause:  # torch's, of parts with other numbers of axes
        shapes = ", ".join(f"{end} {list(part.shape)} {part.dtype}" for end, part in found.items())
        raise InvalidArgument(f"{what}: {cause}; the parts are {shapes}") from cause


def unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the numbers [..., P] of 32-bit words [...], the lowest bits first."""
    _require(words.dtype == torch.int32, "packed numbers are expected in int32")
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return (words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)


def _awq(parts: Mapping[str, torch.Tensor], how: Quantization) -> torch.Tensor:
    """``qweight`` [I, O / P], ``qzeros`` [G, O / P], ``scales`` [G, O] → [O, I]."""
    scales_GO = _float_scales(parts[".scales"])
    order = torch.tensor(_AWQ_ORDER).argsort()
    weight_IO, zeros_GO = (unpack(parts[end], how.bits)[..., order].flatten(-2) for end in (".qweight", ".qzeros"))
    inputs, groups = weight_IO.shape[0], scales_GO.shape[0]
    _require(
        zeros_GO.shape == scales_GO.shape and weight_IO.shape[1] == scales_GO.shape[1] and inputs % groups == 0,
        "zero points, scales and weights do not fit together",
    )
    group_I = torch.arange(inputs) // (inputs // groups)
    return _scaled(weight_IO, zeros_GO, scales_GO, group_I)


def _gptq(parts: Mapping[str, torch.Tensor], how: Quantization) -> torch.Tensor:
    """``qweight`` [I / P, O], ``qzeros`` [G, O / P], ``scales`` [G, O], ``g_idx`` [I], groups of inputs → [O, I]."""
    scales_GO = _float_scales(parts[".scales"])
    weight_IO = unpack(parts[".qweight"].t(), how.bits).flatten(-2).t()
    # Zero points were stored minus 1, as so many bits have it: 0 as the largest number.
    zeros_GO = (unpack(parts[".qzeros"], how.bits).flatten(-2) + how.zero_offset) & ((1 << how.bits) - 1)
    inputs, groups = weight_IO.shape[0], scales_GO.shape[0]
    _require(
        zeros_GO.shape == scales_GO.shape and weight_IO.shape[1] == scales_GO.shape[1],
        "zero points, scales and weights do not fit together",
    )
    if ".g_idx" in parts:
        group_I = parts[".g_idx"].long()
    else:
        _require(inputs % groups == 0, "the inputs are not a multiple of the groups")
        group_I = torch.arange(inputs) // (inputs // groups)
    _require(
        tuple(group_I.shape) == (inputs,) and int(group_I.min()) >= 0 and int(group_I.max()) < groups,
        f"groups of inputs are expected from 0 to {groups - 1}, one for each of {inputs} inputs",
    )
    return _scaled(weight_IO, zeros_GO, scales_GO, group_I)


def _scaled(
    weight_IO: torch.Tensor, zeros_GO: torch.Tensor, scales_GO: torch.Tensor, group_I: torch.Tensor
) -> torch.Tensor:
    """Return (weight - zero) * scale as [O, I], rounded once to the dtype of the scales."""
    numbers_IO = (weight_IO - zeros_GO[group_I]).float() * scales_GO.float()[group_I]
    return numbers_IO.to(scales_GO.dtype).t().contiguous()


def _fp8(parts: Mapping[str, torch.Tensor], how: Quantization) -> torch.Tensor:
    """``weight`` [O, I] in fp8, ``weight_scale_inv`` [O / block, I / block], rounded up, or one for all → [O, I]."""
    weight_OI, scales = parts[".weight"], parts[".weight_scale_inv"]
    _require(
        weight_OI.dtype in {torch.float8_e4m3fn, torch.float8_e5m2} and weight_OI.dim() == 2,
        "weights are expected in float8_e4m3fn or float8_e5m2, as a matrix",
    )
    if scales.dtype == torch.uint8:  # the exponents alone
        scales = (scales.float() - 127).exp2()
    numbers = weight_OI.float()
    if scales.numel() == 1:
        return (numbers * scales.float().reshape(())).to(how.dtype)
    rows, columns = (size or whole for size, whole in zip(how.block, weight_OI.shape, strict=True))
    wanted = (-(-weight_OI.shape[0] // rows), -(-weight_OI.shape[1] // columns))
    _require(tuple(scales.shape) == wanted, f"scales are expected in the shape {list(wanted)}")
    spread = scales.float().repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return (numbers * spread[: weight_OI.shape[0], : weight_OI.shape[1]]).to(how.dtype)


def _mxfp4(parts: Mapping[str, torch.Tensor], how: Quantization) -> torch.Tensor:
    """``blocks`` [E, O, K, 16] bytes of two numbers, the lower half first, ``scales`` [E, O, K] → [E, I, O].

    A scale is an exponent of 2, plus 127.
    """
    blocks, scales = parts["_blocks"], parts["_scales"]
    _require(
        blocks.dtype == scales.dtype == torch.uint8 and blocks.dim() == 4 and blocks.shape[3] == 16
        and blocks.shape[:-1] == scales.shape,
        "blocks are expected as bytes [experts, outputs, blocks, 16], with a scale each",
    )  # fmt: skip
    table = torch.tensor(_FP4)
    numbers = torch.stack([table[(blocks & 15).long()], table[(blocks >> 4).long()]], -1).flatten(-2)
    made_EOI = torch.ldexp(numbers, scales.int().unsqueeze(-1) - 127).flatten(-2)
    return made_EOI.to(how.dtype).transpose(1, 2).contiguous()


_WEIGHTS: Final[Mapping[str, Callable[[Mapping[str, torch.Tensor], Quantization], torch.Tensor]]] = {
    "fp8": _fp8, "awq": _awq, "gptq": _gptq, "mxfp4": _mxfp4,
}  # fmt: skip


def _float_scales(scales: torch.Tensor) -> torch.Tensor:
    _require(
        scales.dtype in {torch.float16, torch.bfloat16, torch.float32} and scales.dim() == 2 and len(scales) > 0,
        "scales are expected as a matrix of float16, bfloat16 or float32",
    )
    return scales


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)

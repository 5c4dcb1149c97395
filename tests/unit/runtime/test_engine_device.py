"""Where the emulated device is. No GPU is needed: torch's ``meta`` device stands for one that is not the host."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit.pef import KernelGraph, KernelNode, Ref, TensorSpec
from rdukit.pef.kernel import Special
from rdukit.pef.memory import persistent_layout
from rdukit_runtime.engine import device as places
from rdukit_runtime.engine.device import CPU, allocate_regions, choose_device, engine_device, run_on_host
from rdukit_runtime.engine.device_operators import attention, attention_backward
from rdukit_runtime.engine.optimizer_operators import _of_one_dtype
from rdukit_runtime.engine.portable import build_portable
from rdukit_runtime.engine.program import LoadedProgram
from support import shows
from support.pefs.examples import example_kernels, example_pef

pytestmark = shows("engine", "node", "settings")

META = torch.device("meta")
ATEN = torch.ops.aten


def choose(text: str, gpus: int = 2, has_cuda: bool = True) -> torch.device:
    return choose_device(text, gpus, min(gpus, 1), "2.0", has_cuda)


def test_the_setting_names_the_host_or_a_gpu() -> None:
    assert choose("cpu") == CPU
    assert choose("cuda") == torch.device("cuda:1"), "the GPU that the program made current"
    assert choose("cuda:0") == torch.device("cuda:0")


@pytest.mark.parametrize(
    ("text", "gpus", "has_cuda", "words"),
    [
        ("gpu", 2, True, r"expected cpu, cuda, cuda:<number>; on this machine: cpu, cuda, cuda:0, cuda:1"),
        ("cuda:-1", 0, False, r"on this machine: cpu$"),
        ("cuda", 0, False, r"torch 2\.0 was built without CUDA; expected cpu"),
        ("cuda", 0, True, r"torch sees no CUDA device: look at `nvidia-smi`; expected cpu$"),
        ("cuda:2", 2, True, r"torch sees 2 CUDA devices; expected cpu, cuda, cuda:0, cuda:1"),
    ],
)
def test_a_device_that_is_not_there_is_refused_with_what_is_legal(
    text: str, gpus: int, has_cuda: bool, words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words):
        choose(text, gpus, has_cuda)


def test_the_setting_is_read_from_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RDUKIT_DEVICE", raising=False)
    assert engine_device() == CPU
    monkeypatch.setenv("RDUKIT_DEVICE", "tpu")
    with pytest.raises(InvalidArgument, match="device is 'tpu'"):
        engine_device()


def test_each_region_has_memory_of_its_own_that_begins_at_its_first_byte() -> None:
    regions = allocate_regions({"a": 16, "b": 0}, META)
    assert {name: tensor.numel() for name, tensor in regions.items()} == {"a": 16, "b": 1}
    assert all(tensor.device == META and tensor.storage_offset() == 0 for tensor in regions.values())


def spec(name: str, *shape: int) -> TensorSpec:
    made = torch.empty(shape)
    return TensorSpec(name, "float32", shape, made.stride())


class Whereabouts(TorchDispatchMode):
    """Notes operators that made a tensor elsewhere than on ``device``."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.astray: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, torch.Tensor) and leaf.device != self.device for leaf in tree_leaves(made)):
            self.astray.append(str(func))
        return made


def test_what_a_kernel_makes_from_nothing_is_made_on_the_device() -> None:
    graph = KernelGraph(
        (spec("x", 3),),
        (
            KernelNode("n", "aten.arange.default", (3,), {"device": Special("device", "cpu"), "pin_memory": False}),
            KernelNode("z", "aten.zeros.default", ([3],), {"dtype": Special("dtype", "float32")}),
            KernelNode("l", "aten.full_like.default", (Ref("x"), 2.0), {}),
            KernelNode("c", "aten._to_copy.default", (Ref("n"),), {"device": Special("device", "cpu")}),
            KernelNode("a", "aten.add.Tensor", (Ref("x"), Ref("z"))),
            KernelNode("b", "aten.add.Tensor", (Ref("a"), Ref("l"))),
            KernelNode("y", "aten.add.Tensor", (Ref("b"), Ref("c"))),
        ),
        ("y",),
    )
    with Whereabouts(META) as found:
        (made,) = build_portable(graph, META)([torch.empty(3, device=META)], {})
    assert made.device == META
    assert found.astray == []
    assert build_portable(graph)([torch.ones(3)], {})[0].tolist() == [3.0, 4.0, 5.0]


def test_an_operator_without_a_cuda_kernel_is_refused_by_name() -> None:
    graph = KernelGraph((spec("x", 3),), (KernelNode("y", "aten.histogram.bin_ct", (Ref("x"), 4)),), ("y",))
    with pytest.raises(PefMismatch, match=r"aten\.histogram.*RDUKIT_DEVICE=cpu"):
        build_portable(graph, torch.device("cuda:0"))


def test_a_section_of_the_host_gets_and_gives_tensors_of_the_device() -> None:
    seen: list[torch.device] = []

    def kernel(inputs: Sequence[torch.Tensor], scalars: Any) -> list[Any]:
        seen.extend(tensor.device for tensor in inputs)
        return [inputs[0] + 1, None]

    inputs = [torch.ones(2)]
    made = run_on_host(kernel, META)(inputs, {})
    assert seen == [CPU]
    assert made[0].device == META
    assert made[1] is None
    assert inputs == [], "the list is the kernel's to empty"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("is_causal", "mask"), [(False, None), (True, None), (False, (2, 1)), (False, (1, 3))])
def test_attention_for_a_gpu_equals_the_hosts(
    dtype: torch.dtype, is_causal: bool, mask: tuple[int, int] | None
) -> None:
    B, H, L, S, D = 2, 3, 5, 5 if is_causal else 7, 8
    torch.manual_seed(0)
    q, k, v = (torch.randn(B, n, H, D, dtype=dtype).transpose(1, 2) for n in (L, S, S))
    added = None if mask is None else torch.randn(*mask, L, S, dtype=dtype)
    if added is not None:
        added[0, 0, 1] = -torch.inf  # a query that may look at nothing
    more: dict[str, Any] = {"attn_mask": added, "scale": 0.3}
    theirs = ATEN._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal, **more)
    ours = attention(q, k, v, 0.0, is_causal, **more)
    gradient = torch.randn_like(theirs[0])
    back = ATEN._scaled_dot_product_flash_attention_for_cpu_backward(gradient, q, k, v, *theirs, 0.0, is_causal, **more)
    ours_back = attention_backward(gradient, q, k, v, *theirs, 0.0, is_causal, **more)
    # Sums of at most 8 products in another order; bf16 results are rounded once in both, to 8 bits of at most 4.
    tolerance = {torch.float32: 2e-6, torch.float64: 1e-14, torch.bfloat16: 2**-6}[dtype]
    for made, gold in zip((ours[0], *ours_back), (theirs[0], *back), strict=True):
        assert made.stride() == gold.stride(), "views of the result are traced on the host's layout"
        torch.testing.assert_close(made, gold, atol=tolerance, rtol=0)
    assert ours[1].stride() == theirs[1].stride()


def test_precision_switches_are_the_programs_again_after_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    former = places._precisions()
    with places.device_numbers(torch.device("cuda:0")):
        assert tuple(places._precisions()) == ("ieee", "ieee", "ieee", False)
    assert places._precisions() == former
    monkeypatch.setenv("RDUKIT_ENGINE_TF32", "1")
    with places.device_numbers(torch.device("cuda:0")):
        assert places._precisions().matmul == "tf32"
    with places.device_numbers(CPU):
        assert places._precisions() == former
    assert places._precisions() == former


def test_optimizer_groups_are_of_one_dtype_on_a_gpu_and_whole_on_the_host() -> None:
    def tensors(device: torch.device) -> list[torch.Tensor]:
        return [torch.empty(n, dtype=d, device=device) for n, d in ((1, torch.float32), (2, torch.float64))] * 2

    here = tensors(CPU)
    assert [list(map(len, group)) for group in _of_one_dtype(here, here, [])] == [[4, 4, 0]]
    there = tensors(META)
    assert [[len(part) for part in group] for group in _of_one_dtype(there, there, [])] == [[2, 2, 0], [2, 2, 0]]


def test_a_program_elsewhere_has_all_its_tensors_there_and_shares_regions() -> None:
    pef, kernels = example_pef(), example_kernels()
    _, size = persistent_layout(pef)
    memory = bytearray(size)
    program = LoadedProgram(
        pef, {digest: build_portable(graph, META) for digest, graph in kernels.items()}, memoryview(memory), None, META
    )
    program.write("x", torch.ones(4, 3))
    graph = program.find_graph(None)
    with Whereabouts(META) as found:
        program.section_seconds = []
        program.run(graph, program.choose_sections(graph), {"lr": 0.1})
    assert found.astray == []
    assert [section for section, _ in program.section_seconds] == [0, 1]
    held = {name: program.device_tensor(name) for name in ("x", "weight", "weight.next", "bias", "loss", "y")}
    assert {tensor.device for tensor in held.values()} == {META}
    storages = {name: tensor.untyped_storage()._cdata for name, tensor in held.items()}
    assert storages["weight"] == storages["weight.next"]
    assert len(set(storages.values())) == len(storages) - 1
    assert program._is_persistent(held["weight"].view(-1)[2:])
    assert not program._is_persistent(held["loss"])
    assert bytes(memory) == bytes(size), "the host's memory stays untouched"


def test_a_program_on_the_host_knows_views_of_its_persistent_memory() -> None:
    pef = example_pef()
    _, size = persistent_layout(pef)
    program = LoadedProgram(
        pef, {d: build_portable(g) for d, g in example_kernels().items()}, memoryview(bytearray(size))
    )
    assert program._is_persistent(program.device_tensor("weight").view(-1)[2:])
    assert not program._is_persistent(torch.ones(3))

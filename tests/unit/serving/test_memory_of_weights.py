"""Memory of a process that loads weights: one tensor of a checkpoint at a time, and nothing of it afterwards."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rdukit.system.allocator import find_glibc
from rdukit_runtime.engine.device import return_freed_memory
from rdukit_serving.device.parameters import StoredTensors, merged_parameters
from support import shows

pytestmark = shows("text-weights")

_MEGABYTE = 2**20


def _own_bytes() -> int:
    """Return the bytes of this process that no file backs."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def test_a_checkpoint_is_read_one_tensor_at_a_time(tmp_path: Path) -> None:
    count, size = 32, 2 * _MEGABYTE
    tensors = {f"layer.{i}.weight": torch.full((size // 4,), float(i)) for i in range(count)}
    save_file(tensors, tmp_path / "w.safetensors")
    del tensors
    before, most, total = _own_bytes(), 0, 0.0
    with merged_parameters(tmp_path / "w.safetensors") as (step, parameters):
        assert step == 0 and len(parameters) == count and "layer.3.weight" in parameters
        for value in parameters.values():
            total += float(value[0])
            most = max(most, _own_bytes() - before)
    assert total == sum(range(count)) and most < count * size / 2


def test_updates_of_low_rank_are_added_before_weights_are_given(tmp_path: Path) -> None:
    tensors = {
        "a.weight": torch.zeros(3, 4), "a.lora_A": torch.ones(2, 4), "a.lora_B": torch.ones(3, 2),
        "a.lora_scale": torch.tensor([0.5]), "b.weight": torch.ones(2, 2),
    }  # fmt: skip
    save_file(tensors, tmp_path / "w.safetensors")
    with merged_parameters(tmp_path / "w.safetensors") as (_, parameters):
        assert sorted(parameters) == ["a.weight", "b.weight"] and not isinstance(parameters, StoredTensors)
        assert torch.equal(parameters["a.weight"], torch.ones(3, 4))


@pytest.mark.skipif(find_glibc() is None, reason="the C library's allocator is not glibc's")
def test_freed_memory_goes_back_to_the_system_even_below_what_is_in_use() -> None:
    blocks = [torch.ones(16384) for _ in range(1024)]  # 64 KB each, which the allocator keeps
    last = [torch.ones(256) for _ in range(64)]  # after them on the heap
    full = _own_bytes()
    del blocks
    return_freed_memory()
    assert full - _own_bytes() > 32 * _MEGABYTE and len(last) == 64

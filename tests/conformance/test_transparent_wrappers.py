"""What wraps a computation and changes none of its numbers: the device computes what stands inside."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

from rdukit.errors import TraceError
from sambaflow import samba
from support import shows
from support.programs import compare_step

pytestmark = shows("pytorch", "o0", "o1", "o3")


class Model(nn.Module):
    """``function(self, x)`` over the modules given."""

    def __init__(self, function: Callable[..., Any], **modules: Any) -> None:
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)
        self._function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self._function(self, x)


def recorded(m: Any, x: torch.Tensor) -> torch.Tensor:
    with record_function("first"):
        y = m.a(x)
    with torch.autograd.profiler.record_function("second"), torch.profiler.record_function("third", "inner"):
        return m.b(y.tanh())


def profiled(m: Any, x: torch.Tensor) -> torch.Tensor:
    handle = torch.ops.profiler._record_function_enter("old", None)
    y = m.a(x)
    torch.ops.profiler._record_function_exit(handle)
    return m.b(y)


def data_parallel_of_gpus() -> nn.Module:
    """As a machine with two GPUs would have made it."""
    net = Model(lambda m, x: m.b(m.a(x).relu()), a=nn.DataParallel(nn.Linear(4, 4)), b=nn.Linear(4, 2))
    net.a.device_ids, net.a.src_device_obj = [0, 1], torch.device("cuda", 0)
    return net


def smooth(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (1.0 + torch.tanh(x))


def with_scripted() -> nn.Module:
    scripted = torch.jit.script(smooth)
    return Model(lambda m, x: scripted(m.a(x)), a=nn.Linear(4, 4))


CASES: dict[str, Callable[[], nn.Module]] = {
    "data-parallel": lambda: Model(
        lambda m, x: m.b(m.a(x).relu()), a=nn.DataParallel(nn.Linear(4, 4)), b=nn.Linear(4, 2)
    ),
    "data-parallel-root": lambda: nn.DataParallel(Model(lambda m, x: m.a(x).relu(), a=nn.Linear(4, 4))),
    "jit-function": with_scripted,
    "record-function": lambda: Model(recorded, a=nn.Linear(4, 4), b=nn.Linear(4, 4)),
    "record-function-old": lambda: Model(profiled, a=nn.Linear(4, 4), b=nn.Linear(4, 4)),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")
@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
@pytest.mark.parametrize("case", CASES)
def test_a_wrapper_changes_no_number(case: str, mode: str, tmp_path: Path) -> None:
    compare_step(CASES[case](), samba.randn(3, 4, name="x"), tmp_path, optim_level=mode)


def test_data_parallel_over_gpus_is_one_module_on_the_device(tmp_path: Path) -> None:
    net = data_parallel_of_gpus()
    reference = data_parallel_of_gpus()
    reference.load_state_dict(net.state_dict())
    reference.a.device_ids = []
    compare_step(net, samba.randn(3, 4, name="x"), tmp_path, reference=reference)
    assert net.a.device_ids == [0, 1], "the host's own runs are as before"


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")
@pytest.mark.parametrize("mode", ["o0", "o3"])
def test_what_torch_compile_wraps_is_traced_as_it_was_written(mode: str, tmp_path: Path) -> None:
    def make(wrap: Callable[[Any], Any]) -> nn.Module:
        torch.manual_seed(2)
        a, b = nn.Linear(4, 4), nn.Linear(4, 2)
        if wrap is torch.compile:
            a.compile()
        act = wrap(lambda x: x.relu() * 2)
        return Model(lambda m, x: m.b(act(m.a(x))), a=a, b=b)

    net, reference = make(torch.compile), make(lambda function: function)
    compare_step(net, samba.randn(3, 4, name="x"), tmp_path, optim_level=mode, reference=reference)


def test_distributed_data_parallel_is_refused_as_its_averaging_is_in_no_graph(tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        net = Model(lambda m, x: m.a(x), a=nn.parallel.DistributedDataParallel(nn.Linear(4, 4)))
        with pytest.raises(TraceError, match=r"'a' is wrapped in DistributedDataParallel.*--data-parallel"):
            compare_step(net, samba.randn(3, 4, name="x"), tmp_path)
    finally:
        dist.destroy_process_group()

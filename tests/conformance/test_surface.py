"""The rest of the SDK's import tree (SDK reference 3, 6, 7, 10, 13-15): everything P0 and P1 resolves, and works."""

import importlib.util
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rdukit.errors import InvalidArgument, NotFound
from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.argconf.args import CompileArgs
from sambaflow.samba.functional.stir import sn_fma, sn_imm, sn_iteridx, sn_select, sn_zipmapreduce
from sambaflow.samba.lazy_param import RNGProviderFactory, lazy_param
from sambaflow.samba.materialize import materialize
from sambaflow.samba.profiler import Profiler
from sambaflow.samba.sn_private import sn_gather, sn_multinomial, sn_scatter
from sambaflow.samba.test import TestWithGold, consistency_test
from sambaflow.samba.utils import SNType
from sambaflow.samba.utils.checkpoint import load_sharded_checkpoint, save_tensors
from support import shows
from support.programs import LogReg, classifier_inputs, load_model

pytestmark = shows("surface")

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "surface.py"


@pytest.fixture(scope="module")
def surface() -> Any:
    spec = importlib.util.spec_from_file_location("surface", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["surface"] = module
    spec.loader.exec_module(module)
    return module


def test_every_name_of_p0_and_p1_resolves_and_the_page_is_current(surface: Any) -> None:
    found = surface.rows()
    assert [row.name for row in found if row.priority in {"P0", "P1"} and row.state == "missing"] == []
    untested = [row.name for row in found if row.priority != "P3" and row.state != "missing" and not row.is_used]
    assert untested == []
    assert (SCRIPT.parents[1] / "docs" / "surface.md").read_text() == surface.page(found)


def test_gather_and_scatter_are_inverse_and_ignore_what_is_out_of_range() -> None:
    cache = torch.zeros(2, 3, 5, 4)
    update = torch.randn(2, 1, 3, 1, 4)
    where = torch.tensor([[[2]], [[9]]])
    made = sn_scatter(cache, update, where, [1], batched_dims=1)
    assert torch.equal(made[0, :, 2], update[0, 0, :, 0]) and made[1].abs().sum() == 0
    assert torch.equal(sn_gather(made, where, [1], [1], batched_dims=1)[0], update[0])
    counts = sn_scatter(
        torch.zeros(1, 4), torch.ones(1, 3, 1), torch.tensor([[[1], [1], [4]]]), [0], "kAdd", batched_dims=1
    )
    assert counts.tolist() == [[0, 2, 0, 0]]
    with pytest.raises(InvalidArgument, match="kUpdate, kAdd"):
        sn_scatter(cache, update, where, [1], "kMax", batched_dims=1)


def test_multinomial_inverts_the_cumulative_sum() -> None:
    probs = torch.tensor([[0.2, 0.3, 0.5]]).expand(4, 3)
    assert sn_multinomial(probs, torch.tensor([[0.0], [0.25], [0.6], [1.0]])).flatten().tolist() == [0, 1, 2, 2]


def test_elementwise_programs_see_indices_and_reduce() -> None:
    x = samba.SambaTensor(torch.ones(1, 1, 3, 3), name="x")

    def fill(attrs: Any, value: Any) -> Any:
        keep = torch.ge(sn_iteridx(attrs, 2, SNType.UINT16), sn_iteridx(attrs, 3, SNType.UINT16))
        return sn_select(keep, value, sn_imm(-5.0, torch.float32))

    filled = sn_zipmapreduce(fill, [x])
    assert torch.equal(filled.torch(), samba.triu_fill(x, -5.0).torch())
    assert filled.torch()[0, 0].tolist() == [[1, -5, -5], [1, 1, -5], [1, 1, 1]]
    smallest = sn_zipmapreduce(
        lambda a, p, q: sn_fma(p, q, q), [torch.arange(4)[None], torch.tensor([[2]])], "MIN", [1]
    )
    assert smallest.tolist() == [[2]]
    with pytest.raises(InvalidArgument, match="sn_fma"):
        sn_fma(1, 2, 3)


def test_lazy_parameters_get_the_values_of_an_eager_build() -> None:
    utils.set_seed(3)
    eager = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.LSTM(5, 6))
    utils.set_seed(3)
    with lazy_param():
        lazy = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.LSTM(5, 6))
    assert all(p.device.type == "meta" for p in lazy.parameters())
    with materialize(lazy) as model:
        for made, wanted in zip(model.parameters(), eager.parameters(), strict=True):
            assert torch.equal(made.data, wanted.data)
    numbers = RNGProviderFactory().build_provider()
    assert torch.equal(numbers().normal(0, 1, (3,)), numbers().normal(0, 1, (3,)))


def test_lazy_parameters_reach_the_device_when_traced(tmp_path: Path) -> None:
    with lazy_param():
        model = LogReg()
    loaded = load_model(model, classifier_inputs(), tmp_path, precision="f32")
    loss, _ = loaded.run()
    assert 0.1 < float(loss.torch().mean()) < 10
    assert samba.session.read_tensor("logreg__lin_layer__weight").abs().sum() > 0


def test_setup_takes_argconf_arguments_and_keeps_unknown_fields() -> None:
    samba.session.setup(CompileArgs(pef_name="x", optim_level="o1", new_option=3))
    assert samba.session.options["new_option"] == 3 and samba.session.options["optim_level"] == "o1"
    with pytest.raises(InvalidArgument):
        samba.session.setup(3)


def test_the_profiler_measures_events_by_handle_decorator_and_context() -> None:
    profiler = Profiler()
    profiler.end_event(profiler.start_event("fwd"))
    with profiler.event("fwd"):
        pass
    assert profiler.event("fwd")(lambda: 7)() == 7
    assert len(profiler._get_iter_times("fwd", 0)) == 3 and profiler.get_latencies(["fwd"], 1)["fwd"] > 0
    assert profiler.get_throughputs(["fwd"], 8, 1)["fwd"] > 0 and "fwd: count 2" in profiler.print_statistics(
        ["fwd"], 1
    )
    with pytest.raises(InvalidArgument):
        profiler.end_event(99)


def test_session_hints_nest_and_unwind(tmp_path: Path) -> None:
    with samba.session._add_directives({"a": 1}), samba.session._add_directives({"a": 2}):
        assert samba.session._context_directives == {"a": 2}
    assert samba.session._context_directives == {} and not samba.session.use_static_functional()
    samba.session.start_samba_profile()
    samba.session.end_samba_profile(tmp_path / "profile.txt")
    assert "function calls" in (tmp_path / "profile.txt").read_text()


def test_the_gold_test_legacy_run_sections_and_checkpoints_work_on_one_model(tmp_path: Path) -> None:
    inputs = classifier_inputs()
    loaded = load_model(LogReg(), inputs, tmp_path, lambda p: samba.optim.SGD(p, lr=0.1))
    assert TestWithGold(None, "logreg", loaded.model, [inputs]).test() == 1
    assert len(loaded.model.run(inputs, section_types=["fwd"])) == 2
    assert all(row["host_seconds"] > 0 for row in utils.measure_sections(loaded.model, inputs, n_iterations=2).values())
    assert all(row["pcus"] > 0 for row in utils.create_mac_resource_report(loaded.pef).values())
    state = {name: torch.full_like(t, 0.5) for name, t in loaded.model.state_dict().items()}
    save_tensors(state, tmp_path / "model.safetensors")
    load_sharded_checkpoint(loaded.model, tmp_path)
    assert samba.session.read_tensor("logreg__lin_layer__weight").eq(0.5).all()
    assert any(t.sn_name == "logreg__lin_layer__weight" for t in samba.session._traced_tensors())
    with pytest.raises(NotFound):
        load_sharded_checkpoint(loaded.model, tmp_path / "none")


def test_small_modules_and_meters_compute() -> None:
    from sambaflow.frameworks.quantized.quantized_linear import QuantizedLinear
    from sambaflow.models.unet import UNet
    from sambaflow.online_inference_service.sn_sqs_handler import Queue
    from sambaflow.samba.experiment_logger import AccMeter

    linear = nn.Linear(8, 4)
    x = torch.randn(3, 8)
    assert (QuantizedLinear.from_linear(linear)(x) - linear(x)).abs().max() < 0.02
    before = linear(x)
    assert torch.allclose(utils.weight_norm_(linear)(x), before, atol=1e-6)
    assert {n for n, _ in linear.named_parameters()} == {"weight_magnitude", "weight_direction", "bias"}
    assert torch.equal(pickle.loads(pickle.dumps(linear))(x), linear(x))
    assert UNet(1, 2, init_features=4, depth=2)(torch.randn(1, 1, 8, 8)).shape == (1, 2, 8, 8)
    meter = AccMeter()
    meter.update(torch.eye(4), torch.tensor([0, 1, 2, 0]))
    assert meter.value == 0.75
    queue = Queue()
    sent = queue.send_message({"a": 1})
    assert queue.receive_messages()[0].id == sent and queue.receive_messages() == []
    queue.delete_message(sent)
    assert len(queue) == 0


def test_what_differs_between_two_calls_with_one_seed_is_reported() -> None:
    assert consistency_test()(lambda: torch.randn(3))().shape == (3,)
    calls: list[int] = []

    def drifting() -> torch.Tensor:
        calls.append(1)
        return torch.tensor(len(calls))

    with pytest.raises(AssertionError, match="call 2"):
        consistency_test()(drifting)()

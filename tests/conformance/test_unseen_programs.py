"""Programs in the ways that users write them, each command in a fresh process where that matters."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sambaflow import samba
from sambaflow.samba import env, utils
from sambaflow.samba.argconf.args import CommonArgs, CompileArgs, RunArgs
from sambaflow.samba.functional import arithmetic, logical, tensorarithmetic, tensorops
from sambaflow.samba.lazy_param import RNGProvider, RNGProviderFactory, lazy_param, set_enabled
from sambaflow.samba.nn.parameter import SambaParameter
from sambaflow.samba.schema.snconfig import SNConfig
from sambaflow.samba.sn_private import sn_reduce
from sambaflow.samba.utils.argparser import SambaConfig, parse_app_args
from sambaflow.samba.utils.tensorboard_debug import dump_accuracy_debug_info
from support import shows
from support.programs import LogReg, classifier_inputs, load_model

pytestmark = shows("surface", "pytorch", "o0", "o1", "o3")

#: Old names, redefined options, four commands, profiles, meters: the habits of programs of many releases in one.
OLD_PROGRAM = """
import sys
import torch, torch.nn as nn
import sambaflow.samba as samba
import sambaflow.samba.utils as utils
from sambaflow.samba.sambaloader import SambaLoader
from sambaflow.samba.test import TestWithGold
from sambaflow.samba.utils.argparser import parse_app_args
from sambaflow.samba.utils.common import common_app_driver
from sambaflow.samba.utils.pef_utils import get_pefmeta


class Net(samba.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3, padding=1)
        self.lstm = nn.LSTM(4, 8, batch_first=True)
        self.out = nn.Linear(8, 3)
        self.criterion = nn.CrossEntropyLoss(reduction='none')

    def forward(self, x, h, c, y):
        z = torch.relu(self.conv(x.unsqueeze(1))).transpose(1, 2)
        z, _ = self.lstm(z, (h, c))
        out = self.out(z[:, -1])
        return out, self.criterion(out, y)


def common(p):
    p.add_argument('-b', '--batch-size', type=int, default=8)
    p.add_argument('-lr', '--lr', type=float, default=0.2)
    p.add_argument('--h', type=int, default=8)


def run(p):
    p.add_argument('--num-iterations', type=int, default=25)
    p.add_argument('--visualize', action='store_true')


def main(argv):
    utils.set_seed(256)
    args = parse_app_args(argv, common, run_parser_fn=run)
    net = Net(12)
    samba.from_torch_(net)
    b = args.batch_size
    inputs = (samba.randn(b, 12, name='x', batch_dim=0).bfloat16().float(), samba.zeros(1, b, args.h, name='h'),
              samba.zeros((1, b, args.h), name='c'), samba.randint(3, (b,), name='y', batch_dim=0))
    optim = None if args.inference else samba.optim.SGD(net.parameters(), lr=0.0, momentum=0.9)
    if args.command == 'run':
        utils.trace_graph(net, inputs, optim, pef=args.pef, mapping=args.mapping, config_dict=vars(args))
        loader = SambaLoader([[t.data for t in inputs]] * args.num_iterations, ['x', 'h', 'c', 'y'])
        losses = []
        for batch in loader:
            samba.session.start_runtime_profile()
            scalars = {'lr': args.lr, 'learning_rate': args.lr, 'strnd_seed': 1}
            out, loss = net.run(batch, section_types=['FWD', 'BCKWD', 'OPT'], hyperparam_dict=scalars)
            samba.session.end_runtime_profile('profile.json')
            losses.append(samba.to_torch(loss).mean().item())
        trained = samba.to_torch(net.run(batch, section_types=['FWD'])[1]).mean().item()
        net.cpu()
        host = net(*inputs)[1].mean().item()
        print('LOSSES', losses[0], losses[-1], trained, host)
        assert losses[-1] < losses[0] / 2 and abs(host - trained) < 0.02
        assert args.num_iterations == 25 and samba.session.profiler.print_statistics([]) == ''
    elif args.command == 'test':
        utils.trace_graph(net, inputs, optim, pef=args.pef)
        samba.session.tracing = False
        net(*inputs)[1].sum().backward()  # one loss a sample, each seeded with one
        samba.session.run(inputs, net.output_tensors, section_types=['fwd', 'bckwd'])
        for name, p in net.named_parameters():
            utils.assert_close(p.sn_grad, p.grad, name, threshold=5e-2, visualize=args.visualize)
        print('COMPARED', TestWithGold(args, 'net', net, [inputs], optim).test())
    else:
        common_app_driver(args, net, inputs, optim, name='net', app_dir=utils.get_file_dir(__file__),
                          squeeze_bs_dim=True, get_output_grads=True, metadata=get_pefmeta(args, net))


if __name__ == '__main__':
    main(sys.argv[1:])
"""


@pytest.mark.long
def test_an_old_program_compiles_runs_tests_and_measures_in_processes_of_its_own(tmp_path: Path) -> None:
    program = tmp_path / "app.py"
    program.write_text(OLD_PROGRAM)

    def started(*argv: str) -> str:
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(
            [sys.executable, str(program), *argv],
            cwd=tmp_path, env=environ, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    assert "PEF file out/net/net.pef created" in started("compile", "--pef-name=net", "-o1")
    assert "LOSSES" in started("run", "--pef=out/net/net.pef")
    assert (tmp_path / "profile.json").exists()
    assert "COMPARED 1" in started("test", "-p", "out/net/net.pef")
    measured = started("measure-sections", "-p", "out/net/net.pef", "--num-iterations", "2", "--num-sections", "3")
    assert measured.count("projected (emulated)") == 3


class Odd(nn.Module):
    """Forward with what real ones have: constants as SambaTensors and bf16 attributes, nested and absent inputs."""

    def __init__(self) -> None:
        super().__init__()
        linear = nn.Linear(6, 3)
        self.w = SambaParameter(linear.weight.detach().t().contiguous())
        self.lazy = SambaParameter(
            shape=reversed(linear.weight.shape), materializer=lambda t, rng: torch.full(tuple(t.shape), 0.5)
        )
        self.mask = samba.from_torch_tensor(torch.full((1, 3), 2.0), name="mask")
        self.plain = torch.full((3,), 0.25, dtype=torch.bfloat16)

    def forward(self, x: Any, extra: Any = None, pair: Any = ()) -> Any:
        a, b = pair
        h = (x @ self.w + x @ self.lazy) * self.mask + self.plain * x[:, -3:]
        h = torch.where(h > 0, h, h * 0.1) + a.unsqueeze(1) + b[:, None].float()
        h = h.masked_fill(torch.arange(3)[None, :] == 1, 0.5) if extra is None else h
        return [h, h.argmax(-1), h.bfloat16() @ self.w.t()]


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
def test_nested_inputs_lazy_parameters_constants_and_mixed_dtypes_work(tmp_path: Path, mode: str) -> None:
    net = Odd()
    x, a = samba.randn(4, 6, name="x"), samba.ones(4, name="a")
    inputs = (x, None, (a, samba.randint(0, 3, (4,), name="b")))
    loaded = load_model(net, inputs, tmp_path, optim_level=mode)
    made = loaded.run()
    with torch.no_grad():
        net.lazy = SambaParameter(torch.full((6, 3), 0.5))
        gold = net(*inputs)
    for ours, theirs in zip(made, gold, strict=True):
        utils.assert_close(ours, theirs, ours.sn_name, threshold=3e-2)  # bf16 on the device


def test_outputs_that_a_loss_broadcasts_keep_their_own_names(tmp_path: Path) -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.c = nn.Linear(6, 2), nn.MSELoss()

        def forward(self, x: Any, y: Any) -> Any:
            out = self.a(x)
            narrow, wide = torch.broadcast_tensors(out[:, :1], y)
            return out, self.c(out, y), narrow * wide

    net = Mean()
    inputs = (samba.randn(4, 6, name="x"), samba.randn(4, 2, name="y"))
    loaded = load_model(net, inputs, tmp_path, lambda p: samba.optim.SGD(p, lr=0.1), precision="f32")
    assert [t.sn_name for t in loaded.outputs[:2]] == ["mean__a__linear__outputs__0", "mean__c__mseloss__outputs__0"]
    for made, gold in zip(loaded.run(section_types=["fwd", "bckwd"]), net(*inputs), strict=True):
        assert torch.allclose(made.torch(), gold.torch(), atol=1e-6)
    net(*inputs)[1].backward()
    assert torch.allclose(net.a.weight.sn_grad, net.a.weight.grad, atol=1e-6)


def test_a_model_that_is_made_again_after_tracing_is_uploaded_by_to_device(tmp_path: Path) -> None:
    load_model(LogReg(), classifier_inputs(), tmp_path, precision="f32")
    again = LogReg()
    samba.from_torch_model_(again)
    samba.session.to_device()
    assert torch.equal(again.lin_layer.weight.sn_data, again.lin_layer.weight.data)


def test_another_pef_of_the_same_name_replaces_sections_and_scalars(tmp_path: Path) -> None:
    for mode, sections in (("o0", 2), ("o3", 1)):
        loaded = load_model(LogReg(), classifier_inputs(), tmp_path, optim_level=mode)
        loaded.run()
        assert len(samba.session.report()["section_runs"]) == sections


def test_configurations_of_the_model_zoo_drive_compile_and_run(tmp_path: Path) -> None:
    class Own(CompileArgs):
        depth: int = 3

    given = Own(arch="sn40", pef_name="zoo", output_folder="made", optim_level="o1", whatever=[1])
    assert isinstance(given, CommonArgs) and given.model_dump()["whatever"] == [1]
    samba.session.setup(given)
    net = LogReg()
    samba.from_torch_model_(net)
    pef = samba.session.compile(net, classifier_inputs(), None, name="zoo")
    assert pef == "made/zoo/zoo.pef"
    samba.session.setup(RunArgs(pef=pef))
    assert len(utils.trace_graph(net, classifier_inputs(), None, pef=pef)) == 2


def test_differences_of_device_and_host_are_dumped(tmp_path: Path) -> None:
    loaded = load_model(LogReg(), classifier_inputs(), tmp_path)
    args = parse_app_args(["test", "--log-dir", str(tmp_path)])
    assert args.data_parallel_mode == "normal" and args.distlearn_config == ""
    path = dump_accuracy_debug_info(args, loaded.model, loaded.inputs, loaded.outputs)
    assert "max_abs_difference" in path.read_text()


def test_switches_schemas_and_families_that_programs_import_do_something_sane() -> None:
    assert env.use_mock_samba_runtime() is False
    for switch in (env.enable_conv_grad_accum_stoc, env.enable_addbias_grad_accum_stoc, env.disable_sgd_stoc):
        switch()
    args = parse_app_args(["compile"])
    assert SambaConfig(args, SNConfig).get_all_params()["batch_size"] == 1
    assert isinstance(RNGProviderFactory().build_provider(), RNGProvider)
    x = samba.from_torch(torch.tensor([[1.0, 4.0], [3.0, 2.0]]), name="x")
    assert arithmetic.add(x, x).tolist() == tensorarithmetic.mul(x, 2).tolist()
    assert logical.logical_not(x > 2).tolist() == [[True, False], [False, True]]
    assert tensorops.cat([x, x]).shape == (4, 2)
    assert sn_reduce(x, 1, "MAX").tolist() == [[4.0], [3.0]]
    assert samba.is_internal() is False
    with samba.patched_torch():
        assert samba.SambaTensor(x).sn_name != ""


def test_rare_members_of_the_session_are_there(tmp_path: Path) -> None:
    session = samba.session
    assert isinstance(session, session.SambaSession)
    session.enable_pinned_memory()
    session.disable_pinned_memory()
    assert session.atexit_register(print) is print
    assert session.dynamic_dims == {}
    assert session.create_dynamic_dim("length", 128).max == 128
    (tmp_path / "dims.yaml").write_text("batch: {max: 8}\n")
    assert session.load_dynamic_dims_config(tmp_path / "dims.yaml")["batch"].max == 8
    try:
        session.disable_lazy_param()
        with lazy_param():
            assert nn.Linear(2, 2).weight.device.type == "cpu"
    finally:
        set_enabled(True)
    positions, counts = samba.groupby(torch.tensor([0, 2, 0]), num_bins=3, capacity=2)
    assert positions[0].tolist() == [0, 2] and counts[:3].tolist() == [2, 0, 1]


def test_events_are_counted_whether_or_not_a_profile_was_started() -> None:
    profiler = samba.session.profiler
    profiler.end_event(profiler.start_event("step"))
    profiler.start_profile()
    with profiler.event("step"):
        pass
    profiler.stop_profile()
    assert len(profiler._get_iter_times("step", 0)) == 1

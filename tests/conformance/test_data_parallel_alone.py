"""Data parallel with one rank: the PEF, the command line, and a world of one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rdukit.errors import InvalidArgument
from rdukit.pef import read_pef
from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.utils.argparser import parse_app_args
from support import shows
from support.programs import LogReg, classifier_inputs, compile_model, load_model

pytestmark = shows("surface")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("RANK", "WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def sgd(parameters: object) -> object:
    return samba.optim.SGD(parameters, lr=0.1, momentum=0.9)


def trained(folder: Path, is_replica: bool, **config: object) -> dict[str, torch.Tensor]:
    """Parameters after three steps."""
    utils.set_seed(3)
    loaded = load_model(LogReg(), classifier_inputs(), folder, sgd, **config)
    for _ in range(3):
        loaded.run(data_parallel=is_replica, reduce_on_rdu=is_replica)
    samba.session.to_cpu(loaded.model)
    samba.session.close()
    return {name: value.data.clone() for name, value in loaded.model.state_dict().items()}


def test_reduce_is_numbered_last_and_runs_between_backward_and_optimizer(tmp_path: Path) -> None:
    model = LogReg()
    samba.from_torch_model_(model)
    path = compile_model(
        model, classifier_inputs(), sgd(model.parameters()), tmp_path, data_parallel=True, world_size=2
    )
    pef = read_pef(path).pef
    assert [section.type for section in pef.sections] == ["fwd", "bckwd", "opt", "reduce"]
    (graph,) = pef.graphs.values()
    assert graph.schedule == (0, 1, 3, 2)
    reduce = pef.sections[3]
    parameters = ("logreg__lin_layer__weight", "logreg__lin_layer__bias")
    assert reduce.inputs == reduce.outputs == tuple(part for name in parameters for part in graph.gradients[name])
    assert reduce.cost.seconds > 0
    assert read_pef(path).pef.metadata["data_parallel"] is True


def test_inference_has_nothing_to_reduce(tmp_path: Path) -> None:
    model = LogReg()
    samba.from_torch_model_(model)
    path = compile_model(model, classifier_inputs(), None, tmp_path, data_parallel=True, world_size=2)
    assert {section.type for section in read_pef(path).pef.sections} == {"fwd"}


def test_a_world_of_one_trains_as_without_data_parallel(tmp_path: Path) -> None:
    plain = trained(tmp_path, False)
    for is_replica, config in ((True, {}), (False, {"data_parallel": True}), (True, {"data_parallel": True})):
        other = trained(tmp_path, is_replica, **config)
        assert all(torch.equal(value, other[name]) for name, value in plain.items())


def test_the_command_line_makes_a_group_of_one_rank_and_says_so_in_local_rank() -> None:
    assert parse_app_args(["compile"]).local_rank == -1
    assert not dist.is_initialized()
    args = parse_app_args(["compile", "--data-parallel", "-ws", "2"])
    assert (args.local_rank, args.world_size) == (0, 2)
    assert (dist.is_initialized(), dist.get_world_size(), utils.get_rank()) == (True, 1, 0)
    assert parse_app_args(["run", "--data-parallel", "--reduce-on-rdu"]).local_rank == 0


def test_the_mpi_backend_falls_back_to_gloo_and_others_stay_torchs() -> None:
    dist.init_process_group(backend="mpi")
    assert (dist.get_backend(), dist.get_world_size()) == ("gloo", 1)
    with pytest.raises(ValueError, match="twice"):
        dist.init_process_group("mpi")
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.get_backend() == "gloo"


def test_wrong_world_sizes_and_modes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_app_args(["run", "--data-parallel-mode", "other"])
    assert "invalid choice" in capsys.readouterr().err
    model = LogReg()
    samba.from_torch_model_(model)
    with pytest.raises(InvalidArgument, match="--world-size -1"):
        compile_model(model, classifier_inputs(), sgd(model.parameters()), tmp_path, data_parallel=True, world_size=-1)


def test_measuring_a_data_parallel_pef_without_a_world_size_warns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = load_model(LogReg(), classifier_inputs(), tmp_path, sgd, data_parallel=True, world_size=2)
    utils.measure_performance(loaded.model, loaded.inputs, 8, n_iterations=1)
    assert "[warning Samba]" in capsys.readouterr().out
    utils.measure_performance(loaded.model, loaded.inputs, 8, n_iterations=1, data_parallel=True, world_size=2)
    assert "[warning Samba]" not in capsys.readouterr().out

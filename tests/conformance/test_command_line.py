"""``parse_app_args`` and what is driven by it (SDK reference 7.3, 7.4, 8)."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rdukit.errors import PefNotFound
from rdukit.pef import read_pef
from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.utils.argparser import parse_app_args, parse_yaml_to_args
from sambaflow.samba.utils.common import common_app_driver
from sambaflow.samba.utils.pef_utils import PefInfoStruct, get_pef_info, get_pefmeta, get_pefmeta_dict
from support import shows
from support.programs import LogReg, classifier_inputs

pytestmark = shows("surface", "o0", "o1", "o3")

COMMANDS = ["compile", "run", "test", "measure-performance", "measure-sections"]


def sgd(model: nn.Module) -> Any:
    return samba.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def driven(argv: list[str], inference: bool = False, **more: Any) -> Any:
    """The classic program: one ``common_app_driver`` for every command."""
    args = parse_app_args(argv=argv)
    utils.set_seed(0)
    net = LogReg()
    samba.from_torch_model_(net)
    optimizer = None if inference else sgd(net)
    return common_app_driver(args, net, classifier_inputs(args.batch_size), optimizer, name="logreg", **more)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_every_attribute_with_the_documented_default(command: str) -> None:
    args = parse_app_args([command])
    assert args.command == command
    assert (args.batch_size, args.microbatch_size, args.pef, args.inference) == (1, None, None, False)
    assert (args.mapping, args.num_spatial_batches, args.data_parallel, args.world_size) == ("section", 1, False, 1)
    assert (args.n_chips, args.num_tiles, args.num_iterations, args.min_duration) == (1, -1, 100, 0.0)
    assert (args.json, args.compiled_stats_json, args.json_counters, args.run_graph_only) == (None, None, "", False)
    assert (args.output_folder, args.pef_name, args.optimization_rules) == ("out", None, None)
    assert (args.amp_level, args.default_device, args.tile_orientation, args.local_rank) == (4, "DDR", "auto", -1)
    assert args.resources_scaling_factors == ["-1.0"] * 4
    assert (args.tensor_parallel, args.gold_file_path, args.visualize) == ("none", None, False)


@pytest.mark.parametrize("command", COMMANDS[1:])
def test_a_run_without_a_pef_names_the_option(command: str) -> None:
    with pytest.raises(PefNotFound, match=r"no PEF was named; pass the path of a \.pef file with --pef"):
        driven([command, "--log-level", "error"])
    with pytest.raises(PefNotFound, match="no PEF was named"):
        driven([command, "--mapping", "spatial"])


@pytest.mark.parametrize(
    ("flags", "level"),
    [([], "o3"), (["-o0"], "o0"), (["--o0"], "o0"), (["-o1"], "o1"), (["--o1"], "o1"), (["-o3"], "o3"),
     (["--o3"], "o3"), (["--optim-level", "o1"], "o1"), (["--optim-level=o0"], "o0"), (["--optim-level", "1"], "o1")],
)  # fmt: skip
def test_every_spelling_of_the_optimisation_level_counts(flags: list[str], level: str, tmp_path: Path) -> None:
    pef = driven(["compile", "--pef-name", "x", "--log-level", "error", *flags])
    assert read_pef(pef).pef.mode == level


def test_an_unknown_optimisation_level_is_refused_with_the_legal_ones() -> None:
    from rdukit.errors import InvalidArgument

    with pytest.raises(InvalidArgument, match="o0, o1, o3"):
        driven(["compile", "--optim-level", "o7", "--log-level", "error"])
    assert not Path("out").exists()


def test_flags_may_use_the_equals_sign_and_single_dashes() -> None:
    args = parse_app_args(["run", "--pef=x.pef", "-b=64", "-mb=4", "--log-level=error", "--inference", "-ws", "2"])
    assert (args.pef, args.batch_size, args.microbatch_size, args.log_level) == ("x.pef", 64, 4, "error")
    assert (args.inference, args.world_size) == (True, 2)


def test_programs_may_redefine_built_in_options_and_add_their_own() -> None:
    def common(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("-b", "--batch-size", type=int, default=500, metavar="N")
        parser.add_argument("-lr", "--learning-rate", type=float, default=0.0015)
        parser.add_argument("-mbsize", type=int, default=3)
        parser.add_argument("--h", type=int, default=28)
        parser.add_argument("--data-parallel", default="no")

    def run(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--num-iterations", type=int, default=7)

    args = parse_app_args(["run", "-lr", "0.5", "--h", "3"], common, None, run)
    assert (args.batch_size, args.learning_rate, args.h, args.mbsize) == (500, 0.5, 3, 3)
    assert (args.num_iterations, args.data_parallel) == (7, "no")
    assert parse_app_args(["compile", "-b", "2"], common_parser_fn=common, run_parser_fn=run).num_iterations == 100


def test_the_whole_sys_argv_is_accepted() -> None:
    assert parse_app_args(["app.py", "compile", "-b", "3"]).batch_size == 3


@pytest.mark.parametrize(
    "argv", [["run", "--no-such-option"], ["fly"], [], ["compile", "-b", "many"], ["run", "--infer"]]
)
def test_unknown_options_and_commands_end_with_status_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_app_args(argv)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_a_yaml_file_is_laid_over_the_arguments(tmp_path: Path) -> None:
    (tmp_path / "args.yaml").write_text("batch-size: 9\nnew_one: [1, 2]\n")
    args = parse_yaml_to_args(str(tmp_path / "args.yaml"), parse_app_args(["compile"]))
    assert (args.batch_size, args.new_one) == (9, [1, 2])


def test_the_session_remembers_the_options_for_a_compile_without_config(tmp_path: Path) -> None:
    parse_app_args(["compile", "--pef-name", "remembered", "--output-folder", "made", "-o0", "--log-level", "error"])
    net = LogReg()
    samba.from_torch_model_(net)
    path = samba.session.compile(net, classifier_inputs(), sgd(net))
    assert Path(path) == Path("made/remembered/remembered.pef")
    assert read_pef(path).pef.mode == "o0"


def test_the_minimal_compile_names_the_pef_after_the_program_and_the_time() -> None:
    net = LogReg()
    samba.from_torch_model_(net)
    path = Path(samba.session.compile(net, classifier_inputs()))
    assert path.is_file()
    assert path.parts[0] == "out"
    assert path.stem == path.parent.name
    assert path.with_suffix(".samba.log").is_file()


def test_compile_says_on_the_console_where_things_are(capsys: pytest.CaptureFixture[str]) -> None:
    pef = driven(["compile", "--pef-name", "loud"])
    printed = capsys.readouterr().out
    assert "Placing log files in out/loud/loud.samba.log" in printed
    assert f"PEF file {pef} created" in printed
    assert "PEF file" in Path("out/loud/loud.samba.log").read_text()
    assert json.loads(Path("out/loud/loud.configs").read_text())["pef_name"] == "loud"


@pytest.mark.parametrize("inference", [False, True], ids=["training", "inference"])
def test_the_common_driver_compiles_tests_measures_and_runs(
    inference: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--inference"] if inference else []
    pef = driven(["compile", "-b", "8", "--pef-name", "driven", *flags], inference)
    assert read_pef(pef).pef.inference is inference
    common = ["-b", "8", "--pef", pef, *flags]
    driven(["test", *common], inference)
    assert "relative error" in capsys.readouterr().out
    samba.session.reset()
    driven(["measure-performance", "-n", "3", "--json", "m.json", *common], inference)
    assert "e2e_throughput: " in capsys.readouterr().out
    assert json.loads(Path("m.json").read_text())["iterations"] == 3
    samba.session.reset()
    outputs = driven(["run", "-n", "2", *common], inference)
    assert [tuple(o.shape) for o in outputs] == [(), (8, 4)]


def test_the_test_command_fails_when_device_and_host_differ() -> None:
    pef = driven(["compile", "-b", "8", "--pef-name", "t", "--log-level", "error"])

    class Other(LogReg):
        def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> Any:
            loss, out = super().forward(inputs, targets)
            return loss, out if samba.session.tracing else out + 5

    Other.__name__ = "LogReg"
    args = parse_app_args(["test", "-b", "8", "--pef", pef])
    net = Other()
    samba.from_torch_model_(net)
    with pytest.raises(AssertionError, match="linear__outputs__0: absolute error"):
        common_app_driver(args, net, classifier_inputs(8), sgd(net))


def test_metadata_come_back_from_the_pef() -> None:
    args = parse_app_args(["compile", "--pef-name", "meta", "-b", "8", "--log-level", "error"])
    net = LogReg()
    samba.from_torch_model_(net)
    pef = samba.session.compile(
        net, classifier_inputs(8), sgd(net), config_dict=vars(args),
        pef_metadata={**get_pefmeta(args, net), "pydantic_app_args": {"a": [1, 2]}, "sizes": [3, 4]},
    )  # fmt: skip
    asked = {key: PefInfoStruct(None) for key in ("batch_size", "model", "pydantic_app_args", "sizes", "inference")}
    info = get_pef_info(pef, asked)
    assert (info["batch_size"], info["pydantic_app_args"], info["sizes"], info["inference"]) == (
        8, {"a": [1, 2]}, [3, 4], False,
    )  # fmt: skip
    assert "lin_layer" in info["model"]
    with pytest.raises(ValueError, match=r"no metadata.*never_set"):
        get_pef_info(pef, {"never_set": PefInfoStruct()})
    with pytest.raises(PefNotFound, match=r"missing\.pef"):
        get_pef_info("missing.pef", asked)


def test_pefmeta_holds_all_arguments_as_text_but_those_of_the_compile() -> None:
    meta = get_pefmeta(parse_app_args(["compile", "-b", "8"]), LogReg())
    assert (meta["batch_size"], meta["mapping"], meta["inference"]) == ("8", "section", "False")
    assert "samba_version" in meta
    assert not {"command", "pef_name", "output_folder", "arch", "log_level"} & set(meta)
    assert get_pefmeta_dict({"factors": [1, 2]}, "m")["factors"] == [1, 2]


def test_assert_close_compares_in_any_order_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    gold = torch.tensor([1.0, 2.0])
    utils.assert_close(gold, samba.from_torch_tensor(gold + 1e-3), "fine")
    assert "fine: absolute error" in capsys.readouterr().out
    for pair in ((gold, gold + 0.1), (gold + 0.1, gold), (gold, gold * float("nan"))):
        with pytest.raises(AssertionError, match="off"):
            utils.assert_close(*pair, "off", threshold=1e-2)
    with pytest.raises(AssertionError, match="shape"):
        utils.assert_close(torch.ones(2, 3), torch.ones(3), "shapes", threshold=1.0)


def test_seeds_files_and_ranks(tmp_path: Path) -> None:
    utils.set_seed(5)
    first = torch.rand(2)
    samba.set_seed(5)
    assert torch.equal(first, torch.rand(2))
    assert utils.get_file_dir(__file__) == str(Path(__file__).resolve().parent)
    assert (utils.get_rank(), utils.get_world_size(), utils.is_main_process()) == (0, 1, True)


def test_the_accuracy_report_is_json(tmp_path: Path) -> None:
    from sambaflow.samba.utils.benchmark_acc import AccuracyReport

    report = AccuracyReport({"acc": torch.tensor(0.5)}, {"loss": 1.5}, batch_size=8, num_iterations=3)
    report.save(tmp_path / "acc.json")
    assert json.loads((tmp_path / "acc.json").read_text()) == {
        "val_metrics": {"acc": 0.5}, "train_metrics": {"loss": 1.5}, "batch_size": 8, "num_iterations": 3,
    }  # fmt: skip
    AccuracyReport(val_accuracy=0.9).save(None)


def test_the_mnist_transform_normalises_and_flattens() -> None:
    from sambaflow.samba.utils.dataset.mnist import dataset_transform

    transform = dataset_transform({"num_features": 784})
    made = transform(torch.full((28, 28), 255).numpy())
    assert made.shape == (784,)
    assert made[0].item() == pytest.approx((1 - 0.1307) / 0.3081, rel=1e-5)


def test_messages_of_the_samba_logger_can_be_limited(caplog: pytest.LogCaptureFixture) -> None:
    from sambaflow.logging import samba_logger

    for _ in range(3):
        samba_logger.warning("said once", log_limit=1)
        samba_logger.error("said thrice")
    assert [r.message for r in caplog.records].count("said once") == 1
    assert [r.message for r in caplog.records].count("said thrice") == 3


def test_an_ordered_set_keeps_order_and_holds_parameters() -> None:
    from sambaflow.sambacollections import OrderedSet

    net = LogReg()
    samba.from_torch_model_(net)
    items = OrderedSet(net.parameters())
    items.add(net.lin_layer.weight)
    assert [p is q for p, q in zip(items, net.parameters(), strict=True)] == [True, True]
    assert net.lin_layer.bias in items
    assert (1, "a") in OrderedSet([(1, "a")])
    assert samba.optim.SGD(items, lr=0.1).device_groups(0)[0].parameters == (
        "logreg__lin_layer__weight", "logreg__lin_layer__bias",
    )  # fmt: skip

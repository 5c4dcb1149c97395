"""Every option that programs pass: accepted, checked, recorded in the PEF, and shown by ``rdukit pef show``."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rdukit.errors import InvalidArgument
from rdukit.pef import read_pef
from rdukit.pef.cli import pef as pef_command
from sambaflow import samba
from sambaflow.samba.utils.argparser import parse_app_args
from support import shows
from support.programs import LogReg, classifier_inputs

pytestmark = shows("surface", "pef", "o1")

#: Flags → attribute and value. Source: SDK reference 8.1, compiler reference 4.1 to 4.5.
FLAGS: dict[str, tuple[str, Any]] = {
    "--tensor-parallel batch": ("tensor_parallel", "batch"),
    "--model-parallel": ("model_parallel", True),
    "--nchips 2": ("n_chips", 2),
    "--num-chips 2": ("n_chips", 2),
    "--compiler-mode nlp": ("compiler_mode", "nlp"),
    "--mac-v1": ("mac_v1", True),
    "--mac-v2": ("mac_v2", True),
    "--use-o1-default-rules": ("use_o1_default_rules", True),
    "--o1-experimental-opts": ("o1_experimental_opts", True),
    "--enable-conv-tiling": ("enable_conv_tiling", True),
    "--resources-scaling-factors 0.8 0.8 0.8": ("resources_scaling_factors", ["0.8"] * 3),
    "--enable-tiling": ("enable_tiling", True),
    "--default-par-factors": ("default_par_factors", True),
    "--enable-multi-input-broadcast": ("enable_multi_input_broadcast", True),
    "--weight-sharing": ("weight_sharing", True),
    "--enable-pcu-scaling": ("enable_pcu_scaling", True),
    "--skip-pnr-aware": ("skip_pnr_aware", True),
    "--loop-conversion": ("loop_conversion", True),
    "--optimize-concat-split": ("optimize_concat_split", True),
    "--enable-coe": ("enable_coe", True),
    "--run-early-tp": ("run_early_tp", True),
    "--enable-distribution-pass": ("enable_distribution_pass", True),
    "--all-regions-hbm": ("all_regions_hbm", True),
    "--enable-hypersection": ("enable_hypersection", True),
    "--hbm-auto-alloc linear_scan": ("hbm_auto_alloc", "linear_scan"),
    "--tiling-accum fp32": ("tiling_accum", "fp32"),
    "--weight-grad-reduce bf16sr": ("weight_grad_reduce", "bf16sr"),
    "--enable-stoc-rounding": ("enable_stoc_rounding", True),
    "--use-air-ce": ("use_air_ce", True),
    "--enable-stochastic-rounding": ("enable_stochastic_rounding", True),
    "--enable-safe-stochastic-rounding": ("enable_safe_stochastic_rounding", True),
    "--stage-instrumentation=all_stage_cycles": ("stage_instrumentation", "all_stage_cycles"),
    "--include-read-stall-cycles": ("include_read_stall_cycles", True),
    "--gen-tensorboard": ("gen_tensorboard", True),
    "--target-runtime-version 1.2": ("target_runtime_version", "1.2"),
    "--squeeze-bs-dim": ("squeeze_bs_dim", True),
    "--target-sambaflow-version 1.23.0": ("target_sambaflow_version", "1.23.0"),
    "--debug": ("debug", True),
    "--disable-strict-conversion": ("disable_strict_conversion", True),
    "--verbose 2": ("verbose", 2),
    "--graphamp-preset mp1": ("graphamp_preset", "mp1"),
    "--num-spatial-batches 4": ("num_spatial_batches", 4),
    "--enable-mixed-precision-ops gemm softmax": ("enable_mixed_precision_ops", ["gemm", "softmax"]),
    "--mapping spatial": ("mapping", "spatial"),
    "--distlearn-config x.json": ("distlearn_config", "x.json"),
    "--data-parallel-mode normal": ("data_parallel_mode", "normal"),
    "--grad-accumulation-steps 2": ("grad_accumulation_steps", 2),
}


#: Options of released compilers as they stand in the metadata of published PEFs: attribute → default.
PUBLISHED: dict[str, Any] = {
    "amp_level": 4, "arc_debug_mode": False, "default_device": "DDR", "dense_adam_fast_grad_compute": False,
    "disable_mac_tiling": False, "disable_retry_lower_visible_resources": False, "dump_traced_graph": False,
    "enable_buffer_trial_compile": False, "enable_conv2d_conversion": False, "enable_node_trial_compile": False,
    "force_node_proximity": False, "fp32_params": False, "fuse_fwd_bwd": False, "host_fifo": False,
    "hypersection_arc": False, "input_layout": None, "latency_budget_fwd": None, "mac_conv_tiling_c++": False,
    "mac_templatedb_dir": "", "max_expected_mac_latency": -1.0, "max_mac_loop_attempt": -1, "metapipe_disable": False,
    "profiler_trace": None, "recompute_ratio": -1.0, "run_analysis_pass": False, "safe_mode": False,
    "section_cut_beam_search": [], "section_cut_sort_order": 3, "skip_instrumentation_on_read0": False,
    "strict_auto_cast": False, "tile_orientation": "auto", "unroll_first": False, "use_integrated_bias": False,
    "validate_mac_resource_prediction": False, "weight_caching": False, "weight_layout": None,
}  # fmt: skip


def given(name: str, default: Any) -> tuple[list[str], Any]:
    """Words of a command line that set the option to another value, and the value."""
    option = "--" + name.replace("_", "-")
    if default is False:
        return [option], True
    if isinstance(default, list):
        return [option, "2", "2"], ["2", "2"]
    value = default + 1 if isinstance(default, int | float) else "some"
    return [option, str(value)], value


@pytest.mark.parametrize("name", PUBLISHED)
def test_options_of_published_pefs_have_their_defaults_and_take_values(name: str) -> None:
    default = PUBLISHED[name]
    for command in ("compile", "run"):
        assert getattr(parse_app_args([command]), name) == default
    words, value = given(name, default)
    assert getattr(parse_app_args(["compile", *words]), name) == value
    assert getattr(parse_app_args(["compile", f"--{name}", *words[1:]]), name) == value


def test_options_of_published_pefs_are_recorded_and_what_would_change_numbers_is_obeyed() -> None:
    found = read_pef(compiled("--enable-conv2d-conversion --section-cut-beam-search 2 2 --disable-bf16-conversion")).pef
    assert found.metadata["enable_conv2d_conversion"] is True
    assert found.metadata["section_cut_beam_search"] == ["2", "2"] and found.precision == "f32"


@pytest.mark.parametrize("option", ["--pp-lamb-optimizer", "--mac-only", "--stop-mac-c++", "--ndtest", "--acc-test"])
def test_options_that_would_change_what_comes_out_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_app_args(["compile", option])
    assert f"{option} is not available; " in capsys.readouterr().err


def test_a_yaml_file_of_options_is_read(tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text("batch-size: 12\n")
    assert parse_app_args(["compile", "--yaml-config", str(tmp_path / "more.yaml")]).batch_size == 12


def compiled(flags: str) -> str:
    args = parse_app_args(["compile", "--pef-name", "x", "--log-level", "error", *flags.split()])
    net = LogReg()
    samba.from_torch_model_(net)
    return samba.session.compile(
        net, classifier_inputs(), samba.optim.SGD(net.parameters(), 0.1), config_dict=vars(args)
    )


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_set_their_attribute(flag: str) -> None:
    name, value = FLAGS[flag]
    assert getattr(parse_app_args(["compile", *flag.split()]), name) == value
    assert getattr(parse_app_args(["compile"]), name) != value or name in {"data_parallel_mode"}


def test_all_flags_together_compile_and_are_listed_by_pef_show() -> None:
    pef = compiled(" ".join(FLAGS))
    metadata = read_pef(pef).pef.metadata
    for name, value in FLAGS.values():
        assert metadata[name] == value
    shown = CliRunner().invoke(pef_command, ["show", pef]).output
    for word in ("loop_conversion", "hbm_auto_alloc", "linear_scan", "weight_grad_reduce", "use_air_ce"):
        assert word in shown


@pytest.mark.parametrize("spelling", ["-o1HD", "--o1HD", "-o1hd", "--o1hd", "--optim-level o1HD", "--optim-level O1"])
def test_o1hd_falls_back_to_o1_under_every_spelling(spelling: str) -> None:
    assert read_pef(compiled(spelling)).pef.mode == "o1"


def test_plot_draws_the_sections_into_the_artifact_folder() -> None:
    pef = Path(compiled("--plot"))
    assert "<svg" in pef.with_suffix(".svg").read_text()


def test_expert_knobs_are_read_and_recorded(tmp_path: Path) -> None:
    knobs = {"enable_wbuf_nbuf_for_biggemm": True, "mac_flags": "--x"}
    (tmp_path / "knobs.json").write_text(json.dumps(knobs))
    pef = compiled(f"--compiler-configs-file {tmp_path / 'knobs.json'}")
    assert read_pef(pef).pef.metadata["compiler_configs"] == knobs
    (tmp_path / "list.json").write_text("[1]")
    for bad in ("missing.json", "list.json"):
        with pytest.raises(InvalidArgument, match=bad):
            compiled(f"--compiler-configs-file {tmp_path / bad}")


@pytest.mark.parametrize("steps", ["many", [1]])
def test_bad_accumulation_steps_are_refused(steps: Any) -> None:
    net = LogReg()
    samba.from_torch_model_(net)
    optimizer = samba.optim.SGD(net.parameters(), 0.1)
    config = {"grad_accumulation_steps": steps}
    with pytest.raises(InvalidArgument, match="grad_accumulation_steps"):
        samba.session.compile(net, classifier_inputs(), optimizer, config_dict=config)

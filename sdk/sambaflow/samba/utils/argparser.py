"""The command line of SambaFlow programs. Source: SDK reference 8.

Options are a table: name, default, commands. User functions may redefine any of them; the user's definition takes
precedence.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from sambaflow.samba.schema.snconfig import SNConfig
from sambaflow.sessions import current_session

COMMANDS: Final = ("compile", "run", "test", "measure-performance", "measure-sections")
_RUN: Final = ("run", "test", "measure-performance", "measure-sections")

ParserFunction = Callable[[argparse.ArgumentParser], Any]


def parse_app_args(
    argv: Sequence[str] | None = None, common_parser_fn: ParserFunction | None = None,
    compile_parser_fn: ParserFunction | None = None, run_parser_fn: ParserFunction | None = None,
    test_parser_fn: ParserFunction | None = None, dev_mode: bool = False, **accepted: Any,
) -> argparse.Namespace:  # fmt: skip
    """Parse a program's command line: a command, then options.

    ``common_parser_fn`` adds options to every command, and the other functions to their own commands. For every
    command, the result has all built-in attributes; the session stores it.

    With ``--data-parallel`` torch's default process group consists of the ranks that were launched together, and
    ``local_rank`` is this process's rank.

    Exits with status 2 on an unknown option or command, as argparse does.

    Raises:
        PeerLost: not all ranks joined in time.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    if given and Path(given[0]).suffix == ".py":
        given = given[1:]  # one known program passes the whole sys.argv
    parser = argparse.ArgumentParser(prog=Path(sys.argv[0]).name)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="{compile,run,test,measure-performance}")
    own = {"compile": compile_parser_fn, "run": run_parser_fn, "test": test_parser_fn}
    for command in COMMANDS:
        sub = subparsers.add_parser(
            command, conflict_handler="resolve", allow_abbrev=False, prog=f"{parser.prog} {command}",
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )  # fmt: skip
        add_built_in_options(sub, command)
        built_in = len(sub._actions)
        for function in (common_parser_fn, own.get(command) or (run_parser_fn if command in _RUN else None)):
            if function is not None:
                function(sub)
        _prefer_users_defaults(sub, built_in)
    args = parser.parse_args(given)
    for name, value in built_in_defaults().items():
        if not hasattr(args, name):
            setattr(args, name, value)
    if args.yaml_config:
        parse_yaml_to_args(args.yaml_config, args)
    from sambaflow.sessions.data_parallel import is_switched_on, join_ranks, world_size
    from sambaflow.sessions.virtual_ranks import check_virtual_ranks

    is_parallel = is_switched_on(args.data_parallel)
    if is_parallel:
        args.local_rank = join_ranks()
    check_virtual_ranks(args.virtual_ranks, is_parallel, world_size())
    current_session().options = dict(vars(args))
    return args


def _prefer_users_defaults(parser: argparse.ArgumentParser, built_in: int) -> None:
    """Apply the user's default to the rest of a redefined option, such as ``-n`` of ``--num-iterations``.

    argparse uses the default of a destination's first action, which is the built-in one.
    """
    for action in parser._actions[built_in:]:
        for other in parser._actions[:built_in]:
            if other.dest == action.dest:
                other.default, other.type = action.default, action.type


def parse_yaml_to_args(path: str, args: argparse.Namespace) -> argparse.Namespace:
    """Overwrite parsed arguments with a YAML file's values; return ``args``."""
    import yaml  # most programs read no file

    values = yaml.safe_load(Path(path).read_text()) or {}
    for key, value in values.items():
        setattr(args, str(key).replace("-", "_"), value)
    return args


def add_built_in_options(parser: argparse.ArgumentParser, command: str) -> None:
    """Add the options of every SambaFlow program."""
    add = parser.add_argument
    add("-b", "--batch-size", type=int, default=1, help="samples a step; fixed in the PEF")
    add("-mb", "--microbatch-size", type=int, default=None, help="samples a pipeline pass")
    add("-p", "--pef", default=None, help="PEF for run, test and measure")
    add("--inference", action="store_true", help="forward only")
    add("--mapping", choices=["section", "spatial"], default="section", help="mapping of the graph onto the chip")
    add("--num-spatial-batches", type=int, default=1, help="batches per call with spatial mapping")
    add("--data-parallel", action="store_true", help="one replica per process")
    add("-ws", "--world-size", type=int, default=1, help="replicas")
    add("--reduce-on-rdu", action="store_true", help="reduce gradients on the fabric")
    add("--data-parallel-mode", choices=["normal"], default="normal", help="only 'normal'")
    add("--log-level", default="info", help="front-end verbosity: debug, info, warning, error")
    add("--verbose", "-v", type=int, nargs="?", const=1, default=0, help="more output")
    add("--debug", action="store_true", help="more output and checks")
    add("--arch", choices=["sn10", "sn20", "sn30", "sn40", "sn40l"], default=None, help="target chip (default sn30)")
    add("--num-tiles", type=int, default=-1, help="tiles for the PEF; -1 = all tiles of a chip")
    add(
        "--n-chips",
        "--num-chips",
        "--nchips",
        type=int,
        default=1,
        help="RDUs among which the model is divided: by --tensor-parallel, else as a pipeline",
    )
    add("--output-folder", default="out", help="parent folder of the artifact folder")
    add("--pef-name", default=None, help="name of the PEF and of its folder")
    for mode in ("o0", "o1", "o1HD", "o3"):
        flags = dict.fromkeys(dashes + word for word in (mode, mode.lower()) for dashes in ("-", "--"))
        add(*flags, dest="optim_level", action="store_const", const=mode, default="o3",
            help=f"optimisation level {mode}")  # fmt: skip
    add("--optim-level", dest="optim_level", default="o3", help="o0, o1, o1HD or o3")
    add("--optimization-rules", default=None, help="fusion rule file (YAML) for o1")
    add("--precision", choices=["bf16", "f32"], default=None, help="device arithmetic (ours; default bf16)")
    add(
        "--weight-dtype",
        choices=["int8", "int4"],
        default=None,
        help="dtype of linear layers' weights (inference; ours)",
    )
    add(
        "--heuristics",
        action="append",
        default=None,
        metavar="FILE",
        help="Python file with heuristics for rules (ours)",
    )
    add("--host-fallback", action="store_true", help="run unsupported operators on the host (ours)")
    _add_accepted(parser)
    if command in _RUN:
        add("--virtual-ranks", type=int, default=1, metavar="R",
            help="replicas in this process; results equal those of R ranks bit for bit (ours)")  # fmt: skip
        add("-n", "--num-iterations", type=int, default=100, help="iterations to measure")
        add("--min-duration", type=float, default=0.0, help="minimum seconds to measure")
        add("--run-graph-only", action="store_true", help="measure the graph without uploading inputs")
        add("--num-sections", type=int, default=None, help="sections to measure")
        for name in ("--json", "--bench-report-json", "--acc-report-json", "--compiled-stats-json"):
            add(name, default=None, help="write a report to this file")
        add("--json-counters", default="", help="counters to include")
        add("--visualize", action="store_true", help="accepted, without effect")


#: Options of the compiler: (flags, keyword arguments). Those with an effect are read in ``compiling``; all are recorded
#: in the PEF. Source: SDK reference 8.1, compiler reference 4.
_COMPILER_OPTIONS: Final[tuple[tuple[tuple[str, ...], dict[str, Any]], ...]] = (
    (("--graphamp-preset",), {"choices": ["default", "mp0", "mp1", "mp4"], "default": None,
                              "help": "choice of operators that keep the program's precision"}),
    (("--enable-mixed-precision-ops",), {"nargs": "*", "default": None, "metavar": "FAMILY",
                                         "help": "families of operators that compute in f32: gemm, softmax, norm …"}),
    (("--grad-accumulation-steps",), {"type": int, "default": 1,
                                      "help": "above 1: backward accumulates gradients until the optimizer runs"}),
    (("--gen-tensorboard",), {"action": "store_true",
                              "help": "write the sections' graph and figures for TensorBoard"}),
    (("--plot",), {"action": "store_true", "default": None, "help": "draw the sections into the artifact folder"}),
    (("--mac-human-decision",), {"default": None, "metavar": "JSON", "help": "file with sections cut by hand"}),
    (("--compiler-configs-file",), {"default": "", "metavar": "JSON", "help": "expert knobs; read and recorded only"}),
    (("--tiling-accum",), {"choices": ["bf16sr", "fp32"], "default": None}),
    (("--weight-grad-reduce",), {"choices": ["bf16sr", "fp32"], "default": None}),
    (("--resources-scaling-factors",), {"nargs": "+", "default": ["-1.0"] * 4}),
    (("--tensor-parallel",), {"choices": ["none", "batch", "weight"], "default": "none",
                             "help": "with --n-chips: divide batch or weights among chips"}),
    (("--compiler-mode",), {"default": ""}),
    (("--distlearn-config",), {"default": ""}),
    (("--stage-instrumentation",), {"default": "none"}),
    (("--hbm-auto-alloc",), {"default": None}),
    (("--target-runtime-version",), {"default": None}),
    (("--target-sambaflow-version",), {"default": None}),
    (("--enable-stoc-rounding",), {"action": "store_true"}),
    (("--enable-stochastic-rounding",), {"action": "store_true"}),
    (("--enable-safe-stochastic-rounding",), {"action": "store_true"}),
    *(((flag,), {"action": "store_true"}) for flag in (
        "--mac-v1", "--mac-v2", "--use-o1-default-rules", "--o1-experimental-opts", "--model-parallel",
        "--enable-conv-tiling", "--enable-tiling", "--default-par-factors", "--weight-sharing", "--enable-hypersection",
        "--disable-strict-conversion", "--enable-multi-input-broadcast", "--enable-pcu-scaling", "--skip-pnr-aware",
        "--loop-conversion", "--optimize-concat-split", "--enable-coe", "--run-early-tp", "--early-tp",
        "--enable-distribution-pass", "--all-regions-hbm", "--use-air-ce", "--include-read-stall-cycles",
        "--squeeze-bs-dim",
    )),
)  # fmt: skip

#: Further options of released compilers by attribute, with their defaults: recorded in the PEF. Those of
#: ``_ATTRIBUTES`` are options too. Source: metadata of PEFs that releases 1.11 to 1.14 compiled.
_INTERNAL: Final[dict[str, Any]] = {
    "arc_debug_mode": False, "dense_adam_fast_grad_compute": False, "disable_mac_tiling": False,
    "disable_retry_lower_visible_resources": False, "dropout_tiling_legalizer_error": False,
    "dump_compiled_stats_json": False, "dump_traced_graph": False, "enable_buffer_trial_compile": False,
    "enable_conv2d_conversion": False, "enable_hd_retry_lower_visible_resources": False,
    "enable_node_trial_compile": False, "enable_node_trial_compile_logging": False, "enable_profiler": False,
    "force_node_proximity": False, "has_human_decision": False, "hypersection_arc": False,
    "mac_conv_tiling_c++": False, "mac_named_dims_c++": False, "mac_print_mapping_ir": False,
    "mac_split_cat_as_stage_buf": False, "mac_templatedb_dir": "", "mac_templatedb_dir_backup_to": "",
    "mac_templatedb_dir_init_from": "", "max_expected_mac_latency": -1.0, "max_mac_loop_attempt": -1,
    "profiler_trace": None, "run_analysis_pass": False, "sambahd": False, "section_cut_beam_search": [],
    "section_cut_sort_order": 3, "skip_instrumentation_on_read0": False, "skip_instrumentation_on_read1": False,
    "strict_auto_cast": False, "traced_attributes_folder": "", "use_correct_tiling_cost_model": False,
    "use_integrated_bias": False, "validate_mac_resource_prediction": False,
}  # fmt: skip
#: Options that would change a compile's or run's result: the parser refuses them, and names the alternative.
_REFUSED: Final[dict[str, str]] = {
    "pp_lamb_optimizer": "the optimizers are those of samba.optim",
    "mac_only": "a compile runs all passes",
    "stop_mac_c++": "a compile runs all passes",
    "stop_mac_named_dims_c++": "a compile runs all passes",
    "ndtest": "start the ranks with a launcher and --data-parallel",
    "ndtest_mp": "start the ranks with a launcher and --data-parallel",
    "acc_test": "compare with the command test",
}


class _Refuse(argparse.Action):
    """Ends the program with the usage and the reason, because ignoring the option would change results."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        parser.error(f"{option} is not available; {_REFUSED[self.dest]}")


def _add_accepted(parser: argparse.ArgumentParser) -> None:
    for flags, keywords in _COMPILER_OPTIONS:
        parser.add_argument(*flags, **{"help": "recorded in the PEF", **keywords})
    for name, default in {**_ATTRIBUTES, **_INTERNAL}.items():
        said = "read a YAML file of options" if name == "yaml_config" else "recorded in the PEF"
        parser.add_argument(*_spellings(name), dest=name, default=default, help=said, **_kind_of(default))
    for name, reason in _REFUSED.items():
        parser.add_argument(*_spellings(name), dest=name, action=_Refuse, nargs=0, default=False, help=reason)


def _spellings(name: str) -> list[str]:
    """Return an option with dashes and, as in a PEF's metadata, with underscores."""
    return list(dict.fromkeys((f"--{name.replace('_', '-')}", f"--{name}")))


def _kind_of(default: Any) -> dict[str, Any]:
    """Return argparse's arguments for an option: a switch, words, a number, or text."""
    if default is False:
        return {"action": "store_true"}
    if isinstance(default, list):
        return {"nargs": "*"}
    return {"type": type(default)} if isinstance(default, int | float) else {}


def built_in_defaults() -> dict[str, Any]:
    """Return every built-in attribute with its default, for commands without the option."""
    parser = argparse.ArgumentParser(conflict_handler="resolve")
    for command in COMMANDS:
        add_built_in_options(parser, command)
    return vars(parser.parse_args([]))


#: Attributes that programs read, with their defaults. Source: SDK reference 8.1, metadata of PEFs.
_ATTRIBUTES: Final[dict[str, Any]] = {
    "local_rank": -1, "fp32_params": False, "amp_level": 4, "default_device": "DDR",
    "fuse_fwd_bwd": False, "metapipe_disable": False, "weight_caching": False, "host_fifo": False,
    "tile_orientation": "auto", "recompute_ratio": -1.0, "input_layout": None, "weight_layout": None,
    "latency_budget_fwd": None, "latency_budget_bwd": None, "max_tiling_depth": None, "safe_mode": False,
    "strict_conversion": False, "unroll_first": False, "samba_plot": False,
    "single_opt_sec": False, "disable_bf16_conversion": False, "sambatune_graph": False,
    "mlir_file_name": None, "dev_mode": False, "gold_file_path": None, "listen_for_input": False,
    "mock_inference": False, "dump_accuracy_debug_info": False, "log_dir": None, "modelbox": False,
    "samba_runtime_profile": None, "yaml_config": None,
}  # fmt: skip


class SambaConfig:
    """Arguments with the defaults of a schema."""

    def __init__(self, args: argparse.Namespace, schema: type[SNConfig] | None = None) -> None:
        self.args = args
        self.schema = schema or SNConfig

    def get_all_params(self) -> dict[str, Any]:
        """Return all parameters; set missing ones in ``args``, and store them in the session."""
        for name, value in self.schema.defaults().items():
            if not hasattr(self.args, name):
                setattr(self.args, name, value)
        found = dict(vars(self.args))
        session = current_session()
        session.options = {**session.options, **found}
        return found

"""Compile and run options as Pydantic models, for programs that configure themselves from YAML.

Source: SDK reference 15. Unlisted fields are kept, and also reach the compiler as options.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class CommonArgs(BaseModel):
    """Options on which compile and run must agree; the model zoo compares these with the PEF's metadata."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    inference: bool = Field(default=False, description="forward only")
    data_parallel: bool = Field(default=False, description="one replica per process")
    world_size: int = Field(default=1, ge=1, description="replicas")
    debug: bool = Field(default=False, description="more output and checks")
    verbose: int = Field(default=0, description="more output")


class CompileArgs(CommonArgs):
    """Options of a compile."""

    arch: str | None = Field(default=None, description="target chip: sn10, sn20, sn30, sn40")
    output_folder: str | None = "out"
    pef_name: str | None = None
    optim_level: str = Field(default="o3", description="o0, o1 or o3")
    o1_experimental_opts: bool = False
    optimization_rules: str | list[str] | None = None
    use_o1_default_rules: bool = False
    enable_distribution_pass: bool = False
    weight_grad_reduce: Any = None
    enable_safe_stochastic_rounding: bool = False
    compiler_mode: str | None = ""
    enable_mixed_precision_ops: Any = None
    enable_multi_input_broadcast: bool = False
    tiling_accum: Any = None
    use_air_ce: bool = False
    all_regions_hbm: bool = False
    num_tiles: int = -1
    hbm_auto_alloc: str | bool = Field(
        default=False, description="how HBM is allocated; configurations use linear_scan"
    )
    n_chips: int = 1
    run_early_tp: bool = False
    early_tp: Any = None
    tensor_parallel: str | bool | None = None
    compiler_configs_file: str | None = ""
    optimize_concat_split: bool = False
    resources_scaling_factors: list[float | str] | None = None
    enable_pcu_scaling: bool = False
    skip_pnr_aware: bool = False
    loop_conversion: bool = False
    enable_coe: bool = False
    target_sambaflow_version: str | None = None


class RunArgs(CommonArgs):
    """Options of a run."""

    pef: str | None = Field(default=None, description="the PEF to load")

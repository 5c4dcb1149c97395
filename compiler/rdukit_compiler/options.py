"""Options of one compile."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit.hardware import ChipSpec, find_chip
from rdukit_compiler.passes.choose_compute import PRESETS, keeps_declared

MODES: Final = ("o0", "o1", "o3")
#: Storage formats of linear layers' weights, other than the precision.
WEIGHT_DTYPES: Final = ("int8", "int4")
#: How a model is divided among chips; the last one is the default of several chips.
PARALLEL: Final = ("batch", "weight", "pipeline")
#: Maximum RDUs of one model. Source: compiler reference 4.1.
MAX_CHIPS: Final = 8


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options of one compile.

    ``num_tiles`` 0 means all tiles of one chip. ``rules`` are fusion rule files of the user; ``default_rules`` adds the
    built-in ones. ``heuristics`` are Python files with plug-in heuristics, ``human_decision`` a JSON file of cuts.
    ``regions`` maps symbol names to shared region names. ``workers``: see the setting ``compile.workers``.
    ``data_parallel`` adds the section that averages gradients; ``replicas`` are for the cost model only; any number can
    run. ``accumulates``: backward adds to the gradients until the optimizer runs. ``graphamp`` and
    ``mixed_precision_families``: see ``passes/choose_compute.py``.
    """

    name: str
    pef_path: Path
    mode: str = "o3"
    arch: str = "sn30"
    num_tiles: int = 0
    #: Number of RDUs that share the model, and how it is divided: "batch", "weight", or "pipeline" by sections.
    chips: int = 1
    parallel: str = ""
    precision: str = "bf16"
    #: "int8", "int4": storage format of linear layers' weights, for inference only. Empty: that of ``precision``.
    weight_dtype: str = ""
    inference: bool = False
    data_parallel: bool = False
    replicas: int = 2
    accumulates: bool = False
    graphamp: str | None = None
    mixed_precision_families: tuple[str, ...] = ()
    rules: tuple[Path, ...] = ()
    default_rules: bool = True
    heuristics: tuple[Path, ...] = ()
    human_decision: Path | None = None
    kernels: str = "auto"
    #: False: native kernels are left to ``build_pef``, and the PEF is otherwise the same.
    builds_kernels: bool = True
    #: Run unsupported operators on the host instead of refusing them.
    host_fallback: bool = False
    #: Compile a model also if no RDU has the memory for it; only to plan its placement.
    is_plan: bool = False
    regions: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def chip(self) -> ChipSpec:
        return find_chip(self.arch)

    @property
    def tiles(self) -> int:
        return self.num_tiles or self.chip.tiles

    @property
    def base_precision(self) -> str:
        """Return the precision of values without an operator's ``compute``: ``f32`` means the program's own."""
        return "f32" if keeps_declared(self.precision, self.graphamp) else self.precision

    @property
    def is_exact(self) -> bool:
        """Return whether sections run torch's operators in the program's dtypes; then all other parts round like
        torch.
        """
        return self.precision == "f32" and (self.mode == "o0" or self.kernels == "portable")

    def check(self) -> None:
        """Check every value.

        Raises:
            InvalidArgument: a value is invalid; the message lists the valid ones.
        """
        if self.mode not in MODES:
            raise InvalidArgument(f"mode {self.mode!r} is not valid; expected {', '.join(MODES)}")
        if self.precision not in {"bf16", "f32"}:
            raise InvalidArgument(f"precision {self.precision!r} is not valid; expected bf16, f32")
        if self.weight_dtype not in {"", *WEIGHT_DTYPES}:
            raise InvalidArgument(
                f"--weight-dtype {self.weight_dtype!r} is not valid; expected {', '.join(WEIGHT_DTYPES)}"
            )
        if self.weight_dtype and not self.inference:
            raise InvalidArgument(
                f"--weight-dtype {self.weight_dtype} is only for inference, because rounded weights cannot be "
                "trained; compile with --inference"
            )
        if self.graphamp is not None and self.graphamp not in PRESETS:
            raise InvalidArgument(f"--graphamp-preset {self.graphamp!r} is not valid; expected {', '.join(PRESETS)}")
        if self.replicas < 1:
            raise InvalidArgument(f"--world-size {self.replicas} is not valid; expected 1 or more")
        self._check_chips()
        legal = [n for n in (1, 2, 4, 8) if n <= self.chip.tiles]
        if self.tiles not in legal:
            raise InvalidArgument(f"--num-tiles {self.tiles} is not valid on {self.chip.name}; expected {legal}")

    def _check_chips(self) -> None:
        if self.parallel not in {"", *PARALLEL}:
            raise InvalidArgument(f"--tensor-parallel {self.parallel!r} is not valid; expected batch, weight, none")
        if not 1 <= self.chips <= MAX_CHIPS:
            raise InvalidArgument(
                f"--n-chips {self.chips} is not valid; expected 1 to {MAX_CHIPS}, the RDUs of one node"
            )
        if self.chips == 1:
            return
        if self.tiles != self.chip.tiles:
            raise InvalidArgument(
                f"--num-tiles {self.tiles} is not valid with --n-chips {self.chips}, which uses whole RDUs; leave it "
                f"out, or give the {self.chip.tiles} tiles of an RDU"
            )
        if self.weight_dtype:
            raise InvalidArgument(
                f"--weight-dtype {self.weight_dtype} is for one chip; leave out --n-chips {self.chips}"
            )

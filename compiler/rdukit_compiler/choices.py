"""What a user chose for the cutting of sections: rules, heuristics and decisions, read from their files."""

import logging

from rdukit_compiler.heuristics.plugins import load_heuristics
from rdukit_compiler.human_decision import load_human_decision
from rdukit_compiler.options import CompileOptions
from rdukit_compiler.passes.cut_sections import CutOptions
from rdukit_compiler.rules import load_default_rules, load_rules

logger = logging.getLogger(__name__)


def load_choices(options: CompileOptions) -> CutOptions:
    """Read every file that ``options`` names.

    Raises:
        RuleError, InvalidArgument: a file is missing or wrong.
    """
    decision = load_human_decision(options.human_decision) if options.human_decision else None
    if decision is not None and decision.ignored:
        logger.warning(
            "[warning Samba]: human decision file=%s keys without a meaning here: %s",
            options.human_decision, ", ".join(decision.ignored),
        )  # fmt: skip
    rules = (
        *(load_rules(options.rules) if options.rules else ()),
        *(load_default_rules() if options.default_rules else ()),
    )
    return CutOptions(
        mode=options.mode, chip=options.chip, tiles=options.tiles, rules=rules, inference=options.inference,
        plugins=load_heuristics(options.heuristics),
        decision=decision,
    )  # fmt: skip

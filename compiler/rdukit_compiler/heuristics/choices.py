"""A user's choices for the cutting of sections: rules, heuristics and decisions, read from their files."""

import logging
from collections.abc import Sequence

from rdukit_compiler.heuristics import heuristic_names
from rdukit_compiler.heuristics.human_decision import load_human_decision
from rdukit_compiler.heuristics.plugins import load_heuristics
from rdukit_compiler.ir import ModelGraph
from rdukit_compiler.options import CompileOptions
from rdukit_compiler.passes.cut_sections import CutOptions, SectionPlan
from rdukit_compiler.patterns.review import check_words, explain_no_match
from rdukit_compiler.reports import Reporter
from rdukit_compiler.rules import load_default_rules, load_rules

logger = logging.getLogger(__name__)


def load_choices(options: CompileOptions, graphs: Sequence[ModelGraph]) -> CutOptions:
    """Read every file that ``options`` names, and check that their names exist in ``graphs``.

    Raises:
        RuleError, InvalidArgument: a file is missing or wrong.
    """
    decision = load_human_decision(options.human_decision) if options.human_decision else None
    if decision is not None and decision.ignored:
        logger.warning(
            "[warning Samba]: human decision file=%s keys without effect: %s",
            options.human_decision, ", ".join(decision.ignored),
        )  # fmt: skip
    own = tuple(rule for path in options.rules for rule in load_rules(path))
    rules = (*own, *(load_default_rules() if options.default_rules else ()))
    plugins = load_heuristics(options.heuristics)
    if own:
        check_words(own, graphs, {*heuristic_names(), *plugins})
    return CutOptions(
        mode=options.mode, chip=options.chip, tiles=options.tiles, rules=rules, inference=options.inference,
        plugins=plugins, decision=decision, own_rules=own,
    )  # fmt: skip


def report_rules(
    choices: CutOptions, graphs: Sequence[ModelGraph], plans: Sequence[SectionPlan], reporter: Reporter
) -> None:
    """Log where each rule of the user's files matched, and warn of rules without a match."""
    if choices.own_rules and choices.mode != "o1":
        reporter.warning(f"fusion rules apply only in mode o1, but this compile uses {choices.mode}; add -o1")
        return
    taken = {name: plan.rule for plan in plans if plan.rule is not None for name in plan.operators}
    for rule in choices.own_rules:
        sections = sum(plan.rule == rule.name for plan in plans)
        if sections:
            reporter.info(f"rule {rule.name} made {sections} section{'s' if sections > 1 else ''}")
        else:
            reporter.warning(explain_no_match(rule, graphs, taken))

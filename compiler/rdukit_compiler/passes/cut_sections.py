"""Cut a graph into sections.

O0: one per operator. O1: groups of the program's ``op_fusion`` blocks and of fusion rules, each cut by its heuristic;
other operators as in O0. O3: the whole graph, cut only by capacity. In all modes every operator is in exactly one plan,
no path leaves a plan and re-enters it, and the order of plans can be executed.

Views, casts and operators on constants alone get no section of their own: they belong to the section that reads them.
If several sections read one, it belongs to its producer's section or, without a producer, to the section that runs
first (ours: so the plans stay a partition, and the value is computed once).

Source: compiler reference 2 (modes), 5.4 items 8 to 12, 7.2.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rdukit.errors import CompileError, DoesNotFit
from rdukit.hardware import ChipSpec
from rdukit_compiler.heuristics import DEFAULT, Heuristic, HeuristicRequest, find_heuristic, heuristic_names
from rdukit_compiler.heuristics.human_decision import HumanDecision, decided_matches
from rdukit_compiler.heuristics.plugins import find_misplacement
from rdukit_compiler.ir import ModelGraph, Operator, ValueKind
from rdukit_compiler.operators.supported import runs_on_host
from rdukit_compiler.operators.vocabulary import is_loss, is_trivial
from rdukit_compiler.passes.group_labelled import labelled_groups
from rdukit_compiler.passes.host_operators import HOST, host_reason, split_around_host, without_host
from rdukit_compiler.patterns.match import Match, match_rules
from rdukit_compiler.patterns.syntax import Rule, Scalar
from rdukit_compiler.patterns.topology import OperatorGroups, Topology

logger = logging.getLogger(__name__)

_WHOLE_GRAPH = "the whole graph"


@dataclass(frozen=True, slots=True)
class CutOptions:
    """Options of a cut. ``mode`` is o0, o1 or o3. ``rules`` apply in o1 only, the user's before the defaults.

    ``plugins`` are heuristics from outside, by name; ``decision`` has the user's cuts, for o1 and o3.
    """

    mode: str
    chip: ChipSpec
    tiles: int
    rules: tuple[Rule, ...] = ()
    inference: bool = False
    plugins: Mapping[str, Heuristic] = field(default_factory=dict)
    decision: HumanDecision | None = None
    own_rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class SectionPlan:
    """A planned section. ``operators`` are in graph order; ``decisions`` are those of the heuristic, ready for JSON."""

    name: str
    operators: tuple[str, ...]
    rule: str | None
    heuristic: str
    parameters: Mapping[str, Scalar]
    #: Why the compiler cut here: one sentence for people.
    why: str
    decisions: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class _Group:
    """Operators that belong together, before a heuristic has seen them."""

    operators: tuple[Operator, ...]
    why: str
    match: Match | None = None
    leads: Operator | None = None


def cut_sections(graph: ModelGraph, options: CutOptions) -> tuple[SectionPlan, ...]:
    """Cut ``graph`` into section plans. Equal arguments give equal plans; equal layers get plans of equal shape.

    Raises:
        DoesNotFit: a single operator exceeds the tiles; the message has the numbers.
        CompileError: the mode is not o0, o1 or o3.
    """
    if options.mode not in {"o0", "o1", "o3"}:
        raise CompileError(f"mode {options.mode!r} is not valid; expected o0, o1, o3")
    decided = _decided(graph, options)
    if options.mode == "o3":
        groups = [_Group(part, _WHOLE_GRAPH) for part in split_around_host(graph)]
        if decided:
            groups = _merge_undecided(graph, _group(graph, decided))
    else:
        matches = _find_matches(graph, options.rules, decided) if options.mode == "o1" else ()
        groups = _group(graph, without_host(graph, matches))
    plans: list[SectionPlan] = []
    names: set[str] = set()
    for group in groups:
        if (reason := host_reason(group.operators)) is not None:
            plans.append(_host_plan(group, reason, names))
        else:
            plans.extend(_plan(graph, group, options, names))
    return tuple(plans)


def _host_plan(group: _Group, reason: str, names: set[str]) -> SectionPlan:
    leads = next(operator for operator in group.operators if runs_on_host(operator))
    operators = tuple(operator.name for operator in group.operators)
    return SectionPlan(_unique(f"host_{leads.name}", names), operators, None, HOST, {}, reason, {})


def _decided(graph: ModelGraph, options: CutOptions) -> tuple[Match, ...]:
    if options.decision is None or options.mode == "o0":
        return ()
    matches, warnings = decided_matches(graph, options.decision)
    for warning in warnings:
        logger.warning("[warning Samba]: %s", warning)
    return matches


def _merge_undecided(graph: ModelGraph, groups: Sequence[_Group]) -> list[_Group]:
    """Merge operators without a human decision, between decisions and host sections, into one group each."""
    place = {operator.name: index for index, operator in enumerate(graph.operators)}
    found: list[_Group] = []
    for group in groups:
        loose = group.match is None and host_reason(group.operators) is None
        if loose and found and found[-1].leads is None:
            together = sorted((*found[-1].operators, *group.operators), key=lambda o: place[o.name])
            found[-1] = _Group(tuple(together), found[-1].why)
        else:
            found.append(_Group(group.operators, "operators without a human decision") if loose else group)
    return found


def _find_matches(graph: ModelGraph, rules: Sequence[Rule], decided: Sequence[Match]) -> tuple[Match, ...]:
    """Find human decisions, annotated ``op_fusion`` blocks, matches of rules outside them, then the rest of other
    blocks.
    """
    taken = {name for match in decided for name in match.operators}
    annotated = labelled_groups(graph, annotated=True, taken=taken)
    if decided:
        annotated = _compatible(graph, decided, annotated)
    matches = (*annotated, *match_rules(graph, rules, groups=[block.operators for block in annotated]))
    taken = {name for match in matches for name in match.operators}
    blocks = labelled_groups(graph, annotated=False, taken=taken)
    return _compatible(graph, matches, blocks) if blocks else matches


def _compatible(graph: ModelGraph, matches: Sequence[Match], blocks: Sequence[Match]) -> tuple[Match, ...]:
    """Return ``matches``, and those ``blocks`` that can be sections next to them."""
    topology = Topology(graph)
    groups = OperatorGroups(topology)
    for match in matches:
        groups.join(topology.position[name] for name in match.operators)
    suggested = []
    for block in blocks:
        positions = [topology.position[name] for name in block.operators]
        if groups.may_join(positions):  # a path may leave and re-enter the block through a rule's section
            groups.join(positions)
            suggested.append(block)
    return (*matches, *suggested)


def _group(graph: ModelGraph, matches: Sequence[Match]) -> list[_Group]:
    """Group operators in an executable order: each match, and each other operator with its trivial ones, is a group."""
    topology = Topology(graph)
    groups = OperatorGroups(topology)
    matched: dict[str, Match] = {}
    for match in matches:
        groups.join(topology.position[name] for name in match.operators)
        matched.update(dict.fromkeys(match.operators, match))
    _attach_riders(graph, groups, topology, frozenset(matched))
    found: list[_Group] = []
    for number in groups.in_order():
        operators = tuple(graph.operators[p] for p in groups.members[number])
        origin = next((matched[o.name] for o in operators if o.name in matched), None)
        leads = next((o for o in operators if not is_trivial(o)), operators[0])
        found.append(_Group(operators, _why(leads, origin, len(operators)), origin, leads))
    return found


def _attach_riders(graph: ModelGraph, groups: OperatorGroups, topology: Topology, matched: frozenset[str]) -> None:
    """Join each unmatched rider with its reader or, if it has several, with the producer of its input.

    Riders are views, casts, and operators on constants alone.
    """
    constants: set[int] = set()
    for position, operator in enumerate(graph.operators):
        made_here = not any(graph.values[name].kind is not ValueKind.OPERATOR for name in operator.inputs)
        if made_here and constants.issuperset(topology.producers[position]):
            constants.add(position)
    riders = {p for p, o in enumerate(graph.operators) if (is_trivial(o) or p in constants) and o.name not in matched}
    for position in sorted(riders, reverse=True):
        own = groups.group_of[position]
        inside = groups.members[own]
        if not riders.issuperset(inside):
            continue
        readers = tuple(groups.after(own))
        producers = sorted(
            {p for m in inside for p in topology.producers[m] if groups.group_of[p] != own}, reverse=True
        )
        if readers and (len(readers) == 1 or not producers):
            home = readers[0] if len(readers) == 1 else min(readers, key=groups.rank)
            groups.join([position, groups.members[home][0]])
        elif producers:
            home = next((p for p in producers if p not in riders), producers[0])
            if groups.may_join([position, home]):
                groups.join([position, home])


def _why(leads: Operator, match: Match | None, count: int) -> str:
    if match is not None and match.rule.startswith("human_decision_"):
        return f"a human decision joins these {len(match.operators)} operators in one section"
    if match is not None and not match.bindings:
        return f"the program's op_fusion block {match.rule} joins {len(match.operators)} operators"
    if match is not None:
        return f"rule {match.rule} matched {len(match.operators)} operators"
    if is_loss(leads):
        return "the loss has a section of its own: backward starts there and the program reads its output"
    riders = f"; with {count - 1} views, casts and constants" if count > 1 else ""
    return f"operator {leads.op_type} by itself{riders}"


def _plan(graph: ModelGraph, group: _Group, options: CutOptions, names: set[str]) -> list[SectionPlan]:
    """Let the group's heuristic cut it and decide; use the default heuristic if that one fails."""
    match = group.match
    request = HeuristicRequest(
        graph, group.operators, options.chip, options.tiles, options.inference,
        match.parameters if match else {}, match.settings if match else {},
    )  # fmt: skip
    name, heuristic, parts, fallback = _choose(request, match, options.plugins)
    plans = []
    for index, part in enumerate(parts):
        here = HeuristicRequest(
            graph, part, options.chip, options.tiles, options.inference, request.parameters, request.settings
        )
        why = group.why + fallback
        if options.mode == "o3" and match is None and group.why == _WHOLE_GRAPH:
            why = _why_packed(index, len(parts), options)
        elif len(parts) > 1:
            why += f"; {name} cut it into {len(parts)} sections, of which this is number {index + 1}"
        plans.append(
            SectionPlan(
                name=_unique(_base_name(group, options.mode), names),
                operators=tuple(operator.name for operator in part),
                rule=match.rule if match else None,
                heuristic=name,
                parameters=request.parameters,
                why=why,
                decisions=heuristic.decide(here),
            )
        )
    return plans


def _choose(
    request: HeuristicRequest, match: Match | None, plugins: Mapping[str, Heuristic]
) -> tuple[str, Heuristic, Sequence[tuple[Operator, ...]], str]:
    """Return the group's heuristic, its cut, and an addition to the reason if it is not the rule's heuristic."""
    default = find_heuristic(DEFAULT)
    assert default is not None
    wanted = match.heuristic if match and match.heuristic else DEFAULT
    found = plugins.get(wanted) or find_heuristic(wanted)
    if found is None:
        reason = f"unknown heuristic {wanted!r}; expected {', '.join(sorted({*heuristic_names(), *plugins}))}"
    else:
        reason = found.refuse(request) or ""
        for unknown in sorted(set(request.parameters) - found.parameters):
            logger.warning("heuristic parameter ignored: heuristic=%s parameter=%s", wanted, unknown)
        if not reason:
            try:
                parts = tuple(tuple(part) for part in found.split(request))
                if wanted in plugins:
                    reason = _find_misplacement(found, request, parts)
                if not reason:
                    return wanted, found, parts, ""
            except DoesNotFit as cause:
                if wanted == DEFAULT:
                    raise
                reason = cause.message
    assert match is not None
    logger.warning("[warning Samba]: rule=%s heuristic=%s falls back to default: %s", match.rule, wanted, reason)
    plain = HeuristicRequest(
        request.graph, request.operators, request.chip, request.tiles, request.inference, request.parameters
    )
    return DEFAULT, default, default.split(plain), f"; {wanted} refused it: {reason}"


def _find_misplacement(found: Heuristic, request: HeuristicRequest, parts: Sequence[tuple[Operator, ...]]) -> str:
    return find_misplacement(request, parts, [found.decide(replace(request, operators=part)) for part in parts])


def _why_packed(index: int, count: int, options: CutOptions) -> str:
    where = f"{options.tiles} tiles of {options.chip.name}"
    if count == 1:
        return f"the whole graph fits {where}"
    if index == count - 1:
        return f"the rest of the graph after {index} cuts; each earlier part fills {where}"
    return f"the next operator would exceed {where}; the cut is where the fewest bytes pass through memory"


def _base_name(group: _Group, mode: str) -> str:
    if mode == "o3" and group.match is None:
        return "section"
    if group.match is not None:
        return group.match.rule
    return group.leads.name if group.leads else group.operators[0].name


def _unique(base: str, names: set[str]) -> str:
    """Return ``base`` the first time, then ``base_1``, ``base_2`` …"""
    name, number = base, 0
    while name in names:
        number += 1
        name = f"{base}_{number}"
    names.add(name)
    return name

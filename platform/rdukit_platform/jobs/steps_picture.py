"""Picture of a pipeline's steps (pure), from a file before submission, or from a submitted pipeline's jobs."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rdukit_platform.artifacts.picture import LineageEdge, LineageNode, draw_graph
from rdukit_platform.db.references import group_of, read_reference
from rdukit_platform.jobs.schemas import Job, PipelineRequest
from rdukit_platform.jobs.states import JobState


@dataclass(frozen=True, slots=True)
class StepSeen:
    """A step in the picture: ``sub`` is its second line, ``path`` its page below the console; empty: no page."""

    name: str
    sub: str
    references: Mapping[str, str]
    path: str = ""
    #: Whether it may reuse an identical job's outputs.
    is_cached: bool = True
    #: Style class of its job's state in the console; empty: it has no job.
    tone: str = ""


def steps_of_file(request: PipelineRequest, uncached: Collection[tuple[str, str]] = ()) -> list[StepSeen]:
    """Return the steps of a request whose steps have been expanded.

    Args:
        uncached: boxes and verbs that always run, because their box excludes them from caching.
    """
    return [
        StepSeen(
            step.name, f"{step.box} {step.verb}", step.inputs,
            is_cached=request.cache and step.cache and (step.box, step.verb) not in uncached,
        )
        for step in request.steps
    ]  # fmt: skip


def steps_of_jobs(jobs: Iterable[Job], tones: Mapping[JobState, str]) -> list[StepSeen]:
    """Return the steps of a submitted pipeline, each in the tone of its job's state."""
    return [
        StepSeen(
            job.step or job.name, "cached" if job.cached_from else job.state, job.references, f"/console/jobs/{job.id}",
            tone=tones[JobState(job.state)],
        )
        for job in jobs
    ]  # fmt: skip


def graph_of_steps(steps: Iterable[StepSeen]) -> tuple[list[LineageNode], list[LineageEdge]]:
    """Return a node per step, with a fan-out as one node, and an edge per slot that a step takes from another."""
    groups: dict[str, list[StepSeen]] = {}
    for step in steps:
        groups.setdefault(group_of(step.name), []).append(step)
    nodes = [_node_of(name, members) for name, members in groups.items()]
    edges: dict[LineageEdge, None] = {}
    for name, members in groups.items():
        for text in (text for member in members for text in member.references.values()):
            reference = read_reference(text)
            if reference is not None and group_of(reference.step) in groups:
                best = f"{'min' if reference.is_least else 'max'} {reference.metric}, " if reference.metric else ""
                edges[LineageEdge(group_of(reference.step), name, best + reference.slot)] = None
    return nodes, list(edges)


def draw_steps(steps: Iterable[StepSeen], title: str, *, is_file: bool = False) -> str:
    """Draw steps as SVG, from left to right; ``is_file`` embeds the style."""
    nodes, edges = graph_of_steps(steps)
    return draw_graph(nodes, edges, f"Steps of {title}", is_file=is_file)


def describe_steps(steps: Iterable[StepSeen]) -> list[tuple[str, str, str, str]]:
    """Return a row per step: its name, its second line, the steps before it, and whether it is cached."""
    steps = list(steps)
    nodes, edges = graph_of_steps(steps)
    cached = {group_of(step.name): "yes" if step.is_cached else "no" for step in steps}
    after = {node.id: [edge.source for edge in edges if edge.target == node.id] for node in nodes}
    return [(node.label, node.sub, ", ".join(dict.fromkeys(after[node.id])) or "-", cached[node.id]) for node in nodes]


def _node_of(name: str, members: Sequence[StepSeen]) -> LineageNode:
    is_one = [member.name for member in members] == [name]
    subs = Counter(member.sub for member in members)
    sub = members[0].sub if len(subs) == 1 else ", ".join(f"{count} {words}" for words, count in subs.items())
    label = name if is_one else f"{name} \N{MULTIPLICATION SIGN}{len(members)}"
    tone = min((member.tone for member in members), key=_TONES_FIRST.index)
    return LineageNode(name, label, sub, members[0].path if is_one else "", is_job=True, tone=tone)


#: Precedence of tones in a fan-out: failures first, then active and waiting jobs, then ended ones.
_TONES_FIRST: Final = ("bad", "warn", "busy", "wait", "off", "good", "")

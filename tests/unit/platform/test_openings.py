"""When nodes have enough tiles: what is kept between decisions is what a look at all nodes finds."""

from hypothesis import given
from hypothesis import strategies as st

from rdukit_platform.nodes.view import NodeCapacity
from rdukit_platform.scheduler.ledger import Ledger
from rdukit_platform.scheduler.model import NO_LABELS, ActiveJob, NodeState, QueuedJob
from rdukit_platform.scheduler.openings import find_opening
from support import shows

pytestmark = shows("scheduler")

TILES, NODES = 8, 3
#: What happens: a job of so many tiles starts on a node for so long, or the oldest one ends, or its end is forgotten.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start", "end", "forget"]), st.integers(0, NODES - 1), st.integers(1, 6), st.integers(1, 9)
    ),
    max_size=30,
)  # fmt: skip


@given(STEPS, st.integers(1, TILES))
def test_what_is_kept_is_what_a_look_at_all_nodes_finds(steps: list[tuple[str, int, int, int]], tiles: int) -> None:
    nodes = [
        NodeState(str(n), NodeCapacity(TILES, TILES, 8, 8, rows=(TILES,), free_rows=(TILES,)), 9) for n in range(NODES)
    ]
    ledger, active = Ledger(nodes, (), {}, 0.0), list[ActiveJob]()
    need = tiles, 1, NO_LABELS
    for number, (step, index, size, runs_s) in enumerate(steps):
        room, name = ledger.rooms.all[index], f"job-{number}"
        if step == "start" and room.tiles >= size:
            job = QueuedJob(name, "a", size, 0.0, run_limit_s=float(runs_s))
            ledger.start(job, [(room, job.need)], 0.0)
            active.append(ActiveJob(name, "a", size, True, float(runs_s), room.node.name))
        elif step == "end" and active:
            ledger.end(active.pop(0))
        elif step == "forget" and active:
            ledger.forget_end(active[0], active[0].ends_at or 0.0)
        every = [find_opening(room, ledger.endings[room.index], tiles) for room in ledger.rooms.all]
        first = min((found for found in every if found is not None), key=lambda found: found.at, default=None)
        assert ledger.openings.find(need, ledger.could_have(need)) == first

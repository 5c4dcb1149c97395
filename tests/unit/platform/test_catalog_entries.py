"""Entries of the catalog: what a search finds, in which order, how many of each, and side by side."""

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdukit.errors import InvalidArgument
from rdukit_platform.catalog.comparison import EMULATED, MEASURED, compare_entries
from rdukit_platform.catalog.entries import Entry, EntryKind, EntryList, EntryQuery, EntrySort, find_entries
from rdukit_platform.catalog.figures import figure_text, figure_words, is_lower_better
from rdukit_platform.catalog.listing import entries_of_boxes
from rdukit_platform.catalog.model import Boxes, read_box
from rdukit_platform.cli.catalog import entry_lines
from support import shows

pytestmark = shows("catalog")


def entry(kind: EntryKind, name: str, **more: object) -> Entry:
    return Entry(id=f"{kind}/{name}", kind=kind, name=name, title=str(more.pop("title", name)), **more)  # type: ignore[arg-type]


KNOWN = [
    entry(EntryKind.BOX, "gpt2", title="GPT-2 that writes", task="language-modelling", modality="text",
          parameters=141_056, metrics={"perplexity": 30.3}, projected={"sn30": 0.5}, sizes={"medium": 354_823_168}),
    entry(EntryKind.BOX, "unet2d", title="U-Net that finds lesions", task="segmentation", modality="images",
          licence="MIT", parameters=486_553, metrics={"dice": 0.967}),
    entry(EntryKind.MODEL, "gpt2/medium", task="language-modelling", modality="text", parameters=354_823_168),
    entry(EntryKind.EXPERT, "writer:1", task="language-modelling", modality="text", created_at=5.0,
          metrics={"perplexity": 9.0, "emulated_seconds": 2.0, "seconds": 8.0}, description="Writes of lesions."),
    entry(EntryKind.EXPERT, "writer:0", task="language-modelling", modality="text", created_at=4.0, deprecated="old"),
    entry(EntryKind.CHECKPOINT, "art-1", task="segmentation", modality="images", created_at=9.0),
]  # fmt: skip


def names(found: EntryList) -> list[str]:
    return [entry.name for entry in found.entries]


def test_every_word_is_somewhere_and_names_come_before_titles_and_descriptions() -> None:
    assert names(find_entries(KNOWN, EntryQuery("GPT2"))) == ["gpt2", "gpt2/medium"]
    assert names(find_entries(KNOWN, EntryQuery("lesions"))) == ["unet2d", "writer:1"]
    assert names(find_entries(KNOWN, EntryQuery("lesions segmentation"))) == ["unet2d"]
    assert names(find_entries(KNOWN, EntryQuery("nowhere"))) == []


def test_counts_are_what_choosing_a_value_would_list() -> None:
    query = EntryQuery(facets={"modality": ["text"], "kind": ["box"]})
    found = find_entries(KNOWN, query)
    assert names(found) == ["gpt2"]
    assert found.counts["kind"] == {"box": 1, "model": 1, "expert": 1}
    assert found.counts["modality"] == {"images": 1, "text": 1}
    for kind, count in found.counts["kind"].items():
        assert find_entries(KNOWN, EntryQuery(facets={"modality": ["text"], "kind": [kind]})).total == count


def test_deprecated_ones_are_found_only_where_they_are_asked_for() -> None:
    assert "writer:0" not in names(find_entries(KNOWN, EntryQuery()))
    assert "writer:0" in names(find_entries(KNOWN, EntryQuery(with_deprecated=True)))


def test_orders_put_what_lacks_their_key_last_both_ways_round() -> None:
    by_size = EntryQuery(sort=EntrySort.PARAMETERS)
    assert names(find_entries(KNOWN, by_size))[:3] == ["gpt2", "unet2d", "gpt2/medium"]
    turned = EntryQuery(sort=EntrySort.PARAMETERS, is_reversed=True)
    assert names(find_entries(KNOWN, turned))[:3] == ["gpt2/medium", "unet2d", "gpt2"]
    assert names(find_entries(KNOWN, EntryQuery(sort=EntrySort.NEWEST)))[:2] == ["art-1", "writer:1"]
    least = EntryQuery(sort=EntrySort.METRIC, metric="perplexity")
    assert names(find_entries(KNOWN, least))[:2] == ["writer:1", "gpt2"], "the least perplexity is the best"
    with pytest.raises(InvalidArgument, match="metric=accuracy"):
        find_entries(KNOWN, EntryQuery(sort=EntrySort.METRIC))


@given(limit=st.integers(1, 7), sort=st.sampled_from([sort for sort in EntrySort if sort is not EntrySort.METRIC]))
def test_pages_together_are_the_list_also_when_one_is_taken_away_between(limit: int, sort: EntrySort) -> None:
    query = EntryQuery(sort=sort, with_deprecated=True)
    whole = names(find_entries(KNOWN, query))
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = find_entries(KNOWN, query, limit, cursor)
        seen += names(page)
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == whole
    first = find_entries(KNOWN, query, 2)
    rest = [entry for entry in KNOWN if entry.name != whole[0]]
    assert names(find_entries(rest, query, 200, first.next_cursor)) == whole[2:]


def test_what_is_no_cursor_is_refused() -> None:
    for wrong in ("", "!", "W10", "WyJhIiwgMWU5OTld"):
        with pytest.raises(InvalidArgument, match="next_cursor"):
            find_entries(KNOWN, EntryQuery(), 5, wrong)


def test_entries_side_by_side_have_lines_by_group_and_the_best_of_what_was_measured() -> None:
    lines = {(line.group, line.name): line for line in compare_entries([KNOWN[0], KNOWN[3]])}
    assert lines[MEASURED, "perplexity"].values == (30.3, 9.0)
    assert lines[MEASURED, "perplexity"].best == (1,)
    assert lines[EMULATED, "sn30_step_seconds"].values == (0.5, None)
    assert lines[EMULATED, "emulated_seconds"].best == (), "projections are not ranked"
    assert ("What it is", "deprecated") not in lines
    for wrong in ([KNOWN[0]], [*KNOWN[:5]], [KNOWN[0], KNOWN[0]]):
        with pytest.raises(InvalidArgument, match="expected"):
            compare_entries(wrong)


def test_a_model_is_listed_by_its_sizes_and_with_the_box_of_its_own_name() -> None:
    card = {"task": "language-modelling", "licence": "MIT", "parameters": {"default": 10, "7b": 7_000_000_000}}
    boxes = [read_box({"name": n, "model": "llama", "verbs": [], "card": card}) for n in ("alpaca", "llama")]
    found = entries_of_boxes(Boxes({box.name: box for box in boxes}))
    assert [one.id for one in found] == ["box/alpaca", "box/llama", "model/llama/default", "model/llama/7b"]
    assert [(one.box, one.parameters) for one in found[2:]] == [("llama", 10), ("llama", 7_000_000_000)]


@pytest.mark.parametrize(
    "card", [3, {"parameters": [1]}, {"parameters": {"default": "many"}, "projected": {"sn30": 1}}, {"measured": None}]
)
def test_a_description_that_says_nonsense_makes_an_entry_without_it(card: object) -> None:
    raw = {"name": "odd", "model": ["x"], "verbs": [], "recipes": [1], "card": card, "licence": 5}
    for version in (None, 1):
        (found,) = entries_of_boxes(Boxes({"odd": read_box(raw, version)}))
        assert (found.parameters, found.family, found.licence, dict(found.recipes)) == (None, "", "", {})


def test_figures_are_told_with_units_and_separators() -> None:
    assert figure_words("samples_per_s", 955000.0) == "955,000 samples/s"
    assert figure_words("tokens_per_s", 3380.0) == "3,380 tokens/s"
    assert figure_words("foreground_accuracy", 0.865) == "foreground accuracy 86.5 %"
    assert figure_words("perplexity", 5.64) == "perplexity 5.64"
    assert figure_text("steps", 141056) == "141,056"
    assert figure_text("loss", float("inf")) == "inf"
    assert [is_lower_better(n) for n in ("held_out_loss", "perplexity", "accuracy", "samples_per_s", "r2")] == [
        True, True, False, False, False,
    ]  # fmt: skip


def test_an_entry_is_shown_whole_without_what_nobody_has_said() -> None:
    shown = entry_lines(asdict(KNOWN[0]))
    assert shown == [
        ("entry", "gpt2"), ("kind", "box"), ("title", "GPT-2 that writes"), ("task", "language-modelling"),
        ("modality", "text"), ("parameters", "141,056"), ("size medium", "354,823,168 parameters"),
        ("perplexity", "30.3"), ("sn30 step", "500 ms, projected"),
    ]  # fmt: skip
    assert ("deprecated", "old") in entry_lines(asdict(KNOWN[4]))

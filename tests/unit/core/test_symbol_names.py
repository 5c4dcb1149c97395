"""Names of symbols: paths with double underscores, and no two alike."""

import itertools

from rdukit.pef.model import flatten_paths
from support import shows

pytestmark = shows("pytorch")


def test_a_path_becomes_a_name_joined_by_double_underscores() -> None:
    assert flatten_paths(["h.0.attn.weight", "wte"]) == {"h.0.attn.weight": "h__0__attn__weight", "wte": "wte"}


def test_of_clashing_paths_the_most_nested_keeps_the_name_in_any_order() -> None:
    paths = ["a__weight", "a.weight", "b", "a__weight_1"]
    wanted = {"a.weight": "a__weight", "a__weight": "a__weight_2", "b": "b", "a__weight_1": "a__weight_1"}
    for given in itertools.permutations(paths):
        assert flatten_paths(given) == wanted


def test_names_differ_however_paths_clash() -> None:
    paths = ["a.b.c", "a__b.c", "a.b__c", "a__b__c", "a__b__c_1", "a.b__c_2"]
    for given in itertools.permutations(paths):
        found = flatten_paths(given)
        assert len(set(found.values())) == len(paths)
        assert found == flatten_paths(paths)

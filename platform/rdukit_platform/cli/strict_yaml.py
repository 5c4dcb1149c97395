"""YAML of a user's files, read strictly."""

from collections.abc import Hashable
from typing import Any

import yaml


def load_strictly(text: str) -> Any:
    """Read one document, of which all keys are texts, ``on`` too, and none comes twice.

    Raises:
        YAMLError: it is not YAML, or a key comes twice.
    """
    return yaml.load(text, StrictLoader)


class StrictLoader(yaml.SafeLoader):
    """YAML whose keys are texts, ``on`` too, and of which none comes twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = [key.value for key, _ in node.value]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice!r} comes twice", node.start_mark)
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge":
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)

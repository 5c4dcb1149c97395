"""The verbs, one file each. They run in a child process; the box's own process imports none of them."""

from importlib import import_module

from rdukit_modelbox.contract.box import Verb
from rdukit_modelbox.verbs.context import VerbFunction


def load_verb(verb: Verb) -> VerbFunction:
    """Return the function of ``verb``; imports only its file."""
    function: VerbFunction = getattr(import_module(f"rdukit_modelbox.verbs.{verb}"), f"run_{verb}")
    return function

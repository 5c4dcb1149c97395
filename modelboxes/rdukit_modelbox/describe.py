"""A box's description for callers: the same words on both wires."""

from rdukit_modelbox.box import Box, Slot, Verb
from rdukit_modelbox.legal import legal_in_words


def describe(box: Box) -> dict[str, object]:
    """The ``Description`` of ``docs/design/wire.md`` as JSON-able values."""
    return {
        "name": box.name,
        "title": box.title,
        "description": box.description,
        "model": box.model,
        "compiler_version": box.compiler_version,
        "mode": box.mode,
        "target": box.target,
        "verbs": [describe_verb(box, verb) for verb in box.verbs],
    }


def describe_verb(box: Box, verb: Verb) -> dict[str, object]:
    """One verb: parameters with default and legal values in words, and artifacts."""
    slots = box.slots_of(verb)
    return {
        "name": str(verb),
        "parameters": [
            {
                "name": p.name,
                "type": str(p.type),
                "default": p.default,
                "legal": legal_in_words(p.type, p.legal),
                "help": p.help,
            }
            for p in box.parameters_of(verb)
        ],
        "inputs": [_describe_slot(slot) for slot in slots.inputs],
        "outputs": [_describe_slot(slot) for slot in slots.outputs],
    }


def _describe_slot(slot: Slot) -> dict[str, object]:
    return {"name": slot.name, "kind": slot.kind, "required": slot.required}

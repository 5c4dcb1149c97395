"""What an operator adds to the Pods of boxes: where they run and what they may use, never rights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument

#: Of a Pod's specification: where it runs, and what runs it. Nothing that takes a wall away.
SPEC_KEYS: Final = frozenset({
    "affinity", "hostUsers", "imagePullSecrets", "nodeSelector", "priorityClassName", "runtimeClassName",
    "schedulerName", "serviceAccountName", "tolerations", "topologySpreadConstraints",
})  # fmt: skip
_KINDS: Final[Mapping[str, type]] = {
    "labels": dict, "annotations": dict, "spec": dict, "resources": dict, "imagePullPolicy": str, "tmpSize": str,
}  # fmt: skip
_UNITS: Final = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """What Pods of boxes have beside what each of them has."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: Of the Pod's specification; ``SPEC_KEYS`` are legal.
    spec: Mapping[str, Any] = field(default_factory=dict)
    #: Requests and limits, unless a box has its own.
    resources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    pull_policy: str = ""
    #: Size of ``/tmp``; whoever writes more is evicted.
    tmp_size: str = "2Gi"


def read_template(file: Path) -> PodTemplate:
    """A template from a JSON file with the keys labels, annotations, spec, resources, imagePullPolicy and tmpSize.

    Raises:
        InvalidArgument: it cannot be read, or has something that is not legal; the message says what.
    """
    try:
        value = json.loads(file.read_text())
    except (OSError, ValueError) as cause:
        raise InvalidArgument(f"the template of pods {file} cannot be read: {cause}") from cause
    return make_template(value, f"the template of pods {file}")


def make_template(value: object, what: str = "the template") -> PodTemplate:
    """A template from JSON's values (pure).

    Raises:
        InvalidArgument: something in it is not legal.
    """
    if not isinstance(value, dict):
        raise InvalidArgument(f"{what} is {value!r}; legal is an object")
    for key, found in value.items():
        if key not in _KINDS or not isinstance(found, _KINDS[key]):
            legal = ", ".join(f"{name} ({'text' if kind is str else 'object'})" for name, kind in _KINDS.items())
            raise InvalidArgument(f"{what}: {key} is {found!r}; legal: {legal}")
    spec, resources = value.get("spec", {}), value.get("resources", {})
    if wrong := sorted(set(spec) - SPEC_KEYS):
        raise InvalidArgument(f"{what}: spec.{wrong[0]} is not legal; legal: {', '.join(sorted(SPEC_KEYS))}")
    if spec.get("hostUsers", False) is not False:
        raise InvalidArgument(f"{what}: spec.hostUsers is {spec['hostUsers']!r}; legal: false")
    if wrong := sorted(set(resources) - {"requests", "limits"}):
        raise InvalidArgument(f"{what}: resources.{wrong[0]} is not legal; legal: requests, limits")
    if wrong := sorted(key for key in value.get("labels", {}) if key.startswith("dev.rdukit.")):
        raise InvalidArgument(f"{what}: the label {wrong[0]} is not legal: it says whose box a pod is")
    amounts = {kind: {name: str(amount) for name, amount in each.items()} for kind, each in resources.items()}
    for kind, each in amounts.items():
        for name, amount in each.items():
            try:
                parse_quantity(amount)
            except (KeyError, ValueError) as cause:
                raise InvalidArgument(f"{what}: resources.{kind}.{name} is {amount!r}, which is no quantity") from cause
    return PodTemplate(
        value.get("labels", {}), value.get("annotations", {}), spec, amounts, value.get("imagePullPolicy", ""),
        value.get("tmpSize", PodTemplate().tmp_size),
    )  # fmt: skip


def parse_quantity(text: str) -> float:
    """A number with Kubernetes' unit: ``250m`` is 0.25, ``64Mi`` 67108864.

    Raises:
        KeyError: there is no such unit.
        ValueError: there is no number.
    Source: Kubernetes API reference, "Quantity".
    """
    number = text.rstrip("numkMGTPiK")
    return float(number) * _UNITS[text[len(number) :]]

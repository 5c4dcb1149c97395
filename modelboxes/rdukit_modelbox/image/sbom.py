"""A bill of materials: the packages installed with a program, as CycloneDX 1.5 JSON without times and random ids.

``python -m rdukit_modelbox.image.sbom --output FILE`` describes the interpreter that runs it.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final
from urllib.parse import quote

SPEC_VERSION: Final = "1.5"
_DPKG: Final = Path("/var/lib/dpkg/status")


@dataclass(frozen=True, slots=True, order=True)
class SbomComponent:
    """A package: its normalised name, its version, and its licence if declared."""

    name: str
    version: str
    licence: str = ""
    #: Type of package in package URLs.
    kind: str = "pypi"

    @property
    def url(self) -> str:
        """Return the component's package URL."""
        return f"pkg:{self.kind}/{quote(self.name)}@{quote(self.version)}"


def component_of(distribution: Distribution) -> SbomComponent:
    """Return the component of an installed distribution."""
    metadata = distribution.metadata
    name = str(metadata["Name"]).lower().replace("_", "-").replace(".", "-")
    licence = metadata.json.get("license_expression", "")
    return SbomComponent(name, distribution.version, str(licence))


def installed_components() -> list[SbomComponent]:
    """List the distributions that the running interpreter can import, each once, sorted."""
    return sorted({component_of(distribution) for distribution in distributions()})


def system_components(status: str) -> list[SbomComponent]:
    """Return the installed packages of a Debian, from the text of ``/var/lib/dpkg/status``."""
    found = set()
    for block in status.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Status): (.*)$", block, re.M))
        if fields.get("Status", "").endswith(" installed"):
            found.add(SbomComponent(fields["Package"], fields["Version"], kind="deb/debian"))
    return sorted(found)


def make_sbom(subject: Mapping[str, str], components: Iterable[SbomComponent]) -> bytes:
    """Return the document for ``subject`` (``name`` and ``version``) as JSON.

    Equal components give equal bytes: the document has no time and no serial number.
    """
    entries = []
    for component in sorted(set(components)):
        entry: dict[str, object] = {
            "type": "library", "bom-ref": component.url, "name": component.name,
            "version": component.version, "purl": component.url,
        }  # fmt: skip
        if component.licence:
            entry["licenses"] = [{"expression": component.licence}]
        entries.append(entry)
    document = {
        "bomFormat": "CycloneDX", "specVersion": SPEC_VERSION, "version": 1,
        "metadata": {"component": {"type": "container", **subject}}, "components": entries,
    }  # fmt: skip
    return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"


def main(arguments: list[str]) -> None:
    """Write the document of this interpreter."""
    parser = argparse.ArgumentParser(prog="python -m rdukit_modelbox.image.sbom")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--system", action="store_true", help="list the system's packages too, if it is a Debian")
    chosen = parser.parse_args(arguments)
    components = installed_components()
    if chosen.system and _DPKG.exists():
        components += system_components(_DPKG.read_text(errors="replace"))
    version = next((c.version for c in components if c.name == "rdukit"), "0")
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_bytes(make_sbom({"name": "rdukit", "version": version}, components))


if __name__ == "__main__":
    main(sys.argv[1:])

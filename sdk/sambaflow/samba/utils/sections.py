"""What sections take: time and resources. Source: SDK reference 7.2."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from rdukit.files import write_json_atomic
from rdukit.pef import read_pef


def measure_sections(
    model: nn.Module, inputs: Any, num_sections: int | None = None, n_iterations: int = 100, batch_size: int = 1,
    data_parallel: bool = False, reduce_on_rdu: bool = False, json: str | None = None, min_duration: float = 0.0,
    section_types: Sequence[str] | None = None, **accepted: Any,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Run the traced graph and print each section's mean seconds: this host's, and the chip's as projected.

    Returns:
        By section name: ``id``, ``type``, ``host_seconds``, ``emulated_seconds``, of one run.
    """
    import json as json_module
    import time

    from sambaflow import samba

    began, runs = time.perf_counter(), 0
    samba.session.start_runtime_profile()
    while runs < n_iterations or time.perf_counter() - began < min_duration:
        samba.session.run(
            inputs, None, data_parallel=data_parallel, reduce_on_rdu=reduce_on_rdu, section_types=section_types
        )
        runs += 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        samba.session.end_runtime_profile(path)
        profile = json_module.loads(path.read_text())
    found = {
        str(s["name"]): {
            "id": s["id"], "type": s["type"],
            "host_seconds": s["host_seconds"] / s["runs"], "emulated_seconds": s["emulated_seconds"] / s["runs"],
        }
        for s in profile["sections"][:num_sections]
    }  # fmt: skip
    for name, row in found.items():
        print(f"{name}: {row['host_seconds']:.6f} s here, {row['emulated_seconds']:.6f} s projected (emulated)")
    if json:
        write_json_atomic(Path(json), found)
    return found


def create_mac_resource_report(pef: str, path: str | None = None, **accepted: Any) -> dict[str, dict[str, Any]]:
    """Resources that the compiler gave each section of a PEF, written to ``path`` as JSON if given.

    Raises:
        PefError: there is no such PEF, or it cannot be read.
    """
    report = {
        section.name: {
            "tiles": section.resources.tiles, "pcus": section.resources.pcus, "pmus": section.resources.pmus,
            "sram_bytes": section.resources.sram_bytes, "projected_seconds": section.cost.seconds,
        }
        for section in read_pef(pef).pef.sections
    }  # fmt: skip
    if path:
        write_json_atomic(Path(path), report)
    return report

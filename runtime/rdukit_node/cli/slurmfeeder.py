"""``slurmfeeder``: print a PEF's needs of a node for people, scripts and Slurm.

``needs_of`` is for other programs to import.

Source: runtime reference 8.3 (that it exists and reads PEFs; options and output are ours), 3.2, 8.2.
"""

import math
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click

from rdukit import __version__
from rdukit.cli import run_command
from rdukit.errors import InvalidArgument, PefCorrupt, PefMismatch
from rdukit.hardware import NODES, NodeSpec, find_node
from rdukit.pef.file import LoadedPef, read_pef
from rdukit.pef.memory import lease_bytes
from rdukit.pef.model import Pef, SectionType, SymbolKind
from rdukit.settings import resolve
from rdukit.units import format_bytes
from rdukit_node.cli.output import aligned, host_option, json_text
from rdukit_node.host_info import HUGE_PAGE_BYTES
from rdukit_node.settings import PLATFORM

_NOT_A_PEF: Final = 3
_FORMATS: Final = ("text", "json", "sbatch", "env")


@dataclass(frozen=True, slots=True)
class PefNeeds:
    """Resources of one replica of a PEF, and numbers of replicas."""

    pef: str
    name: str
    platform: str
    arch: str
    tiles: int
    #: Number of RDUs with these tiles, rounded up.
    rdus: int
    ddr_bytes: int
    #: Host pages of 1 GiB for the tensors that cross PCIe.
    huge_pages: int
    is_inference: bool
    is_data_parallel: bool
    #: Smallest number of replicas of the PEF; larger numbers run, too.
    min_world_size: int
    replicas_per_node: int
    #: Replicas that fit on an idle node.
    fit_per_node: int
    nodes: int
    sections: tuple[Mapping[str, object], ...]
    pef_version: str
    compiler_version: str
    torch_version: str


def needs_of(loaded: LoadedPef, platform: str | None = None, nodes: int = 1) -> PefNeeds:
    """Compute the needs of ``loaded`` on ``nodes`` nodes of a platform; by default the installation's, if its chip
    fits.

    Raises:
        InvalidArgument: the platform is unknown, or the PEF's replicas do not fit on ``nodes``.
        PefMismatch: compiled for another chip than the platform's. PefCorrupt: its number of tiles is invalid.
    """
    pef = loaded.pef
    if type(pef.num_tiles) is not int or pef.num_tiles < 1:
        raise PefCorrupt(
            f"{loaded.path} states that it needs {pef.num_tiles!r} tiles; expected 1 or more; compile again"
        )
    node = _choose_node(pef, platform)
    fitting = _replicas_per_node(pef, node)
    world = min_world_size(pef)
    if fitting < 1 or fitting * nodes < world:
        raise InvalidArgument(
            f"{loaded.path} needs {world} x {pef.num_tiles} tiles; {nodes} x {node.platform} hold {fitting * nodes} "
            "such replicas; give more --nodes, or another --platform"
        )
    return PefNeeds(
        pef=str(loaded.path),
        name=pef.name,
        platform=node.platform,
        arch=pef.arch,
        tiles=pef.num_tiles,
        rdus=math.ceil(pef.num_tiles / node.chip.tiles),
        ddr_bytes=lease_bytes(pef),
        huge_pages=max(1, math.ceil(_host_bytes(pef) / HUGE_PAGE_BYTES)),
        is_inference=pef.inference,
        is_data_parallel=is_data_parallel(pef),
        min_world_size=world,
        replicas_per_node=math.ceil(world / nodes),
        fit_per_node=fitting,
        nodes=nodes,
        sections=tuple(
            {"id": s.id, "name": s.name, "type": str(s.type), "graph": s.graph, "tiles": s.resources.tiles}
            for s in pef.sections
        ),
        pef_version=".".join(map(str, loaded.format_version)),
        compiler_version=pef.compiler_version,
        torch_version=pef.torch_version,
    )


def is_data_parallel(pef: Pef) -> bool:
    """Return whether the PEF can average gradients over replicas."""
    return any(section.type is SectionType.REDUCE for section in pef.sections)


def min_world_size(pef: Pef) -> int:
    """Return the number of replicas that a PEF was compiled for; 1 without data parallelism."""
    text = str(pef.metadata.get("world_size")) if isinstance(pef.metadata, Mapping) else ""
    return max(1, int(text)) if is_data_parallel(pef) and text.isdecimal() and len(text) < 10 else 1


def needs_lines(needs: PefNeeds) -> list[str]:
    """Render the needs, for people."""
    pairs = [
        ("PEF", needs.pef), ("platform", f"{needs.platform} ({needs.arch})"), ("tiles", str(needs.tiles)),
        ("RDUs", str(needs.rdus)), ("DDR", f"{needs.ddr_bytes} bytes ({format_bytes(needs.ddr_bytes)})"),
        ("huge pages", f"{needs.huge_pages} of 1 GiB"),
        ("purpose", "inference" if needs.is_inference else "training"),
        ("data parallel", "yes" if needs.is_data_parallel else "no"),
        ("min world size", str(needs.min_world_size)), ("nodes", str(needs.nodes)),
        ("replicas a node", f"{needs.replicas_per_node} (room for {needs.fit_per_node})"),
        ("PEF version", needs.pef_version),
        ("compiler", needs.compiler_version), ("torch", needs.torch_version),
        ("sections", str(len(needs.sections))),
    ]  # fmt: skip
    rows = [[f"  {s['id']}", str(s["type"]), str(s["name"]), f"tiles={s['tiles']}"] for s in needs.sections]
    return [f"{key:<16}: {value}" for key, value in pairs] + aligned(rows, right=(0,))


def sbatch_lines(needs: PefNeeds) -> list[str]:
    """Return lines for the head of a batch script: GRES counts are per node."""
    whole = needs.rdus > 1
    count = (needs.rdus if whole else needs.tiles) * needs.replicas_per_node
    lines = [
        f"#SBATCH --nodes={needs.nodes}",
        f"#SBATCH --ntasks-per-node={needs.replicas_per_node}",
        f"#SBATCH --gres={'rdu' if whole else 'rdu_tile'}:{count}",
    ]
    return [*lines, f"# device memory for each task: {needs.ddr_bytes} bytes"]


def env_lines(needs: PefNeeds) -> list[str]:
    """Return variable assignments for a shell."""
    values = {
        "PEF": needs.pef, "PEF_PLATFORM": needs.platform, "PEF_ARCH": needs.arch, "PEF_TILES": needs.tiles,
        "PEF_RDUS": needs.rdus, "PEF_DDR_BYTES": needs.ddr_bytes, "PEF_HUGE_PAGES": needs.huge_pages,
        "PEF_DATA_PARALLEL": int(needs.is_data_parallel), "PEF_MIN_WORLD_SIZE": needs.min_world_size,
        "PEF_NODES": needs.nodes, "PEF_REPLICAS_PER_NODE": needs.replicas_per_node,
        "PEF_SECTIONS": len(needs.sections), "PEF_VERSION": needs.pef_version,
        "PEF_COMPILER_VERSION": needs.compiler_version,
    }  # fmt: skip
    return [f"{name}={shlex.quote(str(value))}" for name, value in values.items()]


def _choose_node(pef: Pef, platform: str | None) -> NodeSpec:
    if platform is not None:
        node = find_node(platform)
        if node.chip.name != pef.arch:
            raise PefMismatch(f"the PEF was compiled for {pef.arch}, but {node.platform} has {node.chip.name}")
        return node
    usual = find_node(resolve(PLATFORM))
    if usual.chip.name == pef.arch:
        return usual
    fitting = [node for node in NODES.values() if node.chip.name == pef.arch]
    if not fitting:
        raise PefMismatch(
            f"the PEF was compiled for {pef.arch}, but no such platform exists; expected one of {', '.join(NODES)}"
        )
    return fitting[0]


def _replicas_per_node(pef: Pef, node: NodeSpec) -> int:
    """Count the replicas that fit a node: a replica has tiles of one RDU, or complete RDUs."""
    tiles = node.chip.tiles
    if pef.num_tiles <= tiles:
        return (tiles // pef.num_tiles) * node.rdus
    return node.rdus // math.ceil(pef.num_tiles / tiles)


def _host_bytes(pef: Pef) -> int:
    crossing = (SymbolKind.INPUT, SymbolKind.OUTPUT, SymbolKind.SEED)
    return sum(symbol.bytes for symbol in pef.symbols.values() if symbol.kind in crossing)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="slurmfeeder")
@click.argument("file", metavar="FILE.pef", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(_FORMATS), default="text", help="Output format (default text).")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--nodes", type=click.IntRange(1, 100_000), default=1, help="Number of nodes for the replicas.")
@click.option("--platform", default=None, help=f"One of {', '.join(NODES)} (default: one with the PEF's chip).")
@host_option
def slurmfeeder(file: Path, form: str, as_json: bool, nodes: int, platform: str | None) -> None:
    """Print what FILE.pef needs: tiles, RDUs, memory, replicas, versions.

    Exit status 3: no such file, or not a PEF; 4: the version or chip does not fit.

    Example: sbatch $(slurmfeeder --format sbatch out/gpt.pef | sed -n 's/^#SBATCH //p') job.sh

    Example: slurmfeeder out/gpt.pef --format env
    """
    try:
        needs = needs_of(read_pef(file), platform, nodes)
    except PefCorrupt as error:
        if as_json or form == "json":
            click.echo(json_text(error.body()))
        click.echo(f"error [{error.code}]: {error.message}", err=True)
        sys.exit(_NOT_A_PEF)
    if as_json or form == "json":
        click.echo(json_text(asdict(needs)))
        return
    lines = {"text": needs_lines, "sbatch": sbatch_lines, "env": env_lines}[form](needs)
    click.echo("\n".join(lines))


def main() -> None:
    """Entry point."""
    run_command(slurmfeeder)


if __name__ == "__main__":
    main()

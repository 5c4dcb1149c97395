"""``rdukit pef build``: native kernels of this installation for a PEF that was compiled elsewhere."""

from dataclasses import replace
from pathlib import Path

import click

from rdukit.errors import CompileError, InvalidArgument
from rdukit.pef import read_pef, write_pef


@click.command()
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, dir_okay=False), help="Where the new PEF goes to."
)
def build(source: Path, output: Path) -> None:
    """Build native kernels for this machine. What a PEF computes stays the same; libraries in it are made anew.

    A PEF from another installation or processor runs from generated code, as its libraries are not trusted or do not
    fit. Its kernels' graphs are in it, too.

    Example: rdukit pef build /models/mlp.pef -o /var/lib/rdukit/mlp.pef
    """
    built, wanted = build_pef(source, output)
    click.echo(f"{output}: {built} of {wanted} kernels are native", err=True)


def build_pef(source: Path, output: Path) -> tuple[int, int]:
    """Write ``source`` with libraries of this installation to ``output``; how many, of how many that may have one.

    Raises:
        PefError: it cannot be read. InvalidArgument: it was compiled with mode o0, which has no native kernels.
        CompileError: there is no C++ compiler, or a kernel cannot be built.
    """
    import torch

    from rdukit.system.cpu import native_signature
    from rdukit_compiler.backend.cpp_compiler import find_cpp_compiler
    from rdukit_compiler.backend.native import build_natives, has_native_form

    loaded = read_pef(source)
    if loaded.pef.mode == "o0":
        raise InvalidArgument(f"{source} was compiled with mode o0, which runs each operator by itself")
    if find_cpp_compiler() is None:
        raise CompileError("no C++ compiler was found (g++, or $CXX); install one")
    failures: list[str] = []

    def on_built(digest: str, error: str | None) -> None:
        if error:
            failures.append(f"kernel {digest[:12]}: {error}")

    natives = build_natives(loaded.kernels, on_built)
    for failure in failures:
        click.echo(f"not native: {failure}", err=True)
    pef = replace(
        loaded.pef, torch_version=torch.__version__, cpu_capability=native_signature() if natives else ""
    )  # fmt: skip
    output.parent.mkdir(parents=True, exist_ok=True)
    write_pef(output, pef, loaded.kernels, natives)
    return len(natives), sum(has_native_form(kernel) for kernel in loaded.kernels.values())

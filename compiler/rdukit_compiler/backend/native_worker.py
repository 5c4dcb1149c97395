"""Processes that build native kernels, and check them: batches arrive on stdin, results leave on a pipe, one a line.

``main`` is the program of a fork server (``workers.py``): it imports inductor once, and each worker is a fork of it.
Separate processes keep inductor and its settings out of the user's program, and build several batches at once.
"""

import gc
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from rdukit.errors import CompileError
from rdukit.files.atomic import write_atomic
from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, kernel_from_json, packed_spec
from rdukit.system.cpu import splittable_threads
from rdukit.system.forks import ForkRequest, serve_forks
from rdukit.system.process import end_group_with_parent
from rdukit_compiler.backend.routes import Routes, parse_routes

#: Called with a kernel's digest, and its error if there was one.
Answer = Callable[[str, str | None], None]


def main() -> None:
    """Fork workers for the parent: the last argument is the descriptor of the socket to it."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    _warm_up()
    gc.enable()
    serve_forks(int(sys.argv[-1]), _serve, are_many=False)


def _serve(request: ForkRequest) -> int:
    """Serve as a worker until stdin closes. Answers are written to the first descriptor of ``request``.

    Request: a JSON list of digests, whose kernels lie in the folder under these names. Answers: for each, once
    ``<digest>.so`` lies next to it or the build has failed, an object with ``kernel`` and ``error``,
    which may be null.

    A request may also be an object with ``is_full`` and ``units``: digests of units that lie there as
    ``<digest>.unit``.
    Answers: for each, an object with ``unit`` and ``verdict``, a text.
    """
    end_group_with_parent(request.server)
    folder, routes = Path(request.body["folder"]), parse_routes(request.body["routes"])
    answers = os.fdopen(request.descriptors[0], "w")

    def answer(digest: str, error: str | None) -> None:
        answers.write(json.dumps({"kernel": digest, "error": error}) + "\n")
        answers.flush()

    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, list):
            _build_batch(folder, asked, routes, answer)
        else:
            _check(folder, asked, answers)
    return 0


def _check(folder: Path, request: Mapping[str, Any], answers: TextIO) -> None:
    """Let the runtime judge units in forks of this process, which has imported torch already.

    The runtime's module is named, not imported: compiler and runtime share only the PEF.
    """
    check = import_module("rdukit_runtime.check.children")

    def answer(digest: str, verdict: Any) -> None:
        answers.write(json.dumps({"unit": digest, "verdict": verdict.to_json()}) + "\n")
        answers.flush()

    check.judge_all(check.JudgedFiles(folder, request["units"], request["is_full"]), answer)


def _warm_up() -> None:
    """Prepare imports and settings for the first kernel before kernels are known; every fork inherits them."""
    try:
        write_section(common_kernel(), Routes())
    except Exception as cause:  # noqa: BLE001 - the first kernel will fail likewise, and be reported
        logging.getLogger(__name__).debug("warming up failed reason=%s", cause)


def common_kernel() -> KernelGraph:
    """Return a kernel of common operators: products, an elementwise function, a sum, a loss."""
    rows, weights = packed_spec("x", "float32", (16, 8)), packed_spec("w", "float32", (8, 8))
    x, w = Ref("x"), Ref("w")
    nodes = (
        KernelNode("turned", "aten.t.default", (w,)),
        KernelNode("product", "aten.mm.default", (x, Ref("turned"))),
        KernelNode("positive", "aten.relu.default", (Ref("product"),)),
        KernelNode("sum", "aten.sum.dim_IntList", (Ref("positive"), [0], True)),
        KernelNode("shares", "aten._log_softmax.default", (Ref("positive"), 1, False)),
    )
    return KernelGraph((rows, weights), nodes, ("product", "sum", "shares"))


def _build_batch(folder: Path, digests: Sequence[str], routes: Routes, answer: Answer) -> None:
    sections: dict[str, str] = {}
    for digest in digests:
        try:
            sections[digest] = write_section(kernel_from_json((folder / digest).read_bytes()), routes)
        except Exception as cause:  # noqa: BLE001 - the boundary of the process: every failure is reported
            answer(digest, _text_of(cause))
    _compile(folder, sections, routes, answer)


def _compile(folder: Path, sections: Mapping[str, str], routes: Routes, answer: Answer) -> None:
    """Build the libraries together; one that the compiler refuses fails alone."""
    from rdukit_compiler.backend.section_library import compile_sections

    if not sections:
        return
    try:
        for digest, library in compile_sections(sections, routes.definitions(), folder).items():
            write_atomic(folder / f"{digest}.so", library, mode=0o644)
            answer(digest, None)
    except CompileError as cause:
        if len(sections) > 1:
            for digest, code in sections.items():
                _compile(folder, {digest: code}, routes, answer)
        else:
            answer(next(iter(sections)), _text_of(cause))
    except Exception as cause:  # noqa: BLE001 - as above
        for digest in sections:
            answer(digest, _text_of(cause))


def write_section(kernel: KernelGraph, routes: Routes) -> str:
    """Return the code of a kernel as a section.

    Raises:
        UnusualCode: inductor's code cannot be a section.
    """
    from rdukit_compiler.backend.choose_convolutions import choose_convolutions, may_fuse
    from rdukit_compiler.backend.choose_products import choose_products, may_change
    from rdukit_compiler.backend.choose_small_convolutions import choose_small_convolutions, may_hold_small_convolutions
    from rdukit_compiler.backend.exact_operators import FORMS, holds_inexact
    from rdukit_compiler.backend.kernel_graph import example_inputs, fx_from_kernel
    from rdukit_compiler.backend.native_operators import interface_functions
    from rdukit_compiler.backend.section_library import section_namespace
    from rdukit_compiler.torch_private import trace_aten, without_onednn, write_code

    module, inputs = fx_from_kernel(kernel), example_inputs(kernel)
    is_fused, is_convolved = may_fuse(module), may_hold_small_convolutions(module)
    if is_fused or is_convolved or holds_inexact(module) or may_change(module, inputs, routes):
        with without_onednn():
            traced = trace_aten(module, inputs, FORMS)
        if not (is_convolved and choose_small_convolutions(traced)) and is_fused:
            choose_convolutions(traced, routes)
        choose_products(traced, routes)
        module = traced
    return section_namespace("section", *write_code(module, inputs, interface_functions(), splittable_threads()))


def _text_of(cause: BaseException) -> str:
    from rdukit_compiler.backend.section_library import NO_FORM, UnusualCode

    if isinstance(cause, UnusualCode):
        return f"{NO_FORM}{cause}; results are the same"
    return f"{type(cause).__name__}: {str(cause).splitlines()[0] if str(cause) else ''}"

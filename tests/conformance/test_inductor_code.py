"""Code that inductor writes for sections; a cold cache asks the compiler for its version, so it is no unit test."""

import pytest
import torch

from support import shows

pytestmark = shows("native")


@pytest.mark.filterwarnings("ignore")  # inductor's own, as it is imported
def test_inductor_writes_code_that_makes_a_section_and_adds_into_memory_in_order() -> None:
    from rdukit_compiler.backend.section_library import section_namespace
    from rdukit_compiler.torch_private import trace_aten, write_code

    rows, gradients = torch.zeros(512, dtype=torch.int64), torch.zeros(512, 99)
    summed = trace_aten(lambda a, b: [a + b], [torch.zeros(64)] * 2)
    section_namespace("section", *write_code(summed, [torch.zeros(64)] * 2, {}, threads=1))
    adding = trace_aten(
        lambda i, g: [torch.ops.aten.embedding_dense_backward(g, i, 99, -1, False)], [rows, gradients]
    )  # fmt: skip
    _, kernels = write_code(adding, [rows, gradients], {}, threads=2)
    assert "+" in kernels and "atomic_add" not in kernels

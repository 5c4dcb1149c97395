"""From inductor's C++ to a section: what is kept, what is dropped, what is refused."""

import pytest

from rdukit.pef.file import section_symbol
from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, packed_spec
from rdukit_compiler.backend.native import has_native_form
from rdukit_compiler.backend.native_worker import common_kernel
from rdukit_compiler.backend.section_library import UnusualCode, library_source, section_namespace
from rdukit_compiler.operators.supported import GUARD
from support import shows

pytestmark = shows("engine", "native")

_WRAPPER = """
#include <torch/csrc/inductor/aoti_include/cpu.h>
CACHE_TORCH_DTYPE(float32);
CACHE_TORCH_DEVICE(cpu);
AOTI_NOINLINE static void check_input_0(AtenTensorHandle* input_handles) {
}
void AOTInductorModel::run_impl(
    AtenTensorHandle*
        input_handles, // array of input AtenTensorHandle; handles
    DeviceStreamType stream,
    AOTIProxyExecutorHandle proxy_executor
) {
    __check_inputs_outputs(input_handles, output_handles);
    auto inputs = steal_from_raw_handles_to_raii_handles(input_handles, 1);
    auto arg0_1 = std::move(inputs[0]);
    inputs.clear();
    [[maybe_unused]] auto& kernels = static_cast<AOTInductorModelKernels&>(*this->kernels_.get());
    if (_check_aoti_runtime_check_inputs_env()) { assert_size_stride(arg0_1, {8L, }, {1L, }, "input"); }
    static constexpr int64_t int_array_0[] = {8L, };
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_0, int_array_0, t, d, this->device_idx_, &h));
    cpp_fused_add_0((const float*)(arg0_1.data_ptr()), (float*)(buf0.data_ptr()));
    output_handles[0] = buf0.release();
} // AOTInductorModel::run_impl
} // namespace torch::aot_inductor
"""
_KERNELS = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  cpp_fused_add_0(const float* in_ptr0,
                       float* out_ptr0)
{
    #pragma omp parallel num_threads(2)
    {
    }
}
"""


def test_a_section_has_the_body_and_its_kernels_and_nothing_of_the_container() -> None:
    code = section_namespace("section", _WRAPPER, _KERNELS)
    assert code.startswith("namespace section {\nCACHE_TORCH_DTYPE(float32);\nCACHE_TORCH_DEVICE(cpu);\n")
    assert "static void cpp_fused_add_0(const float* in_ptr0" in code
    assert "cpp_fused_add_0((const float*)(arg0_1.data_ptr())" in code and "output_handles[0]" in code
    for gone in ("#include", 'extern "C"', "check_input", "kernels_", "assert_size_stride", "this->"):
        assert gone not in code


def test_the_status_of_a_call_that_inductor_drops_is_checked() -> None:
    call = 'aoti_torch_cpu_scatter_reduce_two_out(buf0, buf0,0,index,src, "sum",1);'
    code = section_namespace(
        "section", _WRAPPER.replace("    output_handles[0]", f"    {call}\n    output_handles[0]"), _KERNELS
    )
    assert f"    AOTI_TORCH_ERROR_CODE_CHECK({call[:-1]});\n" in code
    assert code.count("AOTI_TORCH_ERROR_CODE_CHECK") == 2


def test_loops_take_no_more_threads_than_the_caller_may_use() -> None:
    assert "num_threads(rdukit::threads_up_to(2))" in section_namespace("section", _WRAPPER, _KERNELS)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("buf0.release()", "proxy_executor->run()", "proxy_executor"),
        ("buf0.release()", 'proxy_executor->run("torch.ops.aten.kthvalue.default")', "^aten.kthvalue.default$"),
        ("buf0.release()", "constants_->at(0)", "constants_"),
        ("run_impl", "run_other", "run_impl"),
    ],
)
def test_code_that_needs_more_than_tensors_is_refused_by_name(old: str, new: str, named: str) -> None:
    with pytest.raises(UnusualCode, match=named):
        section_namespace("section", _WRAPPER.replace(old, new), _KERNELS)


def test_sections_of_one_library_source_do_not_meet() -> None:
    code = section_namespace("section", _WRAPPER, _KERNELS)
    source = library_source({section_symbol("a" * 64): code, section_symbol("b" * 64): code}, {"WAY": 1})
    assert source.count("namespace section0 {") == source.count("namespace section1 {") == 1
    assert f"RDUKIT_SECTION({section_symbol('b' * 64)}, section1::run)" in source
    assert "products.h" not in source and "WAY" not in source
    ours = library_source({"x": code + "aoti_torch_cpu_rdukit_product(a, b)"}, {"WAY": 1})
    assert ours.index("#define WAY 1\n") < ours.index("products.h")


def test_a_check_of_a_condition_has_no_native_form() -> None:
    condition = packed_spec("holds", "bool", ())
    check = KernelNode("checked", GUARD, (Ref("holds"), "forward took the other branch", Ref("holds")))
    assert not has_native_form(KernelGraph((condition,), (check,), ("checked",)))
    assert has_native_form(common_kernel())

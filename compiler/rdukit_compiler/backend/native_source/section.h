// What every section library starts with: torch's C interface, inductor's vector types, and the list runner.
#pragma once
#include <torch/csrc/inductor/cpp_prefix.h>
#include <torch/csrc/inductor/aoti_runtime/utils.h>
#include <torch/csrc/inductor/aoti_runtime/scalar_to_tensor.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#include <c10/util/generic_math.h>

#include <omp.h>

#include "elementwise.h"
#include "runner.h"

using namespace torch::aot_inductor;

namespace rdukit {

// The calling thread's limit, which torch keeps, but not more than the code was written for.
static inline int threads_up_to(int most) {
  int allowed = omp_get_max_threads();
  return allowed < most ? allowed : most;
}

// The sum of f32 numbers that several indices name, in one thread: with several, torch adds them by atomic operations in
// whatever order the threads come by.
static inline AOTITorchError index_put_in_order(AtenTensorHandle out, AtenTensorHandle self,
                                                const AtenTensorHandle* indices, const uint32_t count,
                                                const AtenTensorHandle values, bool accumulate) {
  const int allowed = omp_get_max_threads();
  omp_set_num_threads(1);
  const AOTITorchError status = aoti_torch_index_put_out(out, self, indices, count, values, accumulate);
  omp_set_num_threads(allowed);
  return status;
}

#if INDUCTOR_USE_VECTOR_TYPES()
// Two vectors of floats as one of bf16, by the processor's instruction where it has one instead of torch's twenty. Both
// round to even; the instruction takes what is below the normal numbers for zero, so that torch's converts those.
static inline auto narrow_lanes(const at::vec::VectorizedN<float, 2>& lanes) {
#if defined(__AVX512BF16__) && defined(CPU_CAPABILITY_AVX512)
  constexpr int denormal = 0x20;
  if (C10_LIKELY(!(_mm512_fpclass_ps_mask(lanes[0], denormal) | _mm512_fpclass_ps_mask(lanes[1], denormal))))
    return at::vec::Vectorized<at::BFloat16>((__m512i)_mm512_cvtne2ps_pbh(lanes[1], lanes[0]));
#endif
  return at::vec::convert<at::BFloat16, 1, float, 2>(lanes);
}
#endif

}  // namespace rdukit

[[maybe_unused]] static inline int64_t align(int64_t bytes) { return (bytes + 63) & -64; }

#define RDUKIT_SECTION(NAME, RUN)                                                                              \
  extern "C" __attribute__((visibility("default"))) int32_t NAME(AtenTensorHandle* inputs,                     \
                                                                 AtenTensorHandle* outputs, char* error,       \
                                                                 int64_t room) {                               \
    try {                                                                                                      \
      RUN(inputs, outputs);                                                                                    \
      return 0;                                                                                                \
    } catch (const std::exception& cause) {                                                                    \
      rdukit::say(error, room, cause.what());                                                                  \
    } catch (...) {                                                                                            \
      rdukit::say(error, room, "an unknown C++ exception");                                                    \
    }                                                                                                          \
    return 1;                                                                                                  \
  }

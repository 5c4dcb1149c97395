// What every section library starts with: torch's C interface, inductor's vector types, and the list runner.
#pragma once
#include <torch/csrc/inductor/cpp_prefix.h>
#include <torch/csrc/inductor/aoti_runtime/utils.h>
#include <torch/csrc/inductor/aoti_runtime/scalar_to_tensor.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#include <c10/util/generic_math.h>

#include <omp.h>

#include "runner.h"

using namespace torch::aot_inductor;

namespace rdukit {

// The calling thread's limit, which torch keeps, but not more than the code was written for.
static inline int threads_up_to(int most) {
  int allowed = omp_get_max_threads();
  return allowed < most ? allowed : most;
}

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

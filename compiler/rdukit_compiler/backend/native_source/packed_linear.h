// bf16 linear layers by bf16_linear.h in two steps, so that layers with the same input pack it once.
#pragma once
#include "bf16_linear.h"
#include "products.h"

#if defined(__AVX512BF16__)

// rdukit::rdukit_packed_rows(Tensor x [m,k]) -> Tensor int32 [m in whole vectors, pairs of k]
static AOTITorchError aoti_torch_cpu_rdukit_packed_rows(AtenTensorHandle x, AtenTensorHandle* made) {
  using namespace rdukit;
  View vx(x);
  bf16_linear::Form form{vx.sizes[0], vx.sizes[1]};
  int64_t sizes[] = {form.width(), form.pairs()};
  RAIIAtenTensorHandle out(new_tensor(2, sizes, aoti_torch_dtype_int32()));
  bf16_linear::pack(form, {(const uint16_t*)vx.data, vx.strides[0], vx.strides[1]}, (uint32_t*)View(out).data);
  *made = out.release();
  return 0;
}

// rdukit::rdukit_packed_linear(Tensor packed, Tensor w [n,k], Tensor? bias [n], int m) -> Tensor [m,n]
static AOTITorchError aoti_torch_cpu_rdukit_packed_linear(AtenTensorHandle packed, AtenTensorHandle w,
                                                          AtenTensorHandle* bias, int64_t m, AtenTensorHandle* made) {
  using namespace rdukit;
  View vx(packed), vw(w);
  int64_t n = vw.sizes[0], k = vw.sizes[1], sizes[] = {m, n};
  if (vw.strides[0] != k || vw.strides[1] != 1) throw std::runtime_error("the weights do not lie in rows");
  RAIIAtenTensorHandle out(new_tensor(2, sizes, vw.dtype));
  Floats biases = float_vector(bias, n);
  const uint16_t* weights = (const uint16_t*)vw.data;
  bf16_linear::multiply({m, k}, (const uint32_t*)vx.data, [=](int64_t row, int64_t) { return weights + row * k; },
                        {nullptr, biases.data}, (uint16_t*)View(out).data, n,
                        [](int64_t count, int64_t grain, auto f) { in_parallel(count, grain, f); });
  *made = out.release();
  return 0;
}
#endif

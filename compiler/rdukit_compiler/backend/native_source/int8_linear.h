// Linear layers with int8 weights and a scale a row: few rows by row_int8.h or row_linear.h, more by a product of blocks
// of widened weights.
#pragma once
#include <vector>

#include "bf16_linear.h"
#include "products.h"

#ifndef RDUKIT_NATIVE_BF16
#define RDUKIT_NATIVE_BF16 0
#endif
#ifndef RDUKIT_OWN_LINEAR
#define RDUKIT_OWN_LINEAR 0
#endif

namespace rdukit {

// A block of rows of int8 weights whose numbers, widened, stay in the cache.
static inline int64_t block_rows(int64_t elements, int64_t n, int64_t k) {
  int64_t rows = elements / (k > 0 ? k : 1) / 16 * 16;
  rows = rows < 64 ? 64 : rows;
  return rows < n ? rows : n;
}

// ``count`` columns of y [m,n] from ``first`` on = part [m,count] + bias.
static void put_block(float* part, const float* bias, const View& y, int64_t m, int64_t n, int64_t first,
                      int64_t count) {
  for (int64_t r = 0; r < m; r++) {
    float* row = part + r * count;
    if (bias)
      for (int64_t c = 0; c < count; c++) row[c] += bias[first + c];
    if (y.is_bf16())
      narrow((bf16*)y.data + r * n + first, row, count);
    else
      std::memcpy((float*)y.data + r * n + first, row, count * sizeof(float));
  }
}

// y [m,n] = x w^T * scale + bias by float's product, block by block of w's rows.
static void int8_by_float(const Floats& x, const int8_t* w, const float* scale, const float* bias, const View& y,
                          int64_t m, int64_t n, int64_t k) {
  auto left = matrix_at((float*)x.data, m, k, x.stride, 1);
  int64_t width = block_rows(131072, n, k);
  std::unique_ptr<float[]> wide(new float[width * k]), part(new float[m * width]);
  for (int64_t first = 0; first < n; first += width) {
    int64_t count = n - first < width ? n - first : width;
    for (int64_t r = 0; r < count; r++) {
      const int8_t* from = w + (first + r) * k;
      float* to = wide.get() + r * k;
      int64_t i = 0;
      for (; i + LANES <= k; i += LANES) {
        Lanes lanes = load(from + i) * scale[first + r];
        std::memcpy(to + i, &lanes, sizeof lanes);
      }
      for (; i < k; i++) to[i] = from[i] * scale[first + r];
    }
    auto right = matrix_at(wide.get(), k, count, 1, k);
    auto whole = matrix_at(part.get(), m, count, count, 1);
    must(aoti_torch_cpu_mm_out(whole, left, right));
    put_block(part.get(), bias, y, m, n, first, count);
  }
}

// bf16 holds every int8.
static inline void widen(bf16* to, const int8_t* from, int64_t count) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) {
    Halves halves = __builtin_convertvector((Words)load(from + i) >> 16, Halves);
    std::memcpy(to + i, &halves, sizeof halves);
  }
  for (; i < count; i++) store(to + i, value(from[i]));
}

// The same by bf16's product, where the processor has one: the scale is applied to the sums.
static void int8_by_bf16(AtenTensorHandle x, const int8_t* w, const float* scale, const float* bias, bf16* y, int64_t m,
                         int64_t n, int64_t k) {
  int64_t width = block_rows(524288, n, k);
  std::unique_ptr<bf16[]> wide(new bf16[width * k]), part(new bf16[m * width]);
  for (int64_t first = 0; first < n; first += width) {
    int64_t count = n - first < width ? n - first : width;
    widen(wide.get(), w + first * k, count * k);
    auto right = matrix_at(wide.get(), k, count, 1, k);
    auto whole = matrix_at(part.get(), m, count, count, 1);
    must(aoti_torch_cpu_mm_out(whole, x, right));
    for (int64_t r = 0; r < m; r++)
      for (int64_t c = 0; c < count; c++) {
        float v = value(part[r * count + c]) * scale[first + c];
        store(y + r * n + first + c, bias ? v + bias[first + c] : v);
      }
  }
}

#if RDUKIT_OWN_LINEAR && defined(__AVX512BF16__)
// The same by our own product, for an even k.
static void int8_by_own_linear(const View& x, const int8_t* w, const float* scale, const float* bias, bf16* y,
                               int64_t m, int64_t n, int64_t k) {
  bf16_linear::Form form{m, k};
  std::vector<uint32_t> packed(form.width() * form.pairs());
  bf16_linear::pack(form, {(const uint16_t*)x.data, x.strides[0], x.strides[1]}, packed.data());
  bf16_linear::multiply(
      form, packed.data(),
      [=](int64_t row, int64_t count) {
        static thread_local std::vector<bf16> wide;
        wide.resize(std::max<size_t>(wide.size(), count * k));
        widen(wide.data(), w + row * k, count * k);
        return (const uint16_t*)wide.data();
      },
      {scale, bias}, (uint16_t*)y, n, [](int64_t count, int64_t grain, auto f) { in_parallel(count, grain, f); });
}
#endif

}  // namespace rdukit

// rdukit::rdukit_int8_linear(Tensor x [m,k], Tensor w int8 [n,k], Tensor scale [n], Tensor? bias [n]) -> Tensor [m,n]
static AOTITorchError aoti_torch_cpu_rdukit_int8_linear(AtenTensorHandle x, AtenTensorHandle w, AtenTensorHandle scale,
                                                 AtenTensorHandle* bias, AtenTensorHandle* made) {
  using namespace rdukit;
  View vx(x), vw(w);
  int64_t m = vx.sizes[0], k = vx.sizes[1], n = vw.sizes[0], sizes[] = {m, n};
  RAIIAtenTensorHandle out(new_tensor(2, sizes, vx.dtype));
  View vy(out);
  Floats scales = float_vector(&scale, n), biases = float_vector(bias, n);
  const int8_t* weights = (const int8_t*)vw.data;
  bool is_own_linear = RDUKIT_OWN_LINEAR && vx.is_bf16() && k % 2 == 0;
  if (m <= (is_own_linear ? FEW_ROWS : SOME_ROWS)) {
    if (vx.is_bf16())
      few_rows(vx, weights, scales.data, biases.data, (bf16*)vy.data, m, n, k);
    else
      few_rows(vx, weights, scales.data, biases.data, (float*)vy.data, m, n, k);
#if RDUKIT_OWN_LINEAR && defined(__AVX512BF16__)
  } else if (is_own_linear && m <= bf16_linear::MOST_ROWS) {
    int8_by_own_linear(vx, weights, scales.data, biases.data, (bf16*)vy.data, m, n, k);
#endif
  } else if (RDUKIT_NATIVE_BF16 && vx.is_bf16()) {
    int8_by_bf16(x, weights, scales.data, biases.data, (bf16*)vy.data, m, n, k);
  } else {
    int8_by_float(float_rows(vx, m, k), weights, scales.data, biases.data, vy, m, n, k);
  }
  *made = out.release();
  return 0;
}

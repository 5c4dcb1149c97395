// Our own products alone, in one thread, as a library that takes a second to compile: their time decides whether, and how,
// sections use them.
#include "bf16_linear.h"
#include "few_row_product.h"
#include "row_linear.h"
#include "small_bf16_product.h"
#include "winograd.h"

extern "C" void multiply_few_rows(const float* a, int64_t a_row, int64_t a_column, const float* b, int64_t b_row,
                                  int64_t b_column, float* y, int64_t m, int64_t n, int64_t k) {
  using rdukit::few_row_product::Matrix;
  rdukit::few_row_product::multiply(Matrix{a, a_row, a_column}, Matrix{b, b_row, b_column}, nullptr, y, m, n, k,
                                    [](int64_t count, int64_t, auto f) { f(0, count); });
}

// One row x [k] against w [n, k], read by either way of row_linear.h.
template <class W>
static void read_rows(const float* x, const W* w, float* y, int64_t n, int64_t k, int is_sweep) {
  using rdukit::Reading;
  if (is_sweep)
    rdukit::rows<1, Reading::SWEEP>(x, k, w, nullptr, nullptr, y, n, k, 0, n);
  else
    rdukit::rows<1, Reading::AHEAD>(x, k, w, nullptr, nullptr, y, n, k, 0, n);
}

extern "C" void read_rows_float(const float* x, const void* w, float* y, int64_t n, int64_t k, int is_sweep) {
  read_rows(x, (const float*)w, y, n, k, is_sweep);
}

extern "C" void read_rows_bf16(const float* x, const void* w, float* y, int64_t n, int64_t k, int is_sweep) {
  read_rows(x, (const rdukit::bf16*)w, y, n, k, is_sweep);
}

// x [height, width, in] by filters [out, in, 3, 3], one position of padding about it.
extern "C" void convolve_winograd(const float* x, const float* w, float* y, int64_t height, int64_t width, int64_t in,
                                  int64_t out) {
  rdukit::winograd::Form form{1, height, width, in, out, 1, 1};
  std::unique_ptr<float[]> packed(new float[form.weights()]);
  auto weight = [=](int64_t o, int64_t i, int64_t tap) { return w[(o * in + i) * 9 + tap]; };
  rdukit::winograd::pack_weights(form, weight, nullptr, packed.get(), 0, out / rdukit::WIDE);
  rdukit::winograd::convolve(form, x, packed.get(), nullptr, false, y,
                             [](int64_t count, int64_t, auto f) { f(0, count); });
}

#if defined(__AVX512BF16__)
extern "C" void multiply_bf16(const uint16_t* a, int64_t a_row, int64_t a_column, const uint16_t* b, int64_t b_row,
                              int64_t b_column, float* y, int64_t m, int64_t n, int64_t k) {
  using rdukit::small_bf16_product::Matrix;
  rdukit::small_bf16_product::multiply(Matrix{a, a_row, a_column}, Matrix{b, b_row, b_column}, y, n, m, n, k);
}

extern "C" void linear_bf16(const uint16_t* x, int64_t x_row, int64_t x_column, const uint16_t* w, uint16_t* y,
                            int64_t m, int64_t n, int64_t k) {
  rdukit::bf16_linear::Form form{m, k};
  std::unique_ptr<uint32_t[]> packed(new uint32_t[form.width() * form.pairs()]);
  rdukit::bf16_linear::pack(form, {x, x_row, x_column}, packed.get());
  rdukit::bf16_linear::multiply(form, packed.get(), [=](int64_t row, int64_t) { return w + row * k; },
                                {nullptr, nullptr}, y, n, [](int64_t count, int64_t, auto f) { f(0, count); });
}
#endif

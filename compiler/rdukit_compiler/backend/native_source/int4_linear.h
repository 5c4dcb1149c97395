// Linear layers with weights of four bits and a scale a group: few rows by row_int4.h, more by a product of blocks of
// widened weights.
#pragma once
#include <cfloat>

#include "int8_linear.h"
#include "row_int4.h"

namespace rdukit::int4 {

// The rows of x as T, in W's order.
template <class T>
static std::unique_ptr<T[]> ordered(const T* x, int64_t row_step, int64_t step, int64_t m, const Weights& w) {
  std::unique_ptr<T[]> made(new T[m * w.width()]);
  for (int64_t r = 0; r < m; r++) order(made.get() + r * w.width(), x + r * row_step, step, w.k);
  return made;
}

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
// Rows of floats as two rows each of multiples of a step: the second is of what the first leaves. False as round_rows.
static inline bool round_twice(const float* x, int64_t x_stride, int64_t m, int64_t k, Rounded* made) {
  constexpr float FINER = 65000;  // what is left is at most half a step
  Rounded first;
  if (!round_rows(x, x_stride, m, k, &first)) return false;
  made->data.reset(new int16_t[2 * m * k]);
  made->steps.reset(new float[2 * m]);
  for (int64_t r = 0; r < m; r++) {
    float step = first.steps[r], finer = step / FINER, inverse = step > 0 ? 1 / finer : 0;
    if (step > 0 && finer < FLT_MIN) return false;  // its inverse may be infinite
    const int16_t* from = first.data.get() + r * k;
    int16_t *coarse = made->data.get() + 2 * r * k, *fine = coarse + k;
    made->steps[2 * r] = step;
    made->steps[2 * r + 1] = finer;
    for (int64_t i = 0; i < k; i++) {
      float left = std::fma(-step, (float)from[i], x[r * x_stride + i]) * inverse;
      coarse[i] = from[i];
      fine[i] = (int16_t)(int32_t)(left + (left < 0 ? -0.5f : 0.5f));
    }
  }
  return true;
}

// Few rows as multiples of a step, or of two for floats; false if one has no such form.
template <class Y>
static bool by_pairs(const Floats& x, const Weights& w, const float* bias, Y* y, int64_t m, int64_t n) {
  constexpr bool IS_TWICE = sizeof(Y) == sizeof(float);
  Rounded rounded;
  if (!(IS_TWICE ? round_twice : round_rows)(x.data, x.stride, m, w.k, &rounded)) return false;
  int64_t count = IS_TWICE ? 2 * m : m;
  OrderedRows given(rounded, count, w.k, w.width());
  in_tiles<2>(count, n, w.row_bytes(), [&](auto block, int64_t i, int64_t first, int64_t last) {
    const int32_t* starts = given.starts.get() + i * w.width() / 8;
    rows<block>(given.data.get() + i * w.width(), starts, w, first, last, i == 0, [&](int64_t j, int64_t r, float v) {
      v *= rounded.steps[i + j];
      Y* to = y + (IS_TWICE ? i / 2 : i + j) * n + r;
      if (IS_TWICE && j == 1) return store(to, value(*to) + v);
      store(to, bias ? v + bias[r] : v);
    });
  });
  return true;
}
#endif

// Some rows by weights that are widened a few at a time, and stay in the nearest cache.
template <class Y>
static void by_float_rows(const Floats& x, const Weights& w, const float* bias, Y* y, int64_t m, int64_t n) {
  auto given = ordered(x.data, x.stride, 1, m, w);
  int64_t width = w.width();
  constexpr int64_t COUNT = 8;
  in_parallel(n, 1 + 32768 / (w.row_bytes() + 1), [&](int64_t begin, int64_t end) {
    std::unique_ptr<float[]> wide(new float[COUNT * width]);
    for (int64_t first = begin; first < end; first += COUNT) {
      int64_t count = std::min(COUNT, end - first);
      for (int64_t r = 0; r < count; r++) widen(wide.get() + r * width, w, first + r);
      in_row_blocks<LANES == 16 ? 8 : 4>(m, [&](auto block, int64_t i) {
        // As if all of W lay there: rows are counted from ``first``.
        rdukit::rows<block, Reading::AHEAD>(given.get() + i * width, width, wide.get(), nullptr,
                                            bias ? bias + first : nullptr, y + i * n + first, n, width, 0, count);
      });
    }
  });
}

// Many rows by float's product, block by block of W's rows.
static void by_float(const Floats& x, const Weights& w, const float* bias, const View& y, int64_t m, int64_t n) {
  auto given = ordered(x.data, x.stride, 1, m, w);
  int64_t width = w.width(), most = block_rows(131072, n, width);
  auto left = matrix_at(given.get(), m, width, width, 1);
  std::unique_ptr<float[]> wide(new float[most * width]), part(new float[m * most]);
  for (int64_t first = 0; first < n; first += most) {
    int64_t count = std::min(most, n - first);
    for (int64_t r = 0; r < count; r++) widen(wide.get() + r * width, w, first + r);
    auto right = matrix_at(wide.get(), width, count, 1, width);
    auto whole = matrix_at(part.get(), m, count, count, 1);
    must(aoti_torch_cpu_mm_out(whole, left, right));
    put_block(part.get(), bias, y, m, n, first, count);
  }
}

#if RDUKIT_OWN_LINEAR && defined(__AVX512BF16__)
static void by_own_linear(const View& x, const Weights& w, const float* bias, bf16* y, int64_t m, int64_t n) {
  auto given = ordered((const bf16*)x.data, x.strides[0], x.strides[1], m, w);
  int64_t width = w.width();
  bf16_linear::Form form{m, width};
  std::vector<uint32_t> packed(form.width() * form.pairs());
  bf16_linear::pack(form, {(const uint16_t*)given.get(), width, 1}, packed.data());
  bf16_linear::multiply(
      form, packed.data(),
      [=](int64_t row, int64_t count) {
        static thread_local std::vector<bf16> wide;
        wide.resize(std::max<size_t>(wide.size(), count * width));
        for (int64_t r = 0; r < count; r++) widen(wide.data() + r * width, w, row + r);
        return (const uint16_t*)wide.data();
      },
      {nullptr, bias}, (uint16_t*)y, n, [](int64_t count, int64_t grain, auto f) { in_parallel(count, grain, f); });
}
#endif

template <class Y>
static void multiply(const View& x, const Weights& w, const float* bias, const View& y, int64_t m, int64_t n) {
#if RDUKIT_OWN_LINEAR && defined(__AVX512BF16__)
  if (sizeof(Y) == 2 && m > FEW_ROWS && m <= bf16_linear::MOST_ROWS)
    return by_own_linear(x, w, bias, (bf16*)y.data, m, n);
#endif
  Floats rows = float_rows(x, m, w.k);
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
  if (m <= (sizeof(Y) == 2 ? FEW_ROWS : FEW_ROWS / 2) && by_pairs(rows, w, bias, (Y*)y.data, m, n)) return;
#endif
  if (m <= SOME_ROWS) return by_float_rows(rows, w, bias, (Y*)y.data, m, n);
  by_float(rows, w, bias, y, m, n);
}

}  // namespace rdukit::int4

// rdukit::rdukit_int4_linear(Tensor x [m,k], Tensor w uint8 [n,bytes], Tensor scale [n,k/32], Tensor? bias [n])
// -> Tensor [m,n]
static AOTITorchError aoti_torch_cpu_rdukit_int4_linear(AtenTensorHandle x, AtenTensorHandle w, AtenTensorHandle scale,
                                                        AtenTensorHandle* bias, AtenTensorHandle* made) {
  using namespace rdukit;
  View vx(x), vw(w), vs(scale);
  int64_t m = vx.sizes[0], k = vx.sizes[1], n = vw.sizes[0], sizes[] = {m, n};
  int4::Weights weights{(const uint8_t*)vw.data, (const bf16*)vs.data, k};
  bool is_whole = k % int4::GROUP == 0 && vw.sizes[1] == weights.row_bytes() && vw.strides[0] == vw.sizes[1] &&
                  vw.strides[1] == 1 && vs.is_bf16() && vs.sizes[0] == n && vs.sizes[1] == weights.groups() &&
                  vs.strides[0] == vs.sizes[1] && vs.strides[1] == 1;
  if (!is_whole) throw std::runtime_error("weights of four bits do not lie as they must");
  RAIIAtenTensorHandle out(new_tensor(2, sizes, vx.dtype));
  View vy(out);
  Floats biases = float_vector(bias, n);
  if (vx.is_bf16())
    int4::multiply<bf16>(vx, weights, biases.data, vy, m, n);
  else
    int4::multiply<float>(vx, weights, biases.data, vy, m, n);
  *made = out.release();
  return 0;
}

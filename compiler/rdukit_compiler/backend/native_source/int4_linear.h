// Linear layers with weights of four bits and a scale a group, by row_int4.h: any number of rows, a few at a time, while a
// part of W stays in the cache.
#pragma once
#include "products.h"
#include "row_int4.h"

namespace rdukit::int4 {

// Calls f for blocks of x's m rows, at most MOST, and chunks of W's blocks: (rows of the block, its first row, first and
// last block of the chunk). W is read from memory once.
template <int MOST, class F>
static void in_chunks(int64_t m, const Weights& w, F f) {
  constexpr int64_t KEPT = 131072, PAYS = 32768;  // bytes of W: in the cache, and for which a thread is worth waking
  int64_t chunk = m <= MOST ? w.blocks() : std::max<int64_t>(KEPT / (w.block_bytes() + 1), 1);
  in_parallel(w.blocks(), 1 + PAYS / (w.block_bytes() + 1), [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += chunk)
      in_row_blocks<MOST>(m, [&](auto count, int64_t i) { f(count, i, first, std::min(end, first + chunk)); });
  });
}

// Writes a row's sums with a part of W, plus their biases.
template <class Y>
static inline void put_part(Y* y, const float* bias, const Part& part, const float* sums) {
  const float* biases = bias ? bias + part.row : nullptr;
  if constexpr (sizeof(Y) == 2)
    narrow(y + part.row, sums, part.there, biases);
  else
    for (int64_t i = 0; i < part.there; i++) y[part.row + i] = biases ? sums[i] + biases[i] : sums[i];
}

#if RDUKIT_INT4_BYTES
// Rows in bytes, floats in two rows of bytes; false if one has no such form.
template <class Y>
static bool by_bytes(const Floats& x, const Weights& w, const float* bias, Y* y, int64_t m) {
  constexpr int64_t EACH = sizeof(Y) == sizeof(float) ? 2 : 1;
  auto given = bytes_of<EACH == 2>(x.data, x.stride, m, w.k);
  if (!given) return false;
  in_chunks<Vector::MOST>(EACH * m, w, [&](auto block, int64_t i, int64_t first, int64_t last) {
    byte_rows<block>(*given, i, w, first, last, i == 0, [&](const Part& part, const Vector::Sums* sums) {
      for (int64_t j = 0; j < block; j += EACH) {
        Vector::Sums all = sums[j] * given->steps[i + j];
        if constexpr (EACH == 2 && block > 1) all += sums[j + 1] * given->steps[i + j + 1];
        put_part(y + (i + j) / EACH * w.n, bias, part, (const float*)&all);
      }
    });
  });
  return true;
}
#endif

template <class Y>
static void multiply(const Floats& x, const Weights& w, const float* bias, Y* y, int64_t m) {
#if RDUKIT_INT4_BYTES
  if (by_bytes(x, w, bias, y, m)) return;
#endif
  in_chunks<LANES == 16 ? 8 : 4>(m, w, [&](auto block, int64_t i, int64_t first, int64_t last) {
    float_rows_of<block>(x.data + i * x.stride, x.stride, w, first, last, [&](const Part& part, const Lanes* sums) {
      for (int64_t j = 0; j < block; j++) put_part(y + (i + j) * w.n, bias, part, (const float*)&sums[j]);
    });
  });
}

}  // namespace rdukit::int4

// rdukit::rdukit_int4_linear(Tensor x [m,k], Tensor w uint8 [n,k/32,16], Tensor scale [n,k/32], Tensor? bias [n])
// -> Tensor [m,n]
static AOTITorchError aoti_torch_cpu_rdukit_int4_linear(AtenTensorHandle x, AtenTensorHandle w, AtenTensorHandle scale,
                                                        AtenTensorHandle* bias, AtenTensorHandle* made) {
  using namespace rdukit;
  View vx(x), vw(w), vs(scale);
  int64_t m = vx.sizes[0], k = vx.sizes[1], n = vw.sizes[0], sizes[] = {m, n};
  int4::Weights weights{(const uint8_t*)vw.data, (const bf16*)vs.data, n, k};
  int64_t groups = weights.groups(), bytes = int4::GROUP / 2;
  bool is_whole = k % int4::GROUP == 0 && vw.dim == 3 && vw.sizes[1] == groups && vw.sizes[2] == bytes &&
                  vw.strides[0] == groups * bytes && vw.strides[1] == bytes && vw.strides[2] == 1 && vs.is_bf16() &&
                  vs.sizes[0] == n && vs.sizes[1] == groups && vs.strides[0] == groups && vs.strides[1] == 1;
  if (!is_whole) throw std::runtime_error("weights of four bits do not lie as they must");
  RAIIAtenTensorHandle out(new_tensor(2, sizes, vx.dtype));
  View vy(out);
  Floats rows = float_rows(vx, m, k), biases = float_vector(bias, n);
  if (vx.is_bf16())
    int4::multiply(rows, weights, biases.data, (bf16*)vy.data, m);
  else
    int4::multiply(rows, weights, biases.data, (float*)vy.data, m);
  *made = out.release();
  return 0;
}

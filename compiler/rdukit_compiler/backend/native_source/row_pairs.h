// Few rows of 16-bit numbers against bf16 or int8 weights, y[M,N] = x[M,K] W[N,K]^T, by the processor's products of
// pairs, which sum up twice as many at a time as those of floats: from two rows on time goes into computing.
//
// Pairs of bf16 have sums in float; pairs of integers are exact in 32 bits over a SPAN of elements and go on in float
// (x is rounded, see row_int8.h). Written for AVX-512; without it there is nothing here.
#pragma once
#include <algorithm>

#include "row_int8.h"
#include "row_linear.h"

#if defined(__AVX512BW__)
#pragma GCC push_options
#pragma GCC optimize("O3")

namespace rdukit::pairs {

constexpr int64_t STEP = 32;  // elements of a vector
constexpr int64_t AHEAD = 2048;  // bytes beyond the next rows that are asked for, into the second cache

#define RDUKIT_MEMBER inline __attribute__((always_inline))

#if defined(__AVX512BF16__)
// W in bf16, as bits.
struct OfBf16 {
  using X = bf16;
  using Sums = __m512;
  static constexpr int64_t SPAN = INT64_MAX, LINE = 32;  // elements: of an exact sum, of a cache line
  static constexpr int MOST = 8;                         // rows of x at a time
  const bf16* data;
  int64_t k;

  int64_t row_bytes() const { return k * sizeof *data; }
  RDUKIT_MEMBER const void* place(int64_t row, int64_t i) const { return data + row * k + i; }
  RDUKIT_MEMBER __m512i load(int64_t row, int64_t i, __mmask32 there) const {
    return _mm512_maskz_loadu_epi16(there, data + row * k + i);
  }
  static RDUKIT_MEMBER Sums zero() { return _mm512_setzero_ps(); }
  static RDUKIT_MEMBER Sums add(Sums sums, __m512i w, __m512i x) {
    return _mm512_dpbf16_ps(sums, (__m512bh)w, (__m512bh)x);
  }
  static RDUKIT_MEMBER Lanes floats(Sums sums) { return (Lanes)sums; }
};
#endif

#if defined(__AVX512VNNI__)
// W in int8, widened; two rows of x at a time, as the more of W is at hand the fewer parts of x are loaded again.
struct OfInt8 {
  using X = int16_t;
  using Sums = __m512i;
  static constexpr int64_t SPAN = 8192, LINE = 64;  // 8192 / 16 lanes * 128 * 32767 < 2^31
  static constexpr int MOST = 2;
  const int8_t* data;
  int64_t k;

  int64_t row_bytes() const { return k * sizeof *data; }
  RDUKIT_MEMBER const void* place(int64_t row, int64_t i) const { return data + row * k + i; }
  RDUKIT_MEMBER __m512i load(int64_t row, int64_t i, __mmask32 there) const {
    return _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(there, data + row * k + i));
  }
  static RDUKIT_MEMBER Sums zero() { return _mm512_setzero_si512(); }
  static RDUKIT_MEMBER Sums add(Sums sums, __m512i w, __m512i x) { return _mm512_dpwssd_epi32(sums, w, x); }
  static RDUKIT_MEMBER Lanes floats(Sums sums) { return (Lanes)_mm512_cvtepi32_ps(sums); }
};
#endif

// Adds the products of M rows of x with ROWS of W, over elements from first up to last.
template <int M, int ROWS, class W>
static RDUKIT_MEMBER void add_tile(const typename W::X* x, int64_t x_stride, const W& w, int64_t row, int64_t first,
                                   int64_t last, bool is_ahead, float (*to)[ROWS]) {
  typename W::Sums sums[M][ROWS];
#pragma GCC unroll 16
  for (int m = 0; m < M; m++)
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) sums[m][r] = W::zero();
  auto step = [&](int64_t i, __mmask32 there) __attribute__((always_inline)) {
    __m512i ws[ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
      ws[r] = w.load(row + r, i, there);
      asm("" : "+v"(ws[r]));  // stays in its register
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
      __m512i xs = _mm512_maskz_loadu_epi16(there, x + m * x_stride + i);
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) sums[m][r] = W::add(sums[m][r], ws[r], xs);
    }
  };
  int64_t i = first;
  for (; i + STEP <= last; i += STEP) {
    if (is_ahead && i % W::LINE == 0)
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) __builtin_prefetch((const char*)w.place(row + ROWS + r, i) + AHEAD, 0, 2);
    step(i, ~0u);
  }
  if (i < last) step(i, (1u << (last - i)) - 1);
  if constexpr (M * ROWS == LANES) {
    Lanes all[LANES];
#pragma GCC unroll 16
    for (int j = 0; j < LANES; j++) all[j] = W::floats(sums[j / ROWS][j % ROWS]);
    Lanes added = totals(all) + rdukit::load(&to[0][0]);
    std::memcpy(&to[0][0], &added, sizeof added);
  } else {
    for (int m = 0; m < M; m++)
      for (int r = 0; r < ROWS; r++) to[m][r] += total(W::floats(sums[m][r]));
  }
}

template <int M, int ROWS, class W, class Put>
static void tile(const typename W::X* x, int64_t x_stride, const W& w, int64_t row, bool is_ahead, Put put) {
  float sums[M][ROWS]{};
  for (int64_t first = 0, last; first < w.k; first = last) {
    last = w.k - first > W::SPAN ? first + W::SPAN : w.k;
    add_tile<M, ROWS>(x, x_stride, w, row, first, last, is_ahead, sums);
  }
  for (int m = 0; m < M; m++)
    for (int r = 0; r < ROWS; r++) put(m, row + r, sums[m][r]);
}

// Sums of M rows of x with the rows of W from first up to last: put(row of x, row of W, sum). Of W the rows after them
// are asked for ahead if it is_ahead.
template <int M, class W, class Put>
static void rows(const typename W::X* x, int64_t x_stride, const W& w, int64_t first, int64_t last, bool is_ahead,
                 Put put) {
  constexpr int ROWS = LANES / M;
  int64_t row = first;
  for (; row + ROWS <= last; row += ROWS) tile<M, ROWS>(x, x_stride, w, row, is_ahead, put);
  for (; row < last; row++) tile<M, 1>(x, x_stride, w, row, is_ahead, put);
}

}  // namespace rdukit::pairs
#pragma GCC pop_options
#endif

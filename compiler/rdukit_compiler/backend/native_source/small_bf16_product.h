// Small products of bf16 matrices by the processor's bf16 instructions, with sums in float: y[m,n] = a[m,k] b[k,n].
//
// Columns of b are packed into panels whose elements lie in pairs along k, as the instructions take them. Large products
// are no faster than oneDNN's, small ones are, which has more to prepare: attention's. Written for AVX512-BF16; without
// it ``multiply`` does not exist.
#pragma once
#include "row_linear.h"

#if defined(__AVX512BF16__)
#include <algorithm>
#include <memory>
#include <type_traits>

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace rdukit::small_bf16_product {

constexpr int VECTORS = 2;               // of a panel's row
constexpr int64_t PANEL = VECTORS * 16;  // its columns
constexpr int64_t DEEP = 768;            // its rows at most: it takes 48 KiB then
constexpr int TALL = 12;                 // rows of a that are multiplied at a time

// bf16 elements with strides in elements.
struct Matrix {
  const uint16_t* data;
  int64_t row, column;
};

// Pairs of a along k: the pair p of row i lies at bytes i * row + p * pair.
struct Pairs {
  const char* data;
  int64_t row, pair;
  std::unique_ptr<uint32_t[]> own;
};

static inline __m512i widened(const uint16_t* from, int64_t count) {
  if (count >= 16) return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16((__mmask16)((1u << (count > 0 ? count : 0)) - 1), from));
}

// to[c] = pair of elements (0, c) and (1, c), for 16 columns of which ``count`` exist; low and high are rows of b.
static inline void pack_pair(uint32_t* to, const uint16_t* low, const uint16_t* high, int64_t count) {
  __m512i pairs = widened(low, count);
  if (high) pairs = _mm512_or_si512(pairs, _mm512_slli_epi32(widened(high, count), 16));
  _mm512_storeu_si512(to, pairs);
}

// Sixteen vectors of sixteen as their transposition.
static inline void transpose(__m512i v[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    t[2 * i] = _mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    v[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    v[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    v[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    v[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    t[i] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    v[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    v[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    v[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    v[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// to [count / 2 rounded up][V * 16] = pairs of b's rows [first, first + count) in its columns from ``column`` on.
template <int V = VECTORS>
static inline void pack_panel(uint32_t* to, const Matrix& b, int64_t n, int64_t column, int64_t first, int64_t count) {
  constexpr int64_t PANEL = V * 16;
  int64_t there = std::min(PANEL, n - column);
  const uint16_t* from = b.data + first * b.row + column * b.column;
  int64_t p = 0;
  if (b.column == 1) {
    for (; p < (count + 1) / 2; p++)
      for (int64_t c = 0; c < PANEL; c += 16) {
        const uint16_t* low = from + 2 * p * b.row + c;
        pack_pair(to + p * PANEL + c, low, 2 * p + 1 < count ? low + b.row : nullptr, there - c);
      }
    return;
  }
  if (b.row == 1)
    for (; 2 * p + 32 <= count; p += 16)
      for (int64_t c = 0; c < PANEL; c += 16) {
        __m512i rows[16];
        for (int64_t i = 0; i < 16; i++)
          rows[i] = c + i < there ? _mm512_loadu_si512(from + (c + i) * b.column + 2 * p) : _mm512_setzero_si512();
        transpose(rows);
        for (int64_t i = 0; i < 16; i++) _mm512_storeu_si512(to + (p + i) * PANEL + c, rows[i]);
      }
  for (; p < (count + 1) / 2; p++)
    for (int64_t c = 0; c < PANEL; c++) {
      const uint16_t* low = from + 2 * p * b.row + c * b.column;
      uint32_t pair = c < there ? low[0] : 0;
      if (c < there && 2 * p + 1 < count) pair |= (uint32_t)low[b.row] << 16;
      to[p * PANEL + c] = pair;
    }
}

// a [m, k] in pairs: where it lies, if its rows hold them already.
static inline Pairs pairs_of(const Matrix& a, int64_t m, int64_t k, bool is_even) {
  if (a.column == 1 && (k % 2 == 0 || is_even)) return {(const char*)a.data, a.row * 2, 4, nullptr};
  int64_t pairs = (k + 1) / 2;
  std::unique_ptr<uint32_t[]> own(new uint32_t[m * pairs]);
  for (int64_t i = 0; i < m; i++)
    for (int64_t p = 0; p < pairs; p++) {
      const uint16_t* low = a.data + i * a.row + 2 * p * a.column;
      own[i * pairs + p] = low[0] | (2 * p + 1 < k ? (uint32_t)low[a.column] << 16 : 0);
    }
  const char* data = (const char*)own.get();
  return {data, pairs * 4, 4, std::move(own)};
}

// sums (+)= ROWS rows of a times a panel of ``pairs`` pairs, V vectors wide; rows of sums are ``stride`` apart. Of the
// rows of a that follow, which are multiplied next, lines are asked for where IS_AHEAD. Within a larger function, sums
// would leave the registers.
template <int ROWS, int V = VECTORS, bool IS_AHEAD = false>
static __attribute__((noinline)) void multiply_rows(const char* a, int64_t row, int64_t step, const uint32_t* panel,
                                                    int64_t pairs, float* sums, int64_t stride, bool is_first) {
  __m512 acc[ROWS][V];
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) acc[i][v] = is_first ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + i * stride + v * 16);
  for (int64_t p = 0; p < pairs; p++) {
    if (IS_AHEAD && p % 16 == 0)
#pragma GCC unroll 16
      for (int i = 0; i < ROWS; i++) __builtin_prefetch(a + (ROWS + i) * row + p * step);
    __m512bh columns[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) columns[v] = (__m512bh)_mm512_loadu_si512(panel + (p * V + v) * 16);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++) {
      int32_t pair;
      std::memcpy(&pair, a + i * row + p * step, sizeof pair);
      __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) acc[i][v] = _mm512_dpbf16_ps(acc[i][v], both, columns[v]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) _mm512_storeu_ps(sums + i * stride + v * 16, acc[i][v]);
}

// y [m, n], rows ``step`` apart. ``is_even``: a zero follows each row of a if k is odd.
static void multiply(const Matrix& a, const Matrix& b, float* y, int64_t step, int64_t m, int64_t n, int64_t k,
                     bool is_even = false) {
  Pairs rows = pairs_of(a, m, k, is_even);
  std::unique_ptr<uint32_t[]> panel(new uint32_t[(std::min(k, DEEP) + 1) / 2 * PANEL]);
  std::unique_ptr<float[]> sums(new float[m * PANEL]);
  for (int64_t c = 0; c < n; c += PANEL) {
    for (int64_t depth = 0; depth < k; depth += DEEP) {
      int64_t count = std::min(DEEP, k - depth), pairs = (count + 1) / 2, i = 0;
      pack_panel(panel.get(), b, n, c, depth, count);
      const char* from = rows.data + depth / 2 * rows.pair;
      auto by = [&](auto tall) {
        for (; i + tall <= m; i += tall)
          multiply_rows<tall>(from + i * rows.row, rows.row, rows.pair, panel.get(), pairs, sums.get() + i * PANEL,
                              PANEL, depth == 0);
      };
      by(std::integral_constant<int, TALL>{});
      by(std::integral_constant<int, 4>{});
      by(std::integral_constant<int, 1>{});
    }
    int64_t there = std::min(PANEL, n - c);
    for (int64_t i = 0; i < m; i++) std::copy_n(sums.get() + i * PANEL, there, y + i * step + c);
  }
}

}  // namespace rdukit::small_bf16_product
#pragma GCC pop_options
#endif

// Linear layers of some rows, y[m,n] = x[m,k] W[n,k]^T, by the processor's bf16 instructions, with sums in float; the sums
// of a row of W may be multiplied by a scale, and have a bias added.
//
// oneDNN copies W in pairs along k before it multiplies, which takes a tenth of the time where x has a hundred rows.
// Here x is copied and W is read where it lies, once, a pair at a time for whole vectors of x's rows: y is computed
// turned and turned back. Written for AVX512-BF16; without it ``multiply`` does not exist.
#pragma once
#include "small_bf16_product.h"

#if defined(__AVX512BF16__)
#pragma GCC push_options
#pragma GCC optimize("O3")

namespace rdukit::bf16_linear {

using small_bf16_product::Matrix;

constexpr int64_t MOST_ROWS = 512;  // of x, as in routes.py: with more, oneDNN's copy of W is soon paid for
constexpr int WIDE = 4;             // vectors of x's rows that are multiplied at a time
constexpr int ROWS = 6;             // by so many rows of W
constexpr int64_t CHUNK = 96;       // rows of W whose products are turned back together: a multiple of 32 and of ROWS
constexpr int64_t DEEP = 2048;      // of k, how much is summed at a time: x's part of it stays in the second cache
constexpr int64_t PAYS = 2000000;   // multiplications that pay for waking a thread

// x in panels along its rows, a multiple of sixteen: [parts of k][panels][pairs][their rows], panels of WIDE vectors but
// for the last.
struct Form {
  int64_t m, k;
  int64_t width() const { return (m + 15) / 16 * 16; }
  int64_t pairs() const { return (k + 1) / 2; }
  int64_t deep(int64_t first) const { return std::min(DEEP, k - first); }
  // Where the panel is that begins with ``row`` and the element ``first`` of k.
  int64_t panel(int64_t row, int64_t first) const { return first / 2 * width() + row * ((deep(first) + 1) / 2); }
  // f of the vectors of the panel that begins with ``row``, a constant.
  template <class F>
  void with_vectors(int64_t row, F f) const {
    int64_t vectors = (width() - row) / 16;
    if (vectors >= 4) return f(std::integral_constant<int, 4>{});
    if (vectors == 3) return f(std::integral_constant<int, 3>{});
    if (vectors == 2) return f(std::integral_constant<int, 2>{});
    f(std::integral_constant<int, 1>{});
  }
};

// to [width * pairs] = x, packed.
static void pack(const Form& form, const Matrix& x, uint32_t* to) {
  Matrix turned{x.data, x.column, x.row};
  for (int64_t first = 0; first < form.k; first += DEEP)
    for (int64_t row = 0; row < form.m; row += WIDE * 16)
      form.with_vectors(row, [&](auto vectors) {
        small_bf16_product::pack_panel<vectors>(to + form.panel(row, first), turned, form.m, row, first,
                                                form.deep(first));
      });
}

// Sums of ``rows`` rows of W with a panel.
template <int V>
static void multiply_panel(int64_t rows, const char* w, int64_t row, const uint32_t* panel, int64_t pairs, float* sums,
                           int64_t stride, bool is_first) {
  using small_bf16_product::multiply_rows;
  if (rows == ROWS) return multiply_rows<ROWS, V, true>(w, row, 4, panel, pairs, sums, stride, is_first);
  for (int64_t r = 0; r < rows; r++)
    multiply_rows<1, V>(w + r * row, row, 4, panel, pairs, sums + r * stride, stride, is_first);
}

// What becomes of sums: ``scale`` and ``bias`` are of the rows of W, or null.
struct Ending {
  const float *scale, *bias;
  __m512 scales(__mmask16 there, int64_t row) const {
    return scale ? _mm512_maskz_loadu_ps(there, scale + row) : _mm512_set1_ps(1);
  }
  __m512 biases(__mmask16 there, int64_t row) const {
    return bias ? _mm512_maskz_loadu_ps(there, bias + row) : _mm512_setzero_ps();
  }
};

// Sixteen rows of sums, ``width`` apart, turned: a vector for each column, times ``scale`` plus ``add``.
static inline void turn(__m512 turned[16], const float* sums, int64_t width, __m512 scale, __m512 add) {
  __m512i block[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; r++) block[r] = _mm512_castps_si512(_mm512_loadu_ps(sums + r * width));
  small_bf16_product::transpose(block);
#pragma GCC unroll 16
  for (int r = 0; r < 16; r++) turned[r] = _mm512_fmadd_ps(_mm512_castsi512_ps(block[r]), scale, add);
}

// y[i][first + j] = sums[j][i], scaled and with its bias, for i in [0, m) and j in [0, count): rows of sums are ``width``
// apart, of y n. Of y, whole lines are written where there are any.
static void turn_back(uint16_t* y, int64_t n, const float* sums, int64_t width, const Ending& ending, int64_t m,
                      int64_t first, int64_t count) {
  for (int64_t i = 0; i < m; i += 16)
    for (int64_t j = 0; j < count; j += 32) {
      __mmask32 there = count - j < 32 ? (1u << (count - j)) - 1 : ~0u;
      __mmask16 low = (__mmask16)there, high = (__mmask16)(there >> 16);
      int64_t row = first + j;
      __m512 left[16], right[16];
      turn(left, sums + j * width + i, width, ending.scales(low, row), ending.biases(low, row));
      turn(right, sums + (j + 16) * width + i, width, ending.scales(high, row + 16), ending.biases(high, row + 16));
      int64_t rows = std::min<int64_t>(16, m - i);
      for (int64_t r = 0; r < rows; r++)
        _mm512_mask_storeu_epi16(y + (i + r) * n + row, there, (__m512i)_mm512_cvtne2ps_pbh(right[r], left[r]));
    }
}

// y is contiguous; k is even, all are at least one. ``rows_of``, called with a row of W and the count of rows from there,
// at most CHUNK, gives where they lie, k elements apart, until it is called again by the same thread. Parallel: called
// with a count, how many of it pay for a thread, and a function of the first and last of a part.
template <class RowsOf, class Parallel>
static void multiply(const Form& form, const uint32_t* packed, RowsOf rows_of, const Ending& ending, uint16_t* y,
                     int64_t n, Parallel parallel) {
  int64_t m = form.m, k = form.k, width = form.width();
  parallel((n + CHUNK - 1) / CHUNK, 1 + PAYS / (CHUNK * m * k + 1), [&](int64_t begin, int64_t end) {
    std::unique_ptr<float[]> sums(new float[CHUNK * width]);
    for (int64_t chunk = begin; chunk < end; chunk++) {
      int64_t rows = std::min(CHUNK, n - chunk * CHUNK);
      const uint16_t* from = rows_of(chunk * CHUNK, rows);
      for (int64_t first = 0; first < k; first += DEEP)
        for (int64_t r = 0; r < rows; r += ROWS)
          for (int64_t row = 0; row < m; row += WIDE * 16)
            form.with_vectors(row, [&](auto vectors) {
              multiply_panel<vectors>(std::min<int64_t>(ROWS, rows - r), (const char*)(from + r * k + first), 2 * k,
                                      packed + form.panel(row, first), form.deep(first) / 2,
                                      sums.get() + r * width + row, width, first == 0);
            });
      turn_back(y, n, sums.get(), width, ending, m, chunk * CHUNK, rows);
    }
  });
}

}  // namespace rdukit::bf16_linear
#pragma GCC pop_options
#endif

// Rows of bf16 against int8 weights by products of integers, at the speed at which memory delivers the weights.
//
// x is rounded to 16 bits of its row's largest element, twice as many as bf16 has; a sum of products is exact in 32 bits
// over SPAN elements and then goes on in float. Widening each weight to a float instead takes three times the
// instructions, more than there is time for while its line of memory arrives.
#pragma once
#include <cmath>
#include <memory>

#include "row_linear.h"

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace rdukit {

// Elements whose products sum up within 32 bits: 2048 / 8 lanes * 128 * 32767 < 2^31.
constexpr int64_t SPAN = 2048;

// Rows of x as multiples of a step of each row.
struct Rounded {
  std::unique_ptr<int16_t[]> data;
  std::unique_ptr<float[]> steps;
};

// False if a row holds what has no such form: infinities, no numbers, or nothing above the smallest steps but zeros.
static inline bool round_rows(const float* x, int64_t x_stride, int64_t m, int64_t k, Rounded* made) {
  constexpr float LEAST = 1e-30f, MOST = 3e38f;
  made->data.reset(new int16_t[m * k]);
  made->steps.reset(new float[m]);
  for (int64_t r = 0; r < m; r++) {
    const float* from = x + r * x_stride;
    float largest = 0;
    bool is_usual = true;
    for (int64_t i = 0; i < k; i++) {
      float size = std::fabs(from[i]);
      is_usual &= size <= MOST;
      largest = size > largest ? size : largest;
    }
    if (!is_usual || (largest > 0 && largest < LEAST)) return false;
    float step = largest / 32767, inverse = largest > 0 ? 32767 / largest : 0;
    made->steps[r] = step;
    for (int64_t i = 0; i < k; i++) {
      float scaled = from[i] * inverse;
      made->data[r * k + i] = (int16_t)(int32_t)(scaled + (scaled < 0 ? -0.5f : 0.5f));
    }
  }
  return true;
}

// One row of W against M rows of x [M, k], which lie one after another.
template <int M, Reading R>
static inline void one_row(const int16_t* x, const int8_t* w, int64_t k, float* sums) {
  for (int m = 0; m < M; m++) sums[m] = 0;
  for (int64_t first = 0; first < k; first += SPAN) {
    int64_t last = first + SPAN < k ? first + SPAN : k, i = first;
#if defined(__AVX2__)
    constexpr int UNROLL = M == 1 ? 4 : M == 2 ? 2 : 1;
    constexpr int STEP = UNROLL * 16, LINE = 64, AHEAD = 1024;
    __m256i acc[M][UNROLL];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
      for (int u = 0; u < UNROLL; u++) acc[m][u] = _mm256_setzero_si256();
    for (; i + STEP <= last; i += STEP) {
      if (R == Reading::AHEAD && i % LINE == 0) __builtin_prefetch((const char*)(w + i) + AHEAD);
#pragma GCC unroll 4
      for (int u = 0; u < UNROLL; u++) {
        __m256i ws = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(w + i + u * 16)));
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
          __m256i xs = _mm256_loadu_si256((const __m256i*)(x + m * k + i + u * 16));
          acc[m][u] = _mm256_add_epi32(acc[m][u], _mm256_madd_epi16(ws, xs));
        }
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
      for (int u = 1; u < UNROLL; u++) acc[m][0] = _mm256_add_epi32(acc[m][0], acc[m][u]);
      sums[m] += total_of_eight(_mm256_cvtepi32_ps(acc[m][0]));
    }
#endif
    for (; i < last; i++)
      for (int m = 0; m < M; m++) sums[m] += (float)((int32_t)w[i] * x[m * k + i]);
  }
}

// y[M, first:last] of y[M, N] for M rows of x from row ``row`` on.
template <int M, class Y>
static void rows(const Rounded& x, int64_t row, const int8_t* w, const float* scale, const float* bias, Y* y, int64_t n,
                 int64_t k, int64_t first, int64_t last) {
  for (int64_t r = first; r < last; r++) {
    float sums[M];
    one_row<M, READING>(x.data.get() + row * k, w + r * k, k, sums);
    for (int m = 0; m < M; m++) {
      float v = sums[m] * x.steps[row + m] * scale[r];
      store(y + m * n + r, bias ? v + bias[r] : v);
    }
  }
}

}  // namespace rdukit
#pragma GCC pop_options

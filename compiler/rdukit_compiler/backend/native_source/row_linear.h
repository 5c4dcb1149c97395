// Linear layers with few rows, y[M,N] = x[M,K] W[N,K]^T, at the speed at which memory delivers W.
//
// W is float, bf16 (as uint16_t) or int8 with one scale a row; x and y are float or bf16; sums are in float.
// Written with GCC's vector types, so that one source serves every processor; -march decides the width.
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#ifndef RDUKIT_ROWS_SWEEP
#define RDUKIT_ROWS_SWEEP 0
#endif

// Inlined where other options hold too, which GCC does not do by itself.
#define RDUKIT_INLINE static inline __attribute__((always_inline))

#pragma GCC push_options
#pragma GCC optimize("O3", "fp-contract=fast")

namespace rdukit {

// How rows of W are read (``Routes.rows``): a SWEEP leaves it to the processor to run ahead of the one row that is
// read; AHEAD, on processors that do not run far enough, asks for lines before their use and reads floats' rows by eight.
enum class Reading { AHEAD = 0, SWEEP = 1 };
constexpr Reading READING = (Reading)RDUKIT_ROWS_SWEEP;

#if defined(__AVX512F__)
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif
typedef float Lanes __attribute__((vector_size(LANES * 4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));

struct bf16 {
  uint16_t bits;
};

template <class To, class From>
RDUKIT_INLINE To load_as(const From* from) {
  To to;
  std::memcpy(&to, from, sizeof to);
  return to;
}

RDUKIT_INLINE Lanes load(const float* p) { return load_as<Lanes>(p); }

RDUKIT_INLINE Lanes load(const bf16* p) {
#if defined(__AVX512F__)
  return (Lanes)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
#elif defined(__AVX2__)
  return (Lanes)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
#else
  return (Lanes)(__builtin_convertvector(load_as<Halves>(p), Words) << 16);
#endif
}

RDUKIT_INLINE Lanes load(const int8_t* p) {
#if defined(__AVX512F__)
  return (Lanes)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
  return (Lanes)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
  Lanes lanes;
  for (int i = 0; i < LANES; i++) lanes[i] = (float)p[i];
  return lanes;
#endif
}

RDUKIT_INLINE float value(float v) { return v; }
RDUKIT_INLINE float value(int8_t v) { return (float)v; }
RDUKIT_INLINE float value(bf16 v) {
  uint32_t bits = (uint32_t)v.bits << 16;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

RDUKIT_INLINE void store(float* to, float v) { *to = v; }
RDUKIT_INLINE void store(bf16* to, float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) {
    to->bits = 0x7fc0;
    return;
  }
  to->bits = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#if defined(__AVX2__)
RDUKIT_INLINE float total_of_eight(__m256 v) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
#endif

// The sum of the lanes, halves first.
RDUKIT_INLINE float total(Lanes v) {
#if defined(__AVX512F__)
  return total_of_eight(_mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1)));
#elif defined(__AVX2__)
  return total_of_eight((__m256)v);
#else
  for (int half = LANES / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) v[i] += v[i + half];
  return v[0];
#endif
}

// Each two vectors as one: lanes whose number has the bit HALF from the second, the others from the first, each with its
// neighbour HALF further added.
template <int HALF, int... I>
RDUKIT_INLINE Lanes added_pairs(Lanes a, Lanes b, std::integer_sequence<int, I...>) {
  constexpr Words LOW = {(I & HALF ? LANES + I - HALF : I)...}, HIGH = {(I & HALF ? LANES + I : I + HALF)...};
  return __builtin_shuffle(a, b, LOW) + __builtin_shuffle(a, b, HIGH);
}

// The sums of each of LANES vectors, one in a lane.
template <int HALF = 1>
RDUKIT_INLINE Lanes totals(Lanes* v) {
  if constexpr (HALF == LANES) {
    return v[0];
  } else {
#pragma GCC unroll 8
    for (int j = 0; j < LANES / HALF / 2; j++)
      v[j] = added_pairs<HALF>(v[2 * j], v[2 * j + 1], std::make_integer_sequence<int, LANES>{});
    return totals<2 * HALF>(v);
  }
}

// One row of W against M rows of x. With AHEAD, W is asked for a little before its use: a core has too few loads in
// flight to wait for each line of memory, the more so the narrower W's elements are.
template <int M, Reading R, class W>
static inline void one_row(const float* x, int64_t x_stride, const W* w, int64_t k, float* sums) {
  constexpr int UNROLL = M == 1 ? (R == Reading::AHEAD || sizeof(W) == 1 ? 4 : 2) : M == 2 ? 2 : 1;
  constexpr int STEP = UNROLL * LANES;
  constexpr int LINE = 64 / sizeof(W);  // elements of a cache line
  constexpr int AHEAD = 1024;           // bytes
  Lanes acc[M][UNROLL];
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 4
    for (int u = 0; u < UNROLL; u++) acc[m][u] = Lanes{};
  int64_t i = 0;
  for (; i + STEP <= k; i += STEP) {
    if (R == Reading::AHEAD && (STEP >= LINE || i % LINE == 0))
#pragma GCC unroll 4
      for (int b = 0; b < (STEP > LINE ? STEP : LINE); b += LINE)
        __builtin_prefetch((const char*)(w + i + b) + AHEAD);
#pragma GCC unroll 4
    for (int u = 0; u < UNROLL; u++) {
      Lanes ws = load(w + i + u * LANES);
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) acc[m][u] += ws * load(x + m * x_stride + i + u * LANES);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; m++) {
    Lanes all = acc[m][0];
#pragma GCC unroll 4
    for (int u = 1; u < UNROLL; u++) all += acc[m][u];
    sums[m] = total(all);
  }
  for (; i < k; i++)
    for (int m = 0; m < M; m++) sums[m] += value(w[i]) * x[m * x_stride + i];
}

// ROWS rows of W at once, so that each part of x is loaded once for all of them. Of a float W the processor follows
// several streams ahead by itself, as long as there is little to compute for each.
template <int M, int ROWS, class W>
static inline void many_rows(const float* x, int64_t x_stride, const W* w, int64_t k, float (*sums)[ROWS]) {
  constexpr int LINE = 64 / sizeof(W);  // elements of a cache line
  constexpr int AHEAD = 2048;           // bytes beyond the next rows; into the second cache, as the first has few waits
  Lanes acc[M][ROWS];
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) acc[m][r] = Lanes{};
  int64_t i = 0;
  for (; i + LANES <= k; i += LANES) {
    Lanes xs[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      xs[m] = load(x + m * x_stride + i);
#if defined(__AVX512F__)
      asm("" : "+v"(xs[m]));  // stays in its register, rather than to be loaded for each row again
#endif
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
      Lanes ws = load(w + r * k + i);
      if (M > 1 && (LANES >= LINE || i % LINE == 0))
        __builtin_prefetch((const char*)(w + (ROWS + r) * k + i) + AHEAD, 0, 2);
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) acc[m][r] += ws * xs[m];
    }
  }
  if constexpr (M * ROWS == LANES) {
    Lanes all = totals(&acc[0][0]);
    std::memcpy(&sums[0][0], &all, sizeof all);
  } else {
    for (int m = 0; m < M; m++)
      for (int r = 0; r < ROWS; r++) sums[m][r] = total(acc[m][r]);
  }
  for (int m = 0; m < M && i < k; m++)
    for (int r = 0; r < ROWS; r++)
      for (int64_t j = i; j < k; j++) sums[m][r] += value(w[r * k + j]) * x[m * x_stride + j];
}

// y[M, first:last] of y[M,N]; x is float with rows of x_stride elements.
template <int M, Reading R = M <= 2 ? READING : Reading::AHEAD, class W, class Y>
static void rows(const float* x, int64_t x_stride, const W* w, const float* scale, const float* bias, Y* y, int64_t n,
                 int64_t k, int64_t first, int64_t last) {
  auto put = [&](int m, int64_t r, float v) {
    if (scale) v *= scale[r];
    if (bias) v += bias[r];
    store(y + m * n + r, v);
  };
  int64_t r = first;
  if constexpr (R == Reading::AHEAD && (sizeof(W) == sizeof(float) || M > 2)) {
    constexpr int ROWS = M == 1 ? 8 : M < 5 ? 4 : 2;
    for (; r + ROWS <= last; r += ROWS) {
      float sums[M][ROWS];
      many_rows<M, ROWS>(x, x_stride, w + r * k, k, sums);
      for (int m = 0; m < M; m++)
        for (int j = 0; j < ROWS; j++) put(m, r + j, sums[m][j]);
    }
  }
  for (; r < last; r++) {
    float sums[M];
    one_row<M, R>(x, x_stride, w + r * k, k, sums);
    for (int m = 0; m < M; m++) put(m, r, sums[m]);
  }
}

}  // namespace rdukit
#pragma GCC pop_options

// Few rows against weights of four bits, y[M,N] = x[M,K] W[N,K]^T, a scale for each GROUP of elements of a row of W.
//
// A row of W is in units of four groups, a cache line each: 32 words of four numbers, which are 8 less than what their
// bits say. Number p of word i is that of group i / 2 % 4 and its element 8 p + i / 8 * 2 + i % 2. So a vector of words
// shifted by 4 p has pairs of which each lane's are of one group, whose sums its scale multiplies at the unit's end.
// Behind K, a multiple of GROUP, there are zeros. x is brought into the same order, once for all of W.
#pragma once
#include <algorithm>

#include "row_int8.h"
#include "row_linear.h"

#pragma GCC push_options
#pragma GCC optimize("O3", "fp-contract=fast")

namespace rdukit::int4 {

constexpr int64_t GROUP = 32, GROUPS = 4, UNIT = GROUP * GROUPS, UNIT_BYTES = UNIT / 2;
constexpr int64_t PLANES = 4, WORDS = 32;  // numbers of a word, and words of a unit

// Rows of W: ``data`` [N, units, UNIT_BYTES], ``scales`` [N, groups].
struct Weights {
  const uint8_t* data;
  const bf16* scales;
  int64_t k;
  int64_t groups() const { return k / GROUP; }
  int64_t units() const { return (k + UNIT - 1) / UNIT; }
  int64_t width() const { return units() * UNIT; }  // elements of a row with the zeros behind it
  int64_t row_bytes() const { return units() * UNIT_BYTES; }
};

// The element of a unit that is at ``place``, 32 p + i.
constexpr int64_t element_at(int64_t place) {
  int64_t p = place / WORDS, i = place % WORDS;
  return i / 2 % GROUPS * GROUP + 8 * p + i / 8 * 2 + i % 2;
}

// A row of x, ``step`` apart, in the order of W, with zeros behind.
template <class T>
static inline void order(T* to, const T* from, int64_t step, int64_t k) {
  for (int64_t unit = 0; unit < k; unit += UNIT, to += UNIT)
    for (int64_t place = 0; place < UNIT; place++) {
      int64_t i = unit + element_at(place);
      to[place] = i < k ? from[i * step] : T{};
    }
}

// A row of W as floats, or as bf16, which holds each number exactly if its scale has at most five digits; in W's order.
template <class T>
static inline void widen(T* to, const Weights& w, int64_t row) {
  const uint8_t* from = w.data + row * w.row_bytes();
  const bf16* scales = w.scales + row * w.groups();
  for (int64_t unit = 0; unit < w.units(); unit++, from += UNIT_BYTES) {
    uint16_t words[WORDS];
    std::memcpy(words, from, sizeof words);
    float own[GROUPS]{}, factors[WORDS];
    for (int64_t g = 0; g < GROUPS && unit * GROUPS + g < w.groups(); g++) own[g] = value(scales[unit * GROUPS + g]);
    for (int64_t i = 0; i < WORDS; i++) factors[i] = own[i / 2 % GROUPS];
    for (int64_t p = 0; p < PLANES; p++, to += WORDS)
      for (int64_t i = 0; i < WORDS; i += LANES) {  // in vectors' types, as sections are compiled to make none of loops
        Words numbers = (__builtin_convertvector(load_as<Halves>(words + i), Words) >> (uint32_t)(4 * p)) & 15;
        Lanes v = (__builtin_convertvector(numbers, Lanes) - 8) * load(factors + i);
        if constexpr (sizeof(T) == sizeof(float)) {
          std::memcpy(to + i, &v, sizeof v);
        } else {  // cut off: nothing is lost
          Halves halves = __builtin_convertvector((Words)v >> 16, Halves);
          std::memcpy(to + i, &halves, sizeof halves);
        }
      }
  }
}

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
// Rows of x as multiples of a step each, in W's order, and what their products begin with, as W's numbers are 8 less:
// -8 times the sums of each lane's elements, [M, units, 16].
struct OrderedRows {
  std::unique_ptr<int16_t[]> data;
  std::unique_ptr<int32_t[]> starts;
  OrderedRows(const Rounded& x, int64_t m, int64_t k, int64_t width)
      : data(new int16_t[m * width]), starts(new int32_t[m * width / 8]) {
    for (int64_t r = 0; r < m; r++) order(data.get() + r * width, x.data.get() + r * k, 1, k);
    for (int64_t u = 0; u < m * width / UNIT; u++)
      for (int64_t lane = 0; lane < 16; lane++) {
        const int16_t* from = data.get() + u * UNIT + 2 * lane;
        int32_t sum = 0;
        for (int64_t p = 0; p < PLANES; p++) sum += from[p * WORDS] + from[p * WORDS + 1];
        starts[u * 16 + lane] = -8 * sum;
      }
  }
};

// Four scales, those of the groups that there are, to each four lanes.
static inline __m512 factors_of(const bf16* scales, __mmask8 there) {
  __m128i four = _mm_slli_epi32(_mm_cvtepu16_epi32(_mm_maskz_loadu_epi16(there, scales)), 16);
  return _mm512_castsi512_ps(_mm512_broadcast_i32x4(four));
}

// The products of M rows of x with ROWS of W.
template <int M, int ROWS>
static void tile(const int16_t* x, const int32_t* starts, const Weights& w, int64_t row, bool is_ahead,
                 float (*to)[ROWS]) {
  constexpr int64_t AHEAD = 1024;  // bytes
  int64_t units = w.units(), groups = w.groups(), width = w.width();
  const uint8_t* data = w.data + row * w.row_bytes();
  const bf16* scales = w.scales + row * groups;
  const __m512i MASK = _mm512_set1_epi16(15);
  __m512 all[M][ROWS];
#pragma GCC unroll 16
  for (int m = 0; m < M; m++)
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) all[m][r] = _mm512_setzero_ps();
  for (int64_t u = 0; u < units; u++) {
    __m512i sums[M][ROWS];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) sums[m][r] = _mm512_loadu_si512(starts + (m * units + u) * 16);
#pragma GCC unroll 4
    for (int p = 0; p < PLANES; p++) {
      __m512i ws[ROWS];
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) {
        const uint8_t* line = data + (r * units + u) * UNIT_BYTES;
        if (p == 0 && is_ahead) __builtin_prefetch(line + (ROWS * units) * UNIT_BYTES + AHEAD, 0, 2);
        ws[r] = _mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(line), 4 * p), MASK);
        asm("" : "+v"(ws[r]));
      }
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) {
        __m512i xs = _mm512_loadu_si512(x + m * width + u * UNIT + p * WORDS);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) sums[m][r] = _mm512_dpwssd_epi32(sums[m][r], ws[r], xs);
      }
    }
    __mmask8 there = (1u << std::min(GROUPS, groups - u * GROUPS)) - 1;
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
      __m512 factors = factors_of(scales + r * groups + u * GROUPS, there);
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) all[m][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[m][r]), factors, all[m][r]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; m++)
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) to[m][r] = total((Lanes)all[m][r]);
}

// Sums of M rows of x with the rows of W from first up to last: put(row of x, row of W, sum). Of W the rows after them
// are asked for ahead if it is_ahead.
template <int M, class Put>
static void rows(const int16_t* x, const int32_t* starts, const Weights& w, int64_t first, int64_t last, bool is_ahead,
                 Put put) {
  constexpr int ROWS = 8;
  int64_t row = first;
  auto some = [&](auto count) {
    float sums[M][count];
    tile<M, count>(x, starts, w, row, is_ahead, sums);
    for (int m = 0; m < M; m++)
      for (int r = 0; r < count; r++) put(m, row + r, sums[m][r]);
    row += count;
  };
  while (row + ROWS <= last) some(std::integral_constant<int, ROWS>{});
  while (row < last) some(std::integral_constant<int, 1>{});
}
#endif

}  // namespace rdukit::int4
#pragma GCC pop_options

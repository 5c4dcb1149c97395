// Rows of x against weights of four bits, y[M,N] = x[M,K] W[N,K]^T: the products with BLOCK rows of W, a lane for each.
//
// W lies in blocks of BLOCK rows; the last has as many as are left. A block is in groups of GROUP elements, a group in
// LINES lines with a word for each row. Byte i of a word of line j has element 8 j + i of the group in its low half and
// element 8 j + 4 + i in its high half, each 8 more than the number. Scales are [blocks, groups, rows of the block].
// The words of a line meet the same elements of x, which a load spreads over all lanes, and of a group each lane has one
// scale for all of its products.
//
// x is rounded to 16 bits of its row's largest element and cut in two signed bytes, 256 high + low. The sum of a group is
// an exact integer, which a float holds; groups are added up in float.
#pragma once
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <memory>
#include <type_traits>

#include "row_linear.h"

// Inlined, and of no object.
#define RDUKIT_LANES static inline __attribute__((always_inline))

#pragma GCC push_options
#pragma GCC optimize("O3", "fp-contract=fast")

namespace rdukit::int4 {

constexpr int64_t GROUP = 32, BLOCK = 16, LINES = 4, WORD = 4;  // WORD in bytes

// W [n, k] as above: ``data`` has n * k / 2 bytes, ``scales`` n * k / GROUP; k is a multiple of GROUP.
struct Weights {
  const uint8_t* data;
  const bf16* scales;
  int64_t n, k;
  int64_t groups() const { return k / GROUP; }
  int64_t blocks() const { return (n + BLOCK - 1) / BLOCK; }
  int64_t block_bytes() const { return BLOCK * k / 2; }
};

// Some lanes of a block: where their part of each line is, their first row, how many they are, and the block's rows.
struct Part {
  const uint8_t* lines;
  const bf16* scales;
  int64_t row, there, rows;
  Part() = default;
  Part(const Weights& w, int64_t first_row, int64_t lanes) : row(first_row) {
    int64_t block = first_row / BLOCK, lane = first_row % BLOCK;
    rows = std::min(BLOCK, w.n - block * BLOCK);
    there = std::min(lanes, rows - lane);
    lines = w.data + block * w.block_bytes() + lane * WORD;
    scales = w.scales + block * BLOCK * w.groups() + lane;
  }
};

// Rows of x in bytes [m, k], what the sums of their groups begin with, as numbers are 8 less [m, groups], and steps [m].
struct Bytes {
  std::unique_ptr<int8_t[]> high, low;
  std::unique_ptr<int32_t[]> starts;
  std::unique_ptr<float[]> steps;
  Bytes(int64_t m, int64_t k)
      : high(new int8_t[m * k]), low(new int8_t[m * k]), starts(new int32_t[m * (k / GROUP)]), steps(new float[m]) {}

  void cut(int64_t row, const int32_t* numbers, int64_t k, float step) {
    steps[row] = step;
    for (int64_t g = 0; g < k / GROUP; g++) {
      int32_t sum = 0;
      for (int64_t i = g * GROUP; i < (g + 1) * GROUP; i++) {
        int32_t upper = (numbers[i] + 128) >> 8;
        high[row * k + i] = (int8_t)upper;
        low[row * k + i] = (int8_t)(numbers[i] - 256 * upper);
        sum += numbers[i];
      }
      starts[row * (k / GROUP) + g] = -8 * sum;
    }
  }
};

static inline int32_t nearest(float v) { return (int32_t)(v + (v < 0 ? -0.5f : 0.5f)); }

// Rows of floats as multiples of a step each; if IS_TWICE as two rows each, the second of what the first leaves. Null if
// a row has no such form: it holds infinities, no numbers, or nothing above the smallest steps but zeros.
template <bool IS_TWICE>
static std::unique_ptr<Bytes> bytes_of(const float* x, int64_t x_stride, int64_t m, int64_t k) {
  // FINER: a rounding leaves half a step, and up to 0.506 of one as steps and products are rounded, too.
  constexpr float LEAST = 1e-30f, MOST = 3e38f, STEPS = 127 * 256 + 127, FINER = 64000;
  auto made = std::make_unique<Bytes>(IS_TWICE ? 2 * m : m, k);
  std::unique_ptr<int32_t[]> numbers(new int32_t[2 * k]);
  int32_t* fine = numbers.get() + k;
  for (int64_t r = 0; r < m; r++) {
    const float* from = x + r * x_stride;
    float largest = 0;
    bool is_usual = true;
    for (int64_t i = 0; i < k; i++) {
      float size = std::fabs(from[i]);
      is_usual &= size <= MOST;
      largest = size > largest ? size : largest;
    }
    if (!is_usual || (largest > 0 && largest < LEAST)) return nullptr;
    float step = largest / STEPS, inverse = largest > 0 ? STEPS / largest : 0;
    for (int64_t i = 0; i < k; i++) numbers[i] = nearest(from[i] * inverse);
    made->cut(IS_TWICE ? 2 * r : r, numbers.get(), k, step);
    if (!IS_TWICE) continue;
    float finer = step / FINER, finer_inverse = step > 0 ? 1 / finer : 0;
    if (step > 0 && finer < FLT_MIN) return nullptr;  // its inverse may be infinite
    for (int64_t i = 0; i < k; i++) fine[i] = nearest(std::fma(-step, (float)numbers[i], from[i]) * finer_inverse);
    made->cut(2 * r + 1, fine, k, finer);
  }
  return made;
}

// Four bytes, as they lie.
RDUKIT_INLINE int32_t word_at(const int8_t* from) { return load_as<int32_t>(from); }

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define RDUKIT_INT4_BYTES 1
// Products of bytes whose sums of four are added in 32 bits.
struct Vector {
  static constexpr int LANES = 16, MOST = 8;  // MOST: rows of x at a time
  static constexpr int parts(int m) { return m <= 2 ? 4 : m <= 4 ? 2 : 1; }  // so that sums stay in registers
  using Ints = __m512i;
  using Sums = __m512;
  RDUKIT_LANES Ints zero() { return _mm512_setzero_si512(); }
  RDUKIT_LANES Ints begin(int32_t start) { return _mm512_set1_epi32(start); }
  RDUKIT_LANES Ints spread(int32_t word) { return _mm512_set1_epi32(word); }
  RDUKIT_LANES Ints load(const uint8_t* from, int64_t there) {
    return there == LANES ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi32((1u << there) - 1, from);
  }
  RDUKIT_LANES Ints lower(Ints v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
  RDUKIT_LANES Ints upper(Ints v) { return lower(_mm512_srli_epi16(v, 4)); }
  RDUKIT_LANES Ints add(Ints sum, Ints w, Ints x) { return _mm512_dpbusd_epi32(sum, w, x); }
  RDUKIT_LANES Sums end(Ints high, Ints low, int32_t) {
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
  }
  RDUKIT_LANES Sums factors(const bf16* from, int64_t there) {
    __m256i bits = there == LANES ? _mm256_loadu_si256((const __m256i*)from)
                                  : _mm256_maskz_loadu_epi16((1u << there) - 1, from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
};
#elif defined(__AVX2__)
#define RDUKIT_INT4_BYTES 1
// Products of bytes whose sums of two are added in 16 bits: those of a group are at most 8 * 2 * 15 * 128.
struct Vector {
  static constexpr int LANES = 8, MOST = 4;
  static constexpr int parts(int m) { return m == 1 ? 2 : 1; }
  using Ints = __m256i;
  using Sums = __m256;
  RDUKIT_LANES Ints zero() { return _mm256_setzero_si256(); }
  RDUKIT_LANES Ints begin(int32_t) { return zero(); }
  RDUKIT_LANES Ints spread(int32_t word) { return _mm256_set1_epi32(word); }
  RDUKIT_LANES Ints load(const uint8_t* from, int64_t there) {
    if (there == LANES) return _mm256_loadu_si256((const __m256i*)from);
    Ints made = zero();
    std::memcpy(&made, from, there * WORD);
    return made;
  }
  RDUKIT_LANES Ints lower(Ints v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
  RDUKIT_LANES Ints upper(Ints v) { return lower(_mm256_srli_epi16(v, 4)); }
  RDUKIT_LANES Ints add(Ints sum, Ints w, Ints x) { return _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x)); }
  RDUKIT_LANES Sums end(Ints high, Ints low, int32_t start) {
    Ints ones = _mm256_set1_epi16(1), all = _mm256_madd_epi16(low, ones);
    all = _mm256_add_epi32(all, _mm256_slli_epi32(_mm256_madd_epi16(high, ones), 8));
    return _mm256_cvtepi32_ps(_mm256_add_epi32(all, _mm256_set1_epi32(start)));
  }
  RDUKIT_LANES Sums factors(const bf16* from, int64_t there) {
    __m128i bits = _mm_setzero_si128();
    std::memcpy(&bits, from, there * sizeof *from);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
};
#endif

#if RDUKIT_INT4_BYTES
// The products of M rows of x from ``first`` on with R parts of W, the first at ``row``, which are whole if IS_WHOLE:
// put(part of W, sums of the M rows without their steps). Of W what comes later is asked for ahead if it is_ahead.
template <int M, int R, bool IS_WHOLE, class Put>
static void byte_tile(const Bytes& x, int64_t first, const Weights& w, int64_t row, bool is_ahead, Put put) {
  using V = Vector;
  constexpr int64_t AHEAD = 16384;  // bytes, into the second cache
  const int64_t groups = w.groups(), k = w.k;
  const int8_t *high_x = x.high.get() + first * k, *low_x = x.low.get() + first * k;
  const int32_t* starts = x.starts.get() + first * groups;
  Part parts[R];
  for (int r = 0; r < R; r++) parts[r] = Part(w, row + r * V::LANES, V::LANES);
  const int64_t rows = IS_WHOLE ? BLOCK : parts[0].rows, there = IS_WHOLE ? V::LANES : parts[0].there;
  typename V::Sums all[M][R]{};
  for (int64_t g = 0; g < groups; g++) {
    typename V::Ints high[M][R], low[M][R];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) high[m][r] = V::zero(), low[m][r] = V::begin(starts[m * groups + g]);
#pragma GCC unroll 4
    for (int64_t j = 0; j < LINES; j++) {
      typename V::Ints lower[R], upper[R];
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const uint8_t* line = parts[r].lines + (g * LINES + j) * rows * WORD;
        if (is_ahead) __builtin_prefetch(line + AHEAD, 0, 2);
        typename V::Ints both = V::load(line, there);
        lower[r] = V::lower(both);
        upper[r] = V::upper(both);
      }
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) {
        const int64_t at = m * k + g * GROUP + 2 * WORD * j;
        auto high_0 = V::spread(word_at(high_x + at)), high_1 = V::spread(word_at(high_x + at + WORD));
        auto low_0 = V::spread(word_at(low_x + at)), low_1 = V::spread(word_at(low_x + at + WORD));
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
          high[m][r] = V::add(high[m][r], lower[r], high_0);
          low[m][r] = V::add(low[m][r], lower[r], low_0);
          high[m][r] = V::add(high[m][r], upper[r], high_1);
          low[m][r] = V::add(low[m][r], upper[r], low_1);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      auto factors = V::factors(parts[r].scales + g * rows, there);
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) all[m][r] += V::end(high[m][r], low[m][r], starts[m * groups + g]) * factors;
    }
  }
  for (int r = 0; r < R; r++) {
    typename V::Sums sums[M];
    for (int m = 0; m < M; m++) sums[m] = all[m][r];
    put(parts[r], sums);
  }
}

// The same with the blocks of W from first_block up to last_block.
template <int M, class Put>
static void byte_rows(const Bytes& x, int64_t first, const Weights& w, int64_t first_block, int64_t last_block,
                      bool is_ahead, Put put) {
  constexpr int R = Vector::parts(M);
  const int64_t end = std::min(w.n, last_block * BLOCK), whole = end / BLOCK * BLOCK;
  int64_t row = first_block * BLOCK;
  for (; row + R * Vector::LANES <= whole; row += R * Vector::LANES) byte_tile<M, R, true>(x, first, w, row, is_ahead, put);
  for (; row < whole; row += Vector::LANES) byte_tile<M, 1, true>(x, first, w, row, is_ahead, put);
  for (; row < end; row += Vector::LANES) byte_tile<M, 1, false>(x, first, w, row, is_ahead, put);
}
#endif

// The products of M rows of floats with the blocks of W from first_block up to last_block, for rows that have no form in
// bytes and processors without products of bytes: put(part of W, sums of the M rows).
template <int M, class Put>
static void float_rows_of(const float* x, int64_t x_stride, const Weights& w, int64_t first_block, int64_t last_block,
                          Put put) {
  const int64_t end = std::min(w.n, last_block * BLOCK);
  for (int64_t row = first_block * BLOCK; row < end; row += LANES) {
    const Part part(w, row, LANES);
    Lanes all[M]{};
    for (int64_t g = 0; g < w.groups(); g++) {
      Lanes sums[M]{}, factors{};
      for (int64_t i = 0; i < part.there; i++) factors[i] = value(part.scales[g * part.rows + i]);
      for (int64_t j = 0; j < LINES; j++) {
        Words words{};
        std::memcpy(&words, part.lines + (g * LINES + j) * part.rows * WORD, part.there * WORD);
        for (int64_t i = 0; i < 2 * WORD; i++) {
          const uint32_t shift = 8 * (i % WORD) + 4 * (i / WORD);
          // Weights before products: numbers times elements of x may be infinite where products are not.
          const Lanes weights = (__builtin_convertvector((words >> shift) & 15, Lanes) - 8) * factors;
#pragma GCC unroll 8
          for (int m = 0; m < M; m++) sums[m] += weights * x[m * x_stride + g * GROUP + 2 * WORD * j + i];
        }
      }
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) all[m] += sums[m];
    }
    put(part, all);
  }
}

}  // namespace rdukit::int4
#pragma GCC pop_options

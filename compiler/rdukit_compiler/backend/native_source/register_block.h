// A block of a float product whose sums stay in registers: what own products and convolutions are made of.
#pragma once
#include <array>
#include <utility>

#include "row_linear.h"

#define RDUKIT_INLINE inline __attribute__((always_inline))

#pragma GCC push_options
#pragma GCC optimize("O3", "fp-contract=fast")

namespace rdukit {

// Rows of a block of WIDE columns: their sums, a vector of each row's values and a factor fill sixteen registers.
constexpr int BLOCK_ROWS = 6;
constexpr int64_t WIDE = 2 * LANES;
// The same where there are twice as many registers.
constexpr int TALL_ROWS = LANES == 16 ? 2 * BLOCK_ROWS : BLOCK_ROWS;

static RDUKIT_INLINE Lanes lanes_at(const float* p) {
  Lanes lanes;
  __builtin_memcpy(&lanes, p, sizeof lanes);
  return lanes;
}

static RDUKIT_INLINE void put(float* p, Lanes lanes) { __builtin_memcpy(p, &lanes, sizeof lanes); }

// A block of sums in registers, to[r][0, V * LANES) (+)= sum over k of left(k, r) * right(k)[0, V * LANES).
// The count is at least one. Call it from a function of its own: within a larger one, sums would leave the registers.
template <int R, int V, class Left, class Right>
static RDUKIT_INLINE void block(int64_t count, Left left, Right right, float* to, int64_t to_stride, bool is_added) {
  if (count < 1) __builtin_unreachable();
  Lanes sums[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) sums[r][v] = is_added ? lanes_at(to + r * to_stride + v * LANES) : Lanes{};
  for (int64_t k = 0; k < count; k++) {
    const float* from = right(k);
    Lanes values[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) values[v] = lanes_at(from + v * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      float factor = left(k, r);
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) sums[r][v] += factor * values[v];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) put(to + r * to_stride + v * LANES, sums[r][v]);
}

// to[R, WIDE], ``to_stride`` apart, (+)= R rows of left, ``stride`` apart, times a panel [count][WIDE].
template <int R, bool IS_ADDED>
static __attribute__((noinline)) void tall_block(int64_t count, const float* left, int64_t stride, const float* panel,
                                                 float* to, int64_t to_stride) {
  block<R, 2>(
      count, [=](int64_t k, int r) { return left[r * stride + k]; }, [=](int64_t k) { return panel + k * WIDE; }, to,
      to_stride, IS_ADDED);
}

using TallBlock = void (*)(int64_t, const float*, int64_t, const float*, float*, int64_t);
template <bool IS_ADDED, size_t... I>
static constexpr std::array<TallBlock, sizeof...(I)> tall_blocks_of(std::index_sequence<I...>) {
  return {tall_block<I + 1, IS_ADDED>...};
}
// For 1, 2, ... TALL_ROWS rows.
template <bool IS_ADDED>
static constexpr auto TALL_BLOCKS = tall_blocks_of<IS_ADDED>(std::make_index_sequence<TALL_ROWS>{});

}  // namespace rdukit
#pragma GCC pop_options

// Attention's weights from its scores.
#pragma once
#include <limits>

#include "lane_math.h"

#pragma GCC push_options
#pragma GCC optimize("O3", "fp-contract=fast")

namespace rdukit {

// The larger of each two lanes; what is no number stays.
RDUKIT_INLINE Lanes larger(Lanes a, Lanes b) { return b > a || b != b ? b : a; }

// The largest of the lanes.
static inline float largest(Lanes v) {
  Words place;
  for (int i = 0; i < LANES; i++) place[i] = i;
#pragma GCC unroll 4
  for (int half = LANES / 2; half > 0; half /= 2) v = larger(v, __builtin_shuffle(v, place ^ half));
  return v[0];
}

// Scores [count] become weights e^(factor * (score - the highest)), unrounded; gives their sum. If there is none
// above minus infinity they become zeros, and the sum is one, as torch has it. The factor is above zero.
static inline float weigh(float* scores, int64_t count, float factor) {
  constexpr float NOTHING = -std::numeric_limits<float>::infinity();
  Lanes tops = Lanes{} + NOTHING, sums{};
  for (int64_t s = 0; s < count; s += LANES) {
    Lanes here = load_some(scores + s, count - s);
    if (count - s < LANES)
      for (int64_t i = count - s; i < LANES; i++) here[i] = NOTHING;
    tops = larger(tops, here);
  }
  float highest = largest(tops);
  if (highest == NOTHING) {
    for (int64_t s = 0; s < count; s++) scores[s] = 0;
    return 1;
  }
  if (std::isinf(highest * factor)) factor = std::numeric_limits<float>::quiet_NaN();  // as torch, which scales first
  int64_t s = 0;
  for (; s + LANES <= count; s += LANES) {
    Lanes weights = exp_of((load(scores + s) - highest) * factor);
    std::memcpy(scores + s, &weights, sizeof weights);
    sums += weights;
  }
  if (s < count) {
    Lanes weights = exp_of((load_some(scores + s, count - s) - highest) * factor);
    for (int64_t i = count - s; i < LANES; i++) weights[i] = 0;
    store_some(scores + s, weights, count - s);
    sums += weights;
  }
  return total(sums);
}

}  // namespace rdukit
#pragma GCC pop_options

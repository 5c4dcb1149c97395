// exp, sigmoid and tanh of float lanes, within some units in the last place. Coefficients are those of the Cephes library
// (expf, tanhf). What is no number stays none.
#pragma once
#include "row_linear.h"

#pragma GCC push_options
#pragma GCC optimize("O3", "fp-contract=fast")

namespace rdukit {

// Lanes of which ``count`` exist, at most all: the others are zero, and not written.
RDUKIT_INLINE Lanes load_some(const float* from, int64_t count) {
  if (count >= LANES) return load(from);
  Lanes lanes{};
  std::memcpy(&lanes, from, count * sizeof(float));
  return lanes;
}

RDUKIT_INLINE void store_some(float* to, Lanes lanes, int64_t count) {
  if (count >= LANES)
    std::memcpy(to, &lanes, sizeof lanes);
  else
    std::memcpy(to, &lanes, count * sizeof(float));
}

// e^x; above 88 that of 88, and zero where it is below the normal numbers.
RDUKIT_INLINE Lanes exp_of(Lanes x) {
  constexpr float MAGIC = 12582912.0f;  // added to a number, its fraction goes and its whole part is in the low bits
  auto is_zero = x < -87.3f;
  x = x > 88.0f ? Lanes{} + 88.0f : x;
  Lanes shifted = x * 1.44269504088896341f + MAGIC, whole = shifted - MAGIC;
  Lanes r = x - whole * 0.693359375f;
  r = r + whole * 2.12194440e-4f;
  Lanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  Words exponent = ((Words)shifted - 0x4b400000u + 127u) << 23;  // the bits of MAGIC are 0x4b400000
  return is_zero ? Lanes{} : p * (Lanes)exponent;
}

// Zero where e^-x is beyond all numbers, which exp_of does not say: as a factor of large gradients it shows.
RDUKIT_INLINE Lanes sigmoid_of(Lanes x) { return x < -88.722839f ? Lanes{} : 1.0f / (1.0f + exp_of(-x)); }

RDUKIT_INLINE Lanes tanh_of(Lanes x) {
  Lanes z = x * x;
  Lanes p = z * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  return z < 0.390625f ? p * z * x + x : 1.0f - 2.0f / (exp_of(x + x) + 1.0f);
}

}  // namespace rdukit
#pragma GCC pop_options

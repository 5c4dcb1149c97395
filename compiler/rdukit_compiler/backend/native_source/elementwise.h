// Elementwise functions where the vectors' own, or what inductor writes in their place, are wrong: of small numbers, of
// large ones, or at infinity. Each takes and returns vectors of f32 or f64; several vectors are taken one by one.
#pragma once
#include <torch/csrc/inductor/cpp_prefix.h>

#if INDUCTOR_USE_VECTOR_TYPES()
namespace rdukit {

using FloatVector = at::vec::Vectorized<float>;
using DoubleVector = at::vec::Vectorized<double>;

// torch's polynomial is off by 1e-7 whatever the number, which is more than small numbers are. Below a half Taylor's
// series is right to the last bit.
static inline FloatVector erf(const FloatVector& x) {
  static constexpr float terms[] = {1.2055332981789664e-4f, -8.5483270234508528e-4f, 5.2239776254421878e-3f,
                                    -2.6866170645131252e-2f, 1.1283791670955126e-1f, -3.7612638903183752e-1f,
                                    1.1283791670955126f};
  const FloatVector square = x * x;
  FloatVector series(terms[0]);
  for (size_t i = 1; i < sizeof(terms) / sizeof(terms[0]); ++i) {
    series = at::vec::fmadd(series, square, FloatVector(terms[i]));
  }
  return FloatVector::blendv(x.erf(), x * series, x.abs() < FloatVector(0.5f));
}
static inline DoubleVector erf(const DoubleVector& x) { return x.erf(); }

// SLEEF's squares numbers, and what is above 1.8e19 becomes infinite.
template <typename T>
static inline at::vec::Vectorized<T> acosh(const at::vec::Vectorized<T>& x) {
  using Vector = at::vec::Vectorized<T>;
  return Vector::blendv(x.acosh(), x.log() + Vector(T(0.69314718055994530942)), x > Vector(T(1e15)));
}

// Inductor's form divides by the number, and what is near zero becomes zero.
template <typename T>
static inline at::vec::Vectorized<T> asinh(const at::vec::Vectorized<T>& x) {
  using Vector = at::vec::Vectorized<T>;
  const Vector one(T(1)), size = x.abs(), inverse = one / size;
  const Vector rest = (one / (one + inverse)) / ((one + inverse * inverse).sqrt() + inverse);
  const Vector large = (size.log1p() + rest.log1p()).copysign(x);
  return Vector::blendv(large, x, size < Vector(T(1e-6)));
}

// torch's Newton steps in f32 lose digits near one.
static inline FloatVector erfinv(const FloatVector& x) {
  alignas(alignof(FloatVector)) float lanes[FloatVector::size()];
  x.store(lanes);
  for (auto& lane : lanes) lane = static_cast<float>(calc_erfinv(static_cast<double>(lane)));
  return FloatVector::loadu(lanes);
}
static inline DoubleVector erfinv(const DoubleVector& x) { return x.erfinv(); }

#define RDUKIT_EACH_VECTOR(NAME)                                                          \
  template <typename T, int N>                                                            \
  static inline at::vec::VectorizedN<T, N> NAME(const at::vec::VectorizedN<T, N>& x) {    \
    at::vec::VectorizedN<T, N> made;                                                      \
    for (int i = 0; i < N; ++i) made[i] = NAME(x[i]);                                     \
    return made;                                                                          \
  }
RDUKIT_EACH_VECTOR(erf)
RDUKIT_EACH_VECTOR(acosh)
RDUKIT_EACH_VECTOR(asinh)
RDUKIT_EACH_VECTOR(erfinv)
#undef RDUKIT_EACH_VECTOR

}  // namespace rdukit
#endif

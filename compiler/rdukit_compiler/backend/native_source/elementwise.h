// Elementwise functions where the vectors' own, or what inductor writes in their place, are wrong: of small numbers, of
// large ones, or at infinity. Each takes and returns vectors of f32 or f64; several vectors are taken one by one.
#pragma once
#include <torch/csrc/inductor/cpp_prefix.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace rdukit {

// Quotients of whole numbers. By zero an error is noted, as inductor does for remainders; the processor would end the
// program, as it does where the quotient is too large: the least number by -1 is itself.
template <typename A, typename B>
static inline auto quotient(A a, B b) -> std::common_type_t<A, B> {
  using Number = std::common_type_t<A, B>;
  if (C10_UNLIKELY_OR_CONST(Number(b) == Number(0))) {
    inductor_cpu_note_integer_div_by_zero();
    return Number(0);
  }
  if (std::is_signed_v<Number> && Number(b) == Number(-1)) return Number(Number(0) - Number(a));
  return Number(Number(a) / Number(b));
}
template <typename A, typename B>
static inline auto floor_quotient(A a, B b) -> std::common_type_t<A, B> {
  using Number = std::common_type_t<A, B>;
  const Number made = quotient(a, b);
  const bool is_whole = Number(b) == Number(0) || Number(Number(a) - Number(made * Number(b))) == Number(0);
  return !is_whole && (Number(a) < Number(0)) != (Number(b) < Number(0)) ? Number(made - Number(1)) : made;
}

// torch's Newton steps take erf(x) - y, which has no digits left near one; erfc has them.
static inline double erfinv(double x) {
  double made = calc_erfinv(x);
  const double size = std::abs(x), rest = 1.0 - size;
  if (!(size > 0.5) || !(rest > 0.0)) return made;
  made = std::abs(made);
  for (int i = 0; i < 2; ++i) made += (std::erfc(made) - rest) * 0.88622692545275801365 * std::exp(made * made);
  return std::copysign(made, x);
}
static inline float erfinv(float x) { return static_cast<float>(erfinv(static_cast<double>(x))); }

// A float as a whole number of 64 bits, by the processor's instruction: what the compiler knows and 64 bits cannot hold it
// makes the largest number, the processor the least.
template <typename T>
static inline int64_t whole_of(T x) {
#if defined(__x86_64__)
  return _mm_cvttsd_si64(_mm_set_sd(static_cast<double>(x)));
#else
  return static_cast<int64_t>(x);
#endif
}

#if INDUCTOR_USE_VECTOR_TYPES()
#define RDUKIT_EACH_LANE(NAME)                                                                                   \
  template <typename T>                                                                                          \
  static inline at::vec::Vectorized<T> NAME(const at::vec::Vectorized<T>& a, const at::vec::Vectorized<T>& b) {  \
    using Vector = at::vec::Vectorized<T>;                                                                       \
    alignas(alignof(Vector)) T made[Vector::size()];                                                             \
    alignas(alignof(Vector)) T divisors[Vector::size()];                                                         \
    a.store(made);                                                                                               \
    b.store(divisors);                                                                                           \
    for (int i = 0; i < Vector::size(); ++i) made[i] = NAME(made[i], divisors[i]);                               \
    return Vector::loadu(made);                                                                                  \
  }                                                                                                              \
  template <typename T, int N>                                                                                   \
  static inline at::vec::VectorizedN<T, N> NAME(const at::vec::VectorizedN<T, N>& a,                             \
                                                const at::vec::VectorizedN<T, N>& b) {                           \
    at::vec::VectorizedN<T, N> made;                                                                             \
    for (int i = 0; i < N; ++i) made[i] = NAME(a[i], b[i]);                                                      \
    return made;                                                                                                 \
  }
RDUKIT_EACH_LANE(quotient)
RDUKIT_EACH_LANE(floor_quotient)
#undef RDUKIT_EACH_LANE

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

template <typename T>
static inline at::vec::Vectorized<T> erfinv(const at::vec::Vectorized<T>& x) {
  alignas(alignof(at::vec::Vectorized<T>)) T lanes[at::vec::Vectorized<T>::size()];
  x.store(lanes);
  for (auto& lane : lanes) lane = erfinv(lane);
  return at::vec::Vectorized<T>::loadu(lanes);
}

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
#endif

}  // namespace rdukit

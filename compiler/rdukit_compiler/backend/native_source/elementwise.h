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

// Polynomials by their recurrences, each step with one rounding less, as torch's library has it: a sum that cancels shows
// the difference. Beyond a few degrees, or within [-1, 1], torch's own function computes.
template <typename T>
static inline bool is_degree(T n) {
  return n >= T(2) && n <= T(64);
}
template <typename T, typename Step>
static inline T recurring(T before, T made, T n, Step step) {
  for (int k = 1; k < static_cast<int>(n); ++k) {
    const T next = step(T(k), made, before);
    before = made;
    made = next;
  }
  return made;
}
template <typename T>
static inline T hermite_polynomial_he(T x, T n) {
  if (!is_degree(n)) return hermite_polynomial_he_forward(x, n);
  return recurring(T(1), x, n, [x](T k, T made, T before) { return std::fma(x, made, -(k * before)); });
}
template <typename T>
static inline T hermite_polynomial_h(T x, T n) {
  if (!is_degree(n)) return hermite_polynomial_h_forward(x, n);
  const T twice = x + x;
  return recurring(T(1), twice, n, [twice](T k, T made, T before) { return std::fma(twice, made, -((k + k) * before)); });
}
template <typename T>
static inline T laguerre_polynomial_l(T x, T n) {
  if (!is_degree(n)) return laguerre_polynomial_l_forward(x, n);
  const T rest = T(1) - x;
  return recurring(T(1), rest, n, [rest](T k, T made, T before) {
    return std::fma(k + k + rest, made, -(k * before)) / (k + T(1));
  });
}
template <typename T>
static inline T legendre_polynomial_p(T x, T n) {
  if (!is_degree(n) || std::abs(x) == T(1)) return legendre_polynomial_p_forward(x, n);
  return recurring(T(1), x, n, [x](T k, T made, T before) {
    return std::fma((k + k + T(1)) * x, made, -(k * before)) / (k + T(1));
  });
}
#define RDUKIT_CHEBYSHEV(NAME, MOST, SECOND)                                                   \
  template <typename T>                                                                        \
  static inline T NAME(T x, T n) {                                                             \
    if (!is_degree(n) || (n > T(MOST) && !(std::abs(x) > T(1)))) return NAME##_forward(x, n);     \
    const T twice = x + x;                                                                     \
    return recurring(T(1), T(SECOND), n, [twice](T, T made, T before) { return std::fma(twice, made, -before); }); \
  }
RDUKIT_CHEBYSHEV(chebyshev_polynomial_t, 6, x)
RDUKIT_CHEBYSHEV(chebyshev_polynomial_u, 8, twice)
RDUKIT_CHEBYSHEV(chebyshev_polynomial_v, 8, twice - T(1))
RDUKIT_CHEBYSHEV(chebyshev_polynomial_w, 8, twice + T(1))
#undef RDUKIT_CHEBYSHEV

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

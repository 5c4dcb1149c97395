// Attention of few queries to a cache of keys and values, which reads only the positions that the mask allows.
#pragma once
#include <array>
#include <vector>

#include "products.h"
#include "softmax.h"

#pragma GCC push_options
#pragma GCC optimize("O3", "fp-contract=fast")

namespace rdukit {

// The dot product of n elements that lie side by side, and y += factor * x.
template <class T>
static inline float dot(const float* x, const T* y, int64_t n) {
  Lanes a{}, b{};
  int64_t i = 0;
  for (; i + 2 * LANES <= n; i += 2 * LANES) {
    a += load(x + i) * load(y + i);
    b += load(x + i + LANES) * load(y + i + LANES);
  }
  for (; i + LANES <= n; i += LANES) a += load(x + i) * load(y + i);
  float sum = total(a + b);
  for (; i < n; i++) sum += x[i] * value(y[i]);
  return sum;
}

template <class T>
static inline void add_scaled(float* y, float factor, const T* x, int64_t n) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    Lanes lanes = load(y + i) + load(x + i) * factor;
    std::memcpy(y + i, &lanes, sizeof lanes);
  }
  for (; i < n; i++) y[i] += factor * value(x[i]);
}

// Strides of a mask along the axes of [B, H, T, S]: it may lack leading axes and repeat along others.
static inline std::array<int64_t, 4> mask_steps(const View& mask) {
  std::array<int64_t, 4> steps{};
  for (int64_t i = 4 - mask.dim, axis = 0; axis < mask.dim; i++, axis++)
    steps[i] = mask.sizes[axis] == 1 ? 0 : mask.strides[axis];
  return steps;
}

static inline float mask_at(const View& mask, int64_t place) {
  return mask.is_bf16() ? value(((const bf16*)mask.data)[place]) : ((const float*)mask.data)[place];
}

constexpr float MASKED = -std::numeric_limits<float>::infinity();

// How many of the positions, at most ``count``, a mask's row lets a query see.
static inline int64_t seen_by(const View& mask, int64_t start, int64_t step, int64_t count) {
  while (count > 0 && mask_at(mask, start + (count - 1) * step) == MASKED) count--;
  return count;
}

// The place in k and v of the text that a call's b-th reads: caches may hold more texts than a call has.
static inline int64_t text_of(const View* texts, int64_t b, int64_t count) {
  if (!texts) return b;
  int64_t text = ((const int64_t*)texts->data)[b * texts->strides[0]];
  if (text < 0 || text >= count) throw std::runtime_error("attention to a text that the cache does not have");
  return text;
}

// One query [D] of one head against ``count`` positions: weights holds count floats and a vector more, out holds D.
template <class T>
static void attend(const float* query, const T* keys, int64_t key_step, const T* values, int64_t value_step,
                   int64_t count, int64_t width, float scale, const float* mask, float* weights, float* out) {
  for (int64_t s = 0; s < count; s++) {
    bool is_masked = mask && mask[s] == MASKED;
    weights[s] = is_masked ? mask[s] : dot(query, keys + s * key_step, width) * scale + (mask ? mask[s] : 0);
  }
  for (int64_t d = 0; d < width; d++) out[d] = 0;
  float sum = weigh(weights, count, 1);
  for (int64_t s = 0; s < count; s++)
    if (weights[s] != 0) add_scaled(out, weights[s] / sum, values + s * value_step, width);
}

// The same of a head that is W vectors wide, which stay in registers; LANES keys at a time.
template <int W, class T>
static void attend_wide(const float* query, const T* keys, int64_t key_step, const T* values, int64_t value_step,
                        int64_t count, float scale, const float* mask, float* weights, float* out) {
  Lanes q[W], made[W]{};
  for (int w = 0; w < W; w++) q[w] = load(query + w * LANES) * scale;
  for (int64_t s = 0; s < count; s += LANES) {
    int64_t here = std::min<int64_t>(LANES, count - s);
    Lanes sums[LANES]{};
    for (int64_t i = 0; i < here; i++) {
      const T* key = keys + (s + i) * key_step;
      Lanes sum = q[0] * load(key);
#pragma GCC unroll 8
      for (int w = 1; w < W; w++) sum += q[w] * load(key + w * LANES);
      sums[i] = sum;
    }
    Lanes scores = totals(sums);
    if (mask) {
      Lanes added = load_some(mask + s, here);
      scores = added == MASKED ? added : scores + added;
    }
    store_some(weights + s, scores, here);
  }
  float sum = weigh(weights, count, 1);
  for (int64_t s = 0; s < count; s++) {
    if (weights[s] == 0) continue;
    const T* one = values + s * value_step;
#pragma GCC unroll 8
    for (int w = 0; w < W; w++) made[w] += load(one + w * LANES) * weights[s];
  }
  for (int w = 0; w < W; w++) store_some(out + w * LANES, made[w] * (1 / sum), LANES);
}

template <class T, class... Rest>
static void attend_any(int64_t width, const float* query, const T* keys, int64_t key_step, const T* values,
                       int64_t value_step, int64_t count, Rest... rest) {
#define RDUKIT_WIDE(W) \
  case W * LANES:      \
    return attend_wide<W>(query, keys, key_step, values, value_step, count, rest...);
  switch (width) {
    RDUKIT_WIDE(1)
    RDUKIT_WIDE(2)
    RDUKIT_WIDE(3)
    RDUKIT_WIDE(4)
    RDUKIT_WIDE(5)
    RDUKIT_WIDE(6)
    RDUKIT_WIDE(8)
    default:
      return attend(query, keys, key_step, values, value_step, count, width, rest...);
  }
#undef RDUKIT_WIDE
}

// The positions that a mask's row allows, from first up to end, as floats.
struct Allowed {
  std::vector<float> mask;
  int64_t place = -1, first = 0, end = 0;

  void read(const View& from, int64_t start, int64_t step, int64_t count) {
    if (start == place) return;  // heads share their rows
    mask.resize(count);
    for (int64_t s = 0; s < count; s++) mask[s] = mask_at(from, start + s * step);
    for (first = 0, end = count; end > 0 && mask[end - 1] == MASKED;) end--;
    while (first < end && mask[first] == MASKED) first++;
    place = start;
  }
};

// Queries [B, H, T, D] against keys and values [B, G, S, D]; with ``texts`` [B] against those of some of the texts.
template <class T>
static void row_attention(const View& q, const View& k, const View& v, const View* mask, const View* texts, float scale,
                          bool is_causal, const View& out) {
  int64_t batch = q.sizes[0], heads = q.sizes[1], rows = q.sizes[2], width = q.sizes[3], positions = k.sizes[2];
  in_parallel(batch * heads, 1 + 65536 / (positions * width + 1), [&](int64_t from, int64_t to) {
    std::vector<float> weights(positions + 64), query(width), made(width);
    Allowed allowed;
    const std::array<int64_t, 4> at = mask ? mask_steps(*mask) : std::array<int64_t, 4>{};
    for (int64_t bh = from; bh < to; bh++) {
      int64_t b = bh / heads, h = bh % heads, kh = h * k.sizes[1] / heads, text = text_of(texts, b, k.sizes[0]);
      const T* keys = (const T*)k.data + text * k.strides[0] + kh * k.strides[1];
      const T* values = (const T*)v.data + text * v.strides[0] + kh * v.strides[1];
      for (int64_t r = 0; r < rows; r++) {
        const T* one = (const T*)q.data + b * q.strides[0] + h * q.strides[1] + r * q.strides[2];
        for (int64_t d = 0; d < width; d++) query[d] = value(one[d * q.strides[3]]);
        int64_t first = 0, end = is_causal && r + 1 < positions ? r + 1 : positions;
        if (mask) {
          allowed.read(*mask, b * at[0] + h * at[1] + r * at[2], at[3], positions);
          first = std::min(allowed.first, end);
          end = std::min(allowed.end, end);
        }
        attend_any(width, query.data(), keys + first * k.strides[2], k.strides[2], values + first * v.strides[2],
                   v.strides[2], std::max<int64_t>(end - first, 0), scale, mask ? allowed.mask.data() + first : nullptr,
                   weights.data(), made.data());
        T* to_row = (T*)out.data + b * out.strides[0] + h * out.strides[1] + r * out.strides[2];
        for (int64_t d = 0; d < width; d++) store(to_row + d, made[d]);
      }
    }
  });
}

}  // namespace rdukit
#pragma GCC pop_options

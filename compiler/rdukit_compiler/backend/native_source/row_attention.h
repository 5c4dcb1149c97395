// Attention of few queries to a cache of keys and values, which reads only the positions that the mask allows.
#pragma once
#include <array>
#include <vector>

#include "products.h"
#include "softmax.h"

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

// One query [D] of one head against positions [0, count): weights holds count floats, out holds D.
template <class T>
static void attend(const float* query, const T* keys, int64_t key_step, const T* values, int64_t value_step,
                   int64_t count, int64_t width, float scale, const float* mask, float* weights, float* out) {
  for (int64_t s = 0; s < count; s++) {
    bool is_masked = mask && mask[s] == -std::numeric_limits<float>::infinity();
    weights[s] = is_masked ? mask[s] : dot(query, keys + s * key_step, width) * scale + (mask ? mask[s] : 0);
  }
  for (int64_t d = 0; d < width; d++) out[d] = 0;
  float sum = weigh(weights, count, 1);
  for (int64_t s = 0; s < count; s++)
    if (weights[s] != 0) add_scaled(out, weights[s] / sum, values + s * value_step, width);
}

template <class T>
static void row_attention(const View& q, const View& k, const View& v, const View* mask, float scale, bool is_causal,
                          T* out) {
  int64_t batch = q.sizes[0], heads = q.sizes[1], rows = q.sizes[2], width = q.sizes[3], positions = k.sizes[2];
  in_parallel(batch * heads, 1 + 65536 / (positions * width + 1), [&](int64_t first, int64_t last) {
    std::vector<float> weights(positions + 64), allowed(mask ? positions : 0), query(width), made(width);
    for (int64_t bh = first; bh < last; bh++) {
      int64_t b = bh / heads, h = bh % heads, kh = h * k.sizes[1] / heads;
      const T* keys = (const T*)k.data + b * k.strides[0] + kh * k.strides[1];
      const T* values = (const T*)v.data + b * v.strides[0] + kh * v.strides[1];
      for (int64_t r = 0; r < rows; r++) {
        const T* from = (const T*)q.data + b * q.strides[0] + h * q.strides[1] + r * q.strides[2];
        for (int64_t d = 0; d < width; d++) query[d] = value(from[d * q.strides[3]]);
        int64_t count = is_causal && r + 1 < positions ? r + 1 : positions;
        if (mask) {
          const std::array<int64_t, 4> at = mask_steps(*mask);
          int64_t start = b * at[0] + h * at[1] + r * at[2];
          for (int64_t s = 0; s < count; s++) allowed[s] = mask_at(*mask, start + s * at[3]);
          while (count > 0 && allowed[count - 1] == -std::numeric_limits<float>::infinity()) count--;
        }
        attend(query.data(), keys, k.strides[2], values, v.strides[2], count, width, scale,
               mask ? allowed.data() : nullptr, weights.data(), made.data());
        T* to = out + ((b * rows + r) * heads + h) * width;  // [B, T, H, D] in memory
        for (int64_t d = 0; d < width; d++) store(to + d, made[d]);
      }
    }
  });
}

}  // namespace rdukit

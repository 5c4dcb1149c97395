// Attention of many bf16 queries: blocks of them against all the keys that they may see, by small_bf16_product.h.
// Scores and sums are floats, weights become bf16 again for their product with the values.
#pragma once
#include "row_attention.h"
#include "small_bf16_product.h"

#if defined(__AVX512BF16__)

namespace rdukit {

// Queries at a time: with two thousand keys their scores take half a megabyte.
constexpr int64_t QUERIES = 64;

static inline void multiply_by(float* numbers, int64_t count, float factor) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) {
    Lanes lanes = load(numbers + i) * factor;
    std::memcpy(numbers + i, &lanes, sizeof lanes);
  }
  for (; i < count; i++) numbers[i] *= factor;
}

static inline void add_mask(float* scores, const View& mask, int64_t place, int64_t step, int64_t count) {
  for (int64_t s = 0; s < count; s++) scores[s] += mask_at(mask, place + s * step);
}

static void block_attention(const View& q, const View& k, const View& v, const View* mask, float scale, bool is_causal,
                            bf16* out) {
  using small_bf16_product::Matrix;
  int64_t heads = q.sizes[1], rows = q.sizes[2], width = q.sizes[3], positions = k.sizes[2];
  auto head_of = [](const View& x, int64_t b, int64_t h) {
    return Matrix{(const uint16_t*)x.data + b * x.strides[0] + h * x.strides[1], x.strides[2], x.strides[3]};
  };
  const std::array<int64_t, 4> at = mask ? mask_steps(*mask) : std::array<int64_t, 4>{};
  bool is_scaled_first = mask || !(scale > 0);
  in_parallel(q.sizes[0] * heads, 1 + 65536 / (rows * positions + 1), [&](int64_t first, int64_t last) {
    std::vector<float> scores(QUERIES * positions), made(QUERIES * width);
    std::vector<bf16> weights(QUERIES * (positions + 1));
    for (int64_t bh = first; bh < last; bh++) {
      int64_t b = bh / heads, h = bh % heads, kh = h * k.sizes[1] / heads;
      Matrix queries = head_of(q, b, h), keys = head_of(k, b, kh), values = head_of(v, b, kh);
      for (int64_t row = 0; row < rows; row += QUERIES) {
        int64_t n = std::min(QUERIES, rows - row), count = is_causal ? std::min(positions, row + n) : positions;
        int64_t even = count + count % 2;
        Matrix block{queries.data + row * queries.row, queries.row, queries.column};
        small_bf16_product::multiply(block, {keys.data, keys.column, keys.row}, scores.data(), n, count, width);
        std::array<float, QUERIES> sums;
        for (int64_t r = 0; r < n; r++) {
          float* of_row = scores.data() + r * count;
          int64_t seen = is_causal ? std::min(count, row + r + 1) : count;
          if (is_scaled_first) multiply_by(of_row, seen, scale);
          if (mask) add_mask(of_row, *mask, b * at[0] + h * at[1] + (row + r) * at[2], at[3], seen);
          sums[r] = weigh(of_row, seen, is_scaled_first ? 1 : scale);
          std::fill(of_row + seen, of_row + count, 0.0f);
          narrow(weights.data() + r * even, of_row, count);
          if (even > count) weights[r * even + count] = bf16{0};
        }
        small_bf16_product::multiply({(const uint16_t*)weights.data(), even, 1}, values, made.data(), n, width, count,
                                     true);
        for (int64_t r = 0; r < n; r++) {
          float* of_row = made.data() + r * width;
          multiply_by(of_row, width, 1 / sums[r]);
          narrow(out + ((b * rows + row + r) * heads + h) * width, of_row, width);  // [B, T, H, D] in memory
        }
      }
    }
  });
}

}  // namespace rdukit
#endif

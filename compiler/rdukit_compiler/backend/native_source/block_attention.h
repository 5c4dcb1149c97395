// Attention of many bf16 queries: blocks of them against all the keys that they may see, by small_bf16_product.h.
// Scores and sums are floats, weights become bf16 again for their product with the values.
#pragma once
#include <algorithm>

#include "row_attention.h"
#include "small_bf16_product.h"

#if defined(__AVX512BF16__)

namespace rdukit {

// Queries at a time. Keys and values are packed for each block, so that more are better, but of causal ones more see
// keys in vain, and their scores should stay in the second cache: those of 64 queries and 2048 keys take half a megabyte.
static inline int64_t queries_at_a_time(int64_t rows, int64_t positions, bool is_causal) {
  constexpr int64_t FEW = 64, SCORES = 65536;
  return is_causal ? FEW : std::max(FEW, std::min(rows, SCORES / std::max<int64_t>(positions, 1)));
}

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

static void block_attention(const View& q, const View& k, const View& v, const View* mask, const View* texts,
                            float scale, bool is_causal, const View& out) {
  using small_bf16_product::Matrix;
  int64_t heads = q.sizes[1], rows = q.sizes[2], width = q.sizes[3], positions = k.sizes[2];
  auto head_of = [](const View& x, int64_t b, int64_t h) {
    return Matrix{(const uint16_t*)x.data + b * x.strides[0] + h * x.strides[1], x.strides[2], x.strides[3]};
  };
  const std::array<int64_t, 4> at = mask ? mask_steps(*mask) : std::array<int64_t, 4>{};
  const int64_t most = queries_at_a_time(rows, positions, is_causal);
  bool is_scaled_first = mask || !(scale > 0);
  // Rows of scores are whole vectors: what is beside those that a query sees becomes zeros.
  auto whole = [](int64_t seen) { return (seen + LANES - 1) / LANES * LANES; };
  in_parallel(q.sizes[0] * heads, 1 + 65536 / (rows * positions + 1), [&](int64_t first, int64_t last) {
    std::vector<float> scores(most * whole(positions)), made(most * width), sums(most);
    std::vector<bf16> weights(most * whole(positions));
    std::vector<int64_t> seen(most);
    int64_t looked_at = -1;
    for (int64_t bh = first; bh < last; bh++) {
      int64_t b = bh / heads, h = bh % heads, kh = h * k.sizes[1] / heads;
      int64_t text = text_of(texts, b, k.sizes[0]);
      Matrix queries = head_of(q, b, h), keys = head_of(k, text, kh), values = head_of(v, text, kh);
      for (int64_t row = 0; row < rows; row += most) {
        int64_t n = std::min(most, rows - row), place = b * at[0] + h * at[1] + row * at[2];
        for (int64_t r = 0; r < n; r++)
          if (!mask)
            seen[r] = is_causal ? std::min(positions, row + r + 1) : positions;
          else if (place != looked_at)  // heads mostly share their masks
            seen[r] = seen_by(*mask, place + r * at[2], at[3], is_causal ? std::min(positions, row + r + 1) : positions);
        looked_at = mask ? place : -1;
        int64_t count = std::max<int64_t>(1, *std::max_element(seen.begin(), seen.begin() + n)), step = whole(count);
        Matrix block{queries.data + row * queries.row, queries.row, queries.column};
        small_bf16_product::multiply(block, {keys.data, keys.column, keys.row}, scores.data(), step, n, count, width);
        for (int64_t r = 0; r < n; r++) {
          float* of_row = scores.data() + r * step;
          bf16* to = weights.data() + r * step;
          int64_t padded = whole(seen[r]);
          if (is_scaled_first) multiply_by(of_row, seen[r], scale);
          if (mask) add_mask(of_row, *mask, place + r * at[2], at[3], seen[r]);
          std::fill(of_row + seen[r], of_row + padded, -std::numeric_limits<float>::infinity());
          sums[r] = weigh(of_row, padded, is_scaled_first ? 1 : scale);
          narrow(to, of_row, padded);
          std::fill(to + padded, to + step, bf16{0});
        }
        small_bf16_product::multiply({(const uint16_t*)weights.data(), step, 1}, values, made.data(), width, n, width,
                                     count, true);
        for (int64_t r = 0; r < n; r++) {
          float* of_row = made.data() + r * width;
          multiply_by(of_row, width, 1 / sums[r]);
          narrow((bf16*)out.data + b * out.strides[0] + h * out.strides[1] + (row + r) * out.strides[2], of_row, width);
        }
      }
    }
  });
}

}  // namespace rdukit
#endif

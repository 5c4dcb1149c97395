// Float products y[m,n] = a[m,k] b[k,n] + bias[n] where one dimension is few, such as a small batch's: BLAS packs both
// operands as for many rows, here each is read from where it lies as far as that is fast.
//
// If the columns of b lie one after another, as a weight's do in a linear layer, y is computed turned: vectors go along
// the few rows of a, copied into panels, and the elements of b are the factors, read where they are. Else vectors go
// along the rows of b. Needs nothing of torch.
#pragma once
#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "register_block.h"

#pragma GCC push_options
#pragma GCC optimize("O3", "fp-contract=fast")

namespace rdukit {
namespace few_row_product {

// Of k, how much is summed at a time: a panel of it stays in the nearest cache.
constexpr int64_t DEPTH = 256;
// Columns of y that a thread computes turned before it turns them back.
constexpr int64_t CHUNK = 8 * BLOCK_ROWS;
// Panels of b that are read side by side, so that rows far apart are visited seldom; and floats in that many at least.
constexpr int64_t PANELS = 4, GROUP = 16384;
// Rows of b between one that is read and the one then fetched from memory.
constexpr int64_t AHEAD = 16;
// Multiplications that pay for waking a thread: some 10 µs of work.
constexpr int64_t PAYS = 400000;

struct Matrix {
  const float* data;
  int64_t row, column;  // strides
  Matrix at(int64_t i, int64_t j) const { return {data + i * row + j * column, row, column}; }
  Matrix turned() const { return {data, column, row}; }
};

// Floats of which no vector lies across two lines of the cache.
struct Lines {
  float* data;
  explicit Lines(int64_t count) : data((float*)::operator new(count * sizeof(float), std::align_val_t(64))) {}
  ~Lines() { ::operator delete(data, std::align_val_t(64)); }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
};

// to[R, V * LANES] += left[R, count] * a panel [count][V * LANES], the rows of left stride apart.
template <int R, int V>
static __attribute__((noinline)) void rows_by_panel(int64_t count, const float* left, int64_t stride,
                                                    const float* panel, float* to, int64_t to_stride) {
  block<R, V>(
      count, [=](int64_t k, int r) { return left[r * stride + k]; },
      [=](int64_t k) { return panel + k * V * LANES; }, to, to_stride, true);
}

// The same for the rows of a matrix, from_stride apart, that become the panel in passing.
template <int R>
static __attribute__((noinline)) void rows_by_matrix(int64_t count, const float* left, int64_t stride,
                                                     const float* from, int64_t from_stride, float* panel, float* to,
                                                     int64_t to_stride) {
  block<R, 2>(
      count, [=](int64_t k, int r) { return left[r * stride + k]; },
      [=](int64_t k) {
        const float* row = from + k * from_stride;
        float* kept = panel + k * WIDE;
        __builtin_prefetch(row + AHEAD * from_stride);
        put(kept, lanes_at(row));
        put(kept + LANES, lanes_at(row + LANES));
        return kept;
      },
      to, to_stride, true);
}

// The same with left packed as [count][BLOCK_ROWS]; what was there before may be left out.
template <int R, bool IS_ADDED>
static __attribute__((noinline)) void packed_by_panel(int64_t count, const float* left, int64_t, const float* panel,
                                                      float* to, int64_t to_stride) {
  block<R, 2>(
      count, [=](int64_t k, int r) { return left[k * BLOCK_ROWS + r]; },
      [=](int64_t k) { return panel + k * WIDE; }, to, to_stride, IS_ADDED);
}

using ByPanel = void (*)(int64_t, const float*, int64_t, const float*, float*, int64_t);
using ByMatrix = void (*)(int64_t, const float*, int64_t, const float*, int64_t, float*, float*, int64_t);

// Each for 1, 2, ... rows.
template <int V, size_t... I>
static constexpr std::array<ByPanel, sizeof...(I)> rows_by_panel_of(std::index_sequence<I...>) {
  return {rows_by_panel<I + 1, V>...};
}
template <size_t... I>
static constexpr std::array<ByMatrix, sizeof...(I)> rows_by_matrix_of(std::index_sequence<I...>) {
  return {rows_by_matrix<I + 1>...};
}
template <bool IS_ADDED, size_t... I>
static constexpr std::array<ByPanel, sizeof...(I)> packed_by_panel_of(std::index_sequence<I...>) {
  return {packed_by_panel<I + 1, IS_ADDED>...};
}
using Six = std::make_index_sequence<BLOCK_ROWS>;
using Twelve = std::make_index_sequence<2 * BLOCK_ROWS>;

// rows in blocks of about equal size, at most so many: f(number of the block, its first row, its rows).
template <class F>
static RDUKIT_INLINE void each_block(int64_t rows, int64_t most, F f) {
  int64_t count = (rows + most - 1) / most, size = rows / count, larger = rows % count, first = 0;
  for (int64_t i = 0; i < count; i++) {
    int64_t own = size + (i < larger);
    f(i, first, own);
    first += own;
  }
}

// k in parts of at most DEPTH: f(first, size).
template <class F>
static RDUKIT_INLINE void each_depth(int64_t k, F f) {
  each_block(k, DEPTH, [&](int64_t, int64_t first, int64_t size) { f(first, size); });
}

typedef float Four __attribute__((vector_size(16)));
typedef int32_t Places __attribute__((vector_size(16)));

// to[j][i] = from[i][j] for i in [0, rows) and j in [0, columns), the rows of each stride apart.
static void turn(float* to, int64_t to_stride, const float* from, int64_t stride, int64_t rows, int64_t columns) {
  constexpr Places LOW = {0, 4, 1, 5}, HIGH = {2, 6, 3, 7}, LEFT = {0, 1, 4, 5}, RIGHT = {2, 3, 6, 7};
  int64_t i = 0;
  for (; i + 4 <= rows; i += 4) {
    int64_t j = 0;
    for (; j + 4 <= columns; j += 4) {
      Four in[4], half[4], out[4];
      for (int r = 0; r < 4; r++) __builtin_memcpy(&in[r], from + (i + r) * stride + j, sizeof(Four));
      for (int r : {0, 2}) {
        half[r] = __builtin_shuffle(in[r], in[r + 1], LOW);
        half[r + 1] = __builtin_shuffle(in[r], in[r + 1], HIGH);
      }
      for (int r : {0, 1}) {
        out[2 * r] = __builtin_shuffle(half[r], half[r + 2], LEFT);
        out[2 * r + 1] = __builtin_shuffle(half[r], half[r + 2], RIGHT);
      }
      for (int r = 0; r < 4; r++) __builtin_memcpy(to + (j + r) * to_stride + i, &out[r], sizeof(Four));
    }
    for (; j < columns; j++)
      for (int r = 0; r < 4; r++) to[j * to_stride + i + r] = from[(i + r) * stride + j];
  }
  for (; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) to[j * to_stride + i] = from[i * stride + j];
}

// count columns of b, whose elements lie side by side along either axis, to [k] rows that are ``stride`` apart.
static inline void copy_columns(float* to, const Matrix& b, int64_t k, int64_t count, int64_t stride) {
  if (b.row == 1) return turn(to, stride, b.data, b.column, count, k);
  for (int64_t i = 0; i < k; i++) std::copy_n(b.data + i * b.row, count, to + i * stride);
}

// count columns of b, at most wide, as [k][wide] with zeros at the end.
static inline void pack_panel(float* to, const Matrix& b, int64_t k, int64_t count, int64_t wide) {
  if (b.row == 1) {
    turn(to, wide, b.data, b.column, count, k);
    for (int64_t i = 0; i < k; i++)
      for (int64_t j = count; j < wide; j++) to[i * wide + j] = 0;
    return;
  }
  if (b.column != 1) {
    for (int64_t j = 0; j < wide; j++)
      for (int64_t i = 0; i < k; i++) to[i * wide + j] = j < count ? b.data[i * b.row + j * b.column] : 0;
    return;
  }
  for (int64_t i = 0; i < k; i++, to += wide) {
    const float* from = b.data + i * b.row;
    if (count == WIDE) {
      put(to, lanes_at(from));
      put(to + LANES, lanes_at(from + LANES));
    } else {
      for (int64_t j = 0; j < wide; j++) to[j] = j < count ? from[j] : 0;
    }
  }
}

// For b whose columns lie one after another. Parallel: called with a count, how many of it pay for a thread, and a
// function of the first and last of a part.
template <class Parallel>
static void multiply_turned(const Matrix& a, const Matrix& b, const float* bias, float* y, int64_t m, int64_t n,
                            int64_t k, Parallel parallel) {
  static constexpr auto BY_TWO = rows_by_panel_of<2>(Six{});
  static constexpr auto BY_ONE = rows_by_panel_of<1>(Twelve{});
  int64_t panels = (m + WIDE - 1) / WIDE, width = panels * WIDE, rest = m - (panels - 1) * WIDE;
  auto vectors_of = [=](int64_t p) { return p + 1 == panels && rest <= LANES ? 1 : 2; };
  Lines x(k * width);  // [parts of k][panels][part][WIDE]
  each_depth(k, [&](int64_t depth, int64_t deep) {
    for (int64_t p = 0; p < panels; p++)
      pack_panel(x.data + depth * width + p * deep * WIDE, a.at(p * WIDE, depth).turned(), deep,
                 p + 1 == panels ? rest : WIDE, vectors_of(p) * LANES);
  });
  parallel((n + CHUNK - 1) / CHUNK, 1 + PAYS / (CHUNK * m * k + 1), [&](int64_t first_chunk, int64_t last_chunk) {
    Lines sums(CHUNK * width);
    for (int64_t first = first_chunk * CHUNK; first < std::min(n, last_chunk * CHUNK); first += CHUNK) {
      int64_t rows = std::min(CHUNK, n - first);
      for (int64_t r = 0; r < rows; r++) std::fill_n(sums.data + r * width, width, bias ? bias[first + r] : 0.0f);
      each_depth(k, [&](int64_t depth, int64_t deep) {
        for (int64_t near = 0; near < rows; near += 2 * BLOCK_ROWS)  // rows of b that are read for each panel
          for (int64_t p = 0; p < panels; p++) {
            int vectors = vectors_of(p);
            each_block(std::min<int64_t>(2 * BLOCK_ROWS, rows - near), 2 * BLOCK_ROWS / vectors,
                       [&](int64_t, int64_t row, int64_t size) {
                         auto multiply = vectors == 1 ? BY_ONE[size - 1] : BY_TWO[size - 1];
                         multiply(deep, b.data + (first + near + row) * b.column + depth, b.column,
                                  x.data + depth * width + p * deep * WIDE,
                                  sums.data + (near + row) * width + p * WIDE, width);
                       });
          }
      });
      turn(y + first, n, sums.data, width, rows, m);
    }
  });
}

// What is added to: the bias, or zeros.
static RDUKIT_INLINE void start(float* to, const float* bias, int64_t count) {
  if (bias)
    std::copy_n(bias, count, to);
  else
    std::fill_n(to, count, 0.0f);
}

// For any a and b, fast where the elements of each row of b lie one after another.
template <class Parallel>
static void multiply_straight(const Matrix& a, const Matrix& b, const float* bias, float* y, int64_t m, int64_t n,
                              int64_t k, Parallel parallel) {
  static constexpr auto BY_ROWS = rows_by_panel_of<2>(Six{}), BY_PACKED = packed_by_panel_of<true>(Six{}),
                        BY_PACKED_ANEW = packed_by_panel_of<false>(Six{});
  static constexpr auto BY_MATRIX = rows_by_matrix_of(Six{});
  int64_t blocks = (m + BLOCK_ROWS - 1) / BLOCK_ROWS, panels = (n + WIDE - 1) / WIDE;
  bool is_packed = a.column != 1, is_in_passing = !is_packed && b.column == 1;
  bool is_added = !is_packed || k > DEPTH || bias;
  const auto& by_panel = is_added ? is_packed ? BY_PACKED : BY_ROWS : BY_PACKED_ANEW;
  Lines left(is_packed ? blocks * BLOCK_ROWS * k : 1);  // [parts of k][blocks][part][BLOCK_ROWS]
  if (is_packed)
    each_depth(k, [&](int64_t depth, int64_t deep) {
      for (int64_t i = 0; i < deep; i++)
        each_block(m, BLOCK_ROWS, [&](int64_t number, int64_t row, int64_t size) {
          float* to = left.data + depth * blocks * BLOCK_ROWS + (number * deep + i) * BLOCK_ROWS;
          const float* from = a.at(row, depth + i).data;
          if (size == BLOCK_ROWS && a.row == 1)
            __builtin_memcpy(to, from, BLOCK_ROWS * sizeof(float));
          else
            for (int64_t r = 0; r < size; r++) to[r] = from[r * a.row];
        });
    });
  int64_t deepest = std::min(k, DEPTH), group = std::max(PANELS, GROUP / (deepest * WIDE));
  parallel((panels + PANELS - 1) / PANELS, 1 + PAYS / (PANELS * WIDE * m * k + 1), [&](int64_t begin, int64_t end) {
    Lines right(group * deepest * WIDE), edge(m * WIDE);
    int64_t last_panel = std::min(panels, end * PANELS);
    for (int64_t first = begin * PANELS; first < last_panel; first += group) {
      int64_t count = std::min(group, last_panel - first), rest = n - (first + count) * WIDE;
      auto is_whole = [=](int64_t p) { return p + 1 < count || rest >= 0; };
      int64_t columns = std::min(count * WIDE, n - first * WIDE), whole = rest < 0 ? (count - 1) * WIDE : columns;
      for (int64_t i = 0; i < m && is_added; i++) {
        start(y + i * n + first * WIDE, bias ? bias + first * WIDE : nullptr, whole);
        std::fill_n(edge.data + i * WIDE, WIDE, 0.0f);
        if (whole < columns) start(edge.data + i * WIDE, bias ? bias + first * WIDE + whole : nullptr, columns - whole);
      }
      each_depth(k, [&](int64_t depth, int64_t deep) {
        for (int64_t p = 0; p < count; p++)
          if (!is_in_passing || !is_whole(p))
            pack_panel(right.data + p * deep * WIDE, b.at(depth, (first + p) * WIDE), deep,
                       is_whole(p) ? WIDE : WIDE + rest, WIDE);
        each_block(m, BLOCK_ROWS, [&](int64_t number, int64_t row, int64_t size) {
          const float* from = is_packed ? left.data + (depth * blocks + number * deep) * BLOCK_ROWS
                                        : a.at(row, depth).data;
          for (int64_t p = 0; p < count; p++) {
            int64_t stride = is_whole(p) ? n : WIDE;
            float* to = is_whole(p) ? y + row * n + (first + p) * WIDE : edge.data + row * WIDE;
            float* panel = right.data + p * deep * WIDE;
            if (number == 0 && is_in_passing && is_whole(p))
              BY_MATRIX[size - 1](deep, from, a.row, b.at(depth, (first + p) * WIDE).data, b.row, panel, to,
                                  stride);
            else
              by_panel[size - 1](deep, from, a.row, panel, to, stride);
          }
        });
      });
      for (int64_t i = 0; i < m && whole < columns; i++)
        std::copy_n(edge.data + i * WIDE, columns - whole, y + i * n + first * WIDE + whole);
    }
  });
}

// y is contiguous; m, n and k are at least one. What is added in which order does not depend on the threads.
template <class Parallel>
static void multiply(const Matrix& a, const Matrix& b, const float* bias, float* y, int64_t m, int64_t n, int64_t k,
                     Parallel parallel) {
  if (b.row == 1 && b.column != 1)
    multiply_turned(a, b, bias, y, m, n, k, parallel);
  else
    multiply_straight(a, b, bias, y, m, n, k, parallel);
}

}  // namespace few_row_product
}  // namespace rdukit
#pragma GCC pop_options

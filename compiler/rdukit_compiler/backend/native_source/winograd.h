// Convolutions of 3 x 3 taps, one step apart, in float by Winograd's F(2 x 2, 3 x 3): a square of four results takes
// sixteen multiplications a pair of channels instead of 36, in sixteen matrix products over all squares.
//
// Images lie channels last. A part of the squares is brought to the sixteen forms of its 4 x 4 patches, multiplied and
// brought back while it stays in the cache. Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks.
#pragma once
#include <algorithm>
#include <memory>
#include <new>

#include "register_block.h"

#pragma GCC push_options
#pragma GCC optimize("O3", "fp-contract=fast")

namespace rdukit::winograd {

constexpr int FORMS = 16;
// Floats of a part's patches and results in all forms.
constexpr int64_t ROOM = 131072;
// Multiplications that pay for waking a thread.
constexpr int64_t PAYS = 400000;

// Images [batch, height, width, in], channels last, and filters [out, in, 3, 3].
struct Form {
  int64_t batch, height, width, in, out, pad_y, pad_x;
  // Of the results.
  int64_t rows() const { return height + 2 * pad_y - 2; }
  int64_t columns() const { return width + 2 * pad_x - 2; }
  // Squares of results, along each axis and in all.
  int64_t down() const { return (rows() + 1) / 2; }
  int64_t across() const { return (columns() + 1) / 2; }
  int64_t squares() const { return batch * down() * across(); }
  // Squares that are computed together.
  int64_t part() const { return std::max<int64_t>(4, ROOM / (FORMS * (in + out)) / TALL_ROWS) * TALL_ROWS; }
  int64_t weights() const { return FORMS * in * out; }
};

// Whether channels come in whole vectors and panels.
static inline bool fits(int64_t in, int64_t out) { return in % LANES == 0 && out % WIDE == 0; }

// Four values along one axis of a patch in their four forms.
static RDUKIT_INLINE void forms_of_patch(const Lanes d[4], Lanes v[4]) {
  v[0] = d[0] - d[2];
  v[1] = d[1] + d[2];
  v[2] = d[2] - d[1];
  v[3] = d[1] - d[3];
}

// Three taps along one axis in their four forms.
static RDUKIT_INLINE void forms_of_taps(const Lanes g[3], Lanes u[4]) {
  Lanes ends = (g[0] + g[2]) * 0.5f, middle = g[1] * 0.5f;
  u[0] = g[0];
  u[1] = ends + middle;
  u[2] = ends - middle;
  u[3] = g[2];
}

// Panels [first, last) of WIDE filters of [forms][out / WIDE][in][WIDE], from weight(o, i, tap) times the filter's scale.
template <class Weight>
static void pack_weights(const Form& form, Weight weight, const float* scale, float* to, int64_t first, int64_t last) {
  int64_t panels = form.out / WIDE;
  Lanes taps[9][2];
  for (int64_t panel = first; panel < last; panel++)
    for (int64_t i = 0; i < form.in; i++) {
      for (int64_t j = 0; j < WIDE; j++) {
        int64_t o = panel * WIDE + j;
        float factor = scale ? scale[o] : 1.0f;
        for (int t = 0; t < 9; t++) ((float*)taps[t])[j] = weight(o, i, t) * factor;
      }
      for (int v = 0; v < 2; v++) {
        Lanes half[4][3];
        for (int x = 0; x < 3; x++) {
          Lanes column[3] = {taps[x][v], taps[3 + x][v], taps[6 + x][v]}, made[4];
          forms_of_taps(column, made);
          for (int y = 0; y < 4; y++) half[y][x] = made[y];
        }
        for (int y = 0; y < 4; y++) {
          Lanes made[4];
          forms_of_taps(half[y], made);
          for (int x = 0; x < 4; x++)
            put(to + (((y * 4 + x) * panels + panel) * form.in + i) * WIDE + v * LANES, made[x]);
        }
      }
    }
}

// The patches of squares [first, first + count) as [forms][part][in].
static void spread(const Form& form, const float* x, const float* zeros, int64_t first, int64_t count, int64_t part,
                   float* to) {
  int64_t down = form.down(), across = form.across();
  for (int64_t s = 0; s < count; s++) {
    int64_t at = first + s, b = at / (down * across), row = at / across % down * 2 - form.pad_y;
    int64_t column = at % across * 2 - form.pad_x;
    const float* from[4][4];
    for (int64_t y = 0; y < 4; y++)
      for (int64_t x_ = 0; x_ < 4; x_++) {
        bool is_there = row + y >= 0 && row + y < form.height && column + x_ >= 0 && column + x_ < form.width;
        from[y][x_] = is_there ? x + ((b * form.height + row + y) * form.width + column + x_) * form.in : zeros;
      }
    for (int64_t c = 0; c < form.in; c += LANES) {
      Lanes half[4][4];
      for (int x_ = 0; x_ < 4; x_++) {
        Lanes d[4], v[4];
        for (int y = 0; y < 4; y++) d[y] = lanes_at(from[y][x_] + c);
        forms_of_patch(d, v);
        for (int y = 0; y < 4; y++) half[y][x_] = v[y];
      }
      for (int y = 0; y < 4; y++) {
        Lanes v[4];
        forms_of_patch(half[y], v);
        for (int x_ = 0; x_ < 4; x_++) put(to + ((y * 4 + x_) * part + s) * form.in + c, v[x_]);
      }
    }
  }
}

// What [forms][part][out] holds becomes the results of squares [first, first + count), with the shift, at least zero if
// rectified.
static void gather(const Form& form, const float* sums, const float* shift, bool is_rectified, int64_t first,
                   int64_t count, int64_t part, float* y) {
  int64_t down = form.down(), across = form.across();
  for (int64_t s = 0; s < count; s++) {
    int64_t at = first + s, b = at / (down * across), row = at / across % down * 2, column = at % across * 2;
    int64_t rows = std::min<int64_t>(2, form.rows() - row), columns = std::min<int64_t>(2, form.columns() - column);
    for (int64_t c = 0; c < form.out; c += LANES) {
      Lanes half[2][4], add = shift ? lanes_at(shift + c) : Lanes{};
      for (int x = 0; x < 4; x++) {
        Lanes m[4];
        for (int f = 0; f < 4; f++) m[f] = lanes_at(sums + ((f * 4 + x) * part + s) * form.out + c);
        half[0][x] = m[0] + m[1] + m[2];
        half[1][x] = m[1] - m[2] - m[3];
      }
      for (int64_t i = 0; i < rows; i++) {
        const Lanes* h = half[i];
        Lanes made[2] = {h[0] + h[1] + h[2] + add, h[1] - h[2] - h[3] + add};
        for (int64_t j = 0; j < columns; j++) {
          Lanes out = is_rectified ? (made[j] < 0.0f ? Lanes{} : made[j]) : made[j];
          put(y + ((b * form.rows() + row + i) * form.columns() + column + j) * form.out + c, out);
        }
      }
    }
  }
}

// y [batch, rows, columns, out] from x and packed weights. Parallel: called with a count, how many of it pay for a
// thread, and a function of the first and last of a part.
template <class Parallel>
static void convolve(const Form& form, const float* x, const float* weights, const float* shift, bool is_rectified,
                     float* y, Parallel parallel) {
  int64_t part = form.part(), parts = (form.squares() + part - 1) / part, panels = form.out / WIDE;
  auto room = [](int64_t count) {
    auto end = [](float* p) { ::operator delete(p, std::align_val_t(64)); };
    return std::unique_ptr<float, decltype(end)>((float*)::operator new(count * sizeof(float), std::align_val_t(64)));
  };
  parallel(parts, 1 + PAYS / (part * form.in * form.out), [&](int64_t begin, int64_t end) {
    auto patches = room(FORMS * part * form.in), sums = room(FORMS * part * form.out), zeros = room(form.in);
    std::fill_n(zeros.get(), form.in, 0.0f);
    for (int64_t number = begin; number < end; number++) {
      int64_t first = number * part, count = std::min(part, form.squares() - first);
      spread(form, x, zeros.get(), first, count, part, patches.get());
      for (int64_t f = 0; f < FORMS; f++)
        for (int64_t panel = 0; panel < panels; panel++)
          for (int64_t row = 0; row < count; row += TALL_ROWS)
            TALL_BLOCKS<false>[std::min<int64_t>(TALL_ROWS, count - row) - 1](
                form.in, patches.get() + (f * part + row) * form.in, form.in,
                weights + (f * panels + panel) * form.in * WIDE, sums.get() + (f * part + row) * form.out + panel * WIDE,
                form.out);
      gather(form, sums.get(), shift, is_rectified, first, count, part, y);
    }
  });
}

}  // namespace rdukit::winograd
#pragma GCC pop_options

// The recurrence of an LSTM layer in float, and its gradient: operators of lstm_layer.py.
//
// Samples do not meet: threads share them, and each takes its own through all steps. A step is a product with the
// recurrent weight, packed once into panels, and then the gates of whole rows.
#pragma once
#include <algorithm>

#include "lane_math.h"
#include "products.h"

#pragma GCC push_options
#pragma GCC optimize("O3", "fp-contract=fast")

namespace rdukit {
namespace lstm {

using few_row_product::Lines;
using few_row_product::Matrix;

// A tensor's elements, one after another in its own order of axes: where they lie, or a copy.
class Packed {
 public:
  explicit Packed(AtenTensorHandle tensor) : view(tensor), data_((float*)view.data) {
    int64_t step = 1, count = 1;
    bool is_packed = true;
    for (int64_t i = view.dim - 1; i >= 0; i--) {
      is_packed = is_packed && (view.sizes[i] == 1 || view.strides[i] == step);
      step *= view.sizes[i];
      count = step;
    }
    if (is_packed) return;
    copy_.reset(new float[count]);
    float* to = copy_.get();
    gather(0, (const float*)view.data, to);
    data_ = copy_.get();
  }
  const float* data() const { return data_; }
  const View view;

 private:
  void gather(int64_t axis, const float* from, float*& to) {
    if (axis == view.dim)
      *to++ = *from;
    else
      for (int64_t i = 0; i < view.sizes[axis]; i++) gather(axis + 1, from + i * view.strides[axis], to);
  }
  const float* data_;
  std::unique_ptr<float[]> copy_;
};

struct Form {
  int64_t steps, batch, width;
  bool is_reversed;
  // The step that is computed as number i.
  int64_t step(int64_t i) const { return is_reversed ? steps - 1 - i : i; }
  // The width in whole vectors: a gate's part of a row, and in whole panels.
  int64_t lanes() const { return (width + LANES - 1) / LANES * LANES; }
  int64_t panels() const { return (width + WIDE - 1) / WIDE * WIDE; }
  // Samples that pay for waking a thread.
  int64_t grain() const { return 1 + few_row_product::PAYS / (steps * width * width * 4 + 1); }
};

// sums[rows, columns] += left[rows, depth] * a matrix packed as [parts of depth][columns / WIDE][part][WIDE].
static void multiply_add(int64_t rows, int64_t columns, int64_t depth, const float* left, int64_t left_stride,
                         const float* packed, float* sums) {
  few_row_product::each_depth(depth, [&](int64_t first, int64_t deep) {
    for (int64_t column = 0; column < columns; column += WIDE)
      few_row_product::each_block(rows, TALL_ROWS, [&](int64_t, int64_t row, int64_t size) {
        TALL_BLOCKS<true>[size - 1](deep, left + row * left_stride + first, left_stride,
                                    packed + first * columns + column * deep, sums + row * columns + column, columns);
      });
  });
}

// The packed form of a matrix [depth, columns]: from(column) gives, for a vector's columns, where they are.
template <class From>
static void pack(int64_t depth, int64_t columns, From from, float* to) {
  few_row_product::each_depth(depth, [&](int64_t first, int64_t deep) {
    for (int64_t column = 0; column < columns; column += LANES) {
      const auto [matrix, count] = from(column);
      float* part = to + first * columns + column / WIDE * WIDE * deep + column % WIDE;
      for (int64_t k = 0; k < deep && count < LANES; k++) std::fill_n(part + k * WIDE, LANES, 0.0f);
      few_row_product::copy_columns(part, matrix.at(first, 0), deep, count, WIDE);
    }
  });
}

// The samples [first, last) through all steps. w: the packed recurrent weight, each gate's part in whole vectors.
static void run_forward(const Form& form, const float* gates, const float* w, const float* h0, const float* c0,
                        float* y, float* c_last, float* kept, int64_t first, int64_t last) {
  int64_t width = form.width, part = form.lanes(), wide = 4 * part, rows = last - first;
  Lines sums(rows * wide), c(rows * part);
  for (int64_t r = 0; r < rows; r++) {
    std::fill_n(c.data + r * part, part, 0.0f);
    std::copy_n(c0 + (first + r) * width, width, c.data + r * part);
  }
  const float* h = h0 + first * width;
  for (int64_t i = 0; i < form.steps; i++) {
    int64_t sample = form.step(i) * form.batch + first;
    for (int64_t r = 0; r < rows; r++)
      for (int64_t gate = 0; gate < 4; gate++) {
        float* to = sums.data + r * wide + gate * part;
        std::copy_n(gates + ((sample + r) * 4 + gate) * width, width, to);
        std::fill_n(to + width, part - width, 0.0f);
      }
    multiply_add(rows, wide, width, h, width, w, sums.data);
    for (int64_t r = 0; r < rows; r++) {
      const float* sum = sums.data + r * wide;
      float *out = y + (sample + r) * width, *keep = kept ? kept + (sample + r) * 5 * width : nullptr;
      for (int64_t j = 0; j < width; j += LANES) {
        int64_t count = width - j;
        Lanes in = sigmoid_of(lanes_at(sum + j)), forget = sigmoid_of(lanes_at(sum + part + j));
        Lanes cell = tanh_of(lanes_at(sum + 2 * part + j)), leave = sigmoid_of(lanes_at(sum + 3 * part + j));
        Lanes state = forget * lanes_at(c.data + r * part + j) + in * cell;
        put(c.data + r * part + j, state);
        store_some(out + j, leave * tanh_of(state), count);
        if (keep) {
          store_some(keep + j, in, count);
          store_some(keep + width + j, forget, count);
          store_some(keep + 2 * width + j, cell, count);
          store_some(keep + 3 * width + j, leave, count);
          store_some(keep + 4 * width + j, state, count);
        }
      }
    }
    h = y + sample * width;
  }
  for (int64_t r = 0; r < rows; r++) std::copy_n(c.data + r * part, width, c_last + (first + r) * width);
}

// The same backward: dgates from the gradients of y and of the last c. w: packed to be multiplied by dgates.
static void run_backward(const Form& form, const float* dy, const float* dc_last, const float* w, const float* c0,
                         const float* kept, float* dgates, float* dc0, int64_t first, int64_t last) {
  int64_t width = form.width, part = form.panels(), rows = last - first;
  Lines dh(rows * part), dc(rows * part);
  std::fill_n(dc.data, rows * part, 0.0f);
  std::fill_n(dh.data, rows * part, 0.0f);
  for (int64_t r = 0; r < rows; r++) std::copy_n(dc_last + (first + r) * width, width, dc.data + r * part);
  for (int64_t i = form.steps - 1; i >= 0; i--) {
    int64_t sample = form.step(i) * form.batch + first;
    int64_t sample_before = i ? form.step(i - 1) * form.batch + first : 0;
    const float* before = i ? kept + sample_before * 5 * width + 4 * width : c0 + first * width;
    int64_t before_stride = i ? 5 * width : width;
    for (int64_t r = 0; r < rows; r++) {
      const float* keep = kept + (sample + r) * 5 * width;
      float* out = dgates + (sample + r) * 4 * width;
      for (int64_t j = 0; j < width; j += LANES) {
        int64_t count = width - j;
        Lanes in = load_some(keep + j, count), forget = load_some(keep + width + j, count);
        Lanes cell = load_some(keep + 2 * width + j, count), leave = load_some(keep + 3 * width + j, count);
        Lanes squashed = tanh_of(load_some(keep + 4 * width + j, count));
        Lanes dy_here = load_some(dy + (sample + r) * width + j, count) + lanes_at(dh.data + r * part + j);
        Lanes state = lanes_at(dc.data + r * part + j) + dy_here * leave * (1.0f - squashed * squashed);
        store_some(out + j, state * cell * in * (1.0f - in), count);
        Lanes earlier = load_some(before + r * before_stride + j, count);
        store_some(out + width + j, state * earlier * forget * (1.0f - forget), count);
        store_some(out + 2 * width + j, state * in * (1.0f - cell * cell), count);
        store_some(out + 3 * width + j, dy_here * squashed * leave * (1.0f - leave), count);
        put(dc.data + r * part + j, state * forget);
        put(dh.data + r * part + j, Lanes{});
      }
    }
    if (i) multiply_add(rows, part, 4 * width, dgates + sample * 4 * width, 4 * width, w, dh.data);
  }
  for (int64_t r = 0; r < rows; r++) std::copy_n(dc.data + r * part, width, dc0 + (first + r) * width);
}

static inline RAIIAtenTensorHandle new_floats(std::initializer_list<int64_t> sizes) {
  return RAIIAtenTensorHandle(new_tensor(sizes.size(), sizes.begin(), aoti_torch_dtype_float32()));
}

}  // namespace lstm
}  // namespace rdukit

// rdukit::lstm_layer(Tensor gates, Tensor w, Tensor h0, Tensor c0, bool is_reversed, bool is_kept)
//     -> (Tensor y, Tensor c, Tensor kept)
static AOTITorchError aoti_torch_cpu_lstm_layer(AtenTensorHandle gates, AtenTensorHandle w, AtenTensorHandle h0,
                                                AtenTensorHandle c0, int32_t is_reversed, int32_t is_kept,
                                                AtenTensorHandle* y, AtenTensorHandle* c, AtenTensorHandle* kept) {
  using namespace rdukit;
  using namespace rdukit::lstm;
  Packed by_step(gates), weight(w), h(h0), before(c0);
  Form form{by_step.view.sizes[0], by_step.view.sizes[1], weight.view.sizes[1], is_reversed != 0};
  auto out = new_floats({form.steps, form.batch, form.width}), last = new_floats({form.batch, form.width});
  auto keep = is_kept ? new_floats({form.steps, form.batch, 5 * form.width}) : new_floats({0});
  int64_t part = form.lanes(), width = form.width;
  Lines packed(width * 4 * part);
  pack(
      width, 4 * part,
      [&](int64_t column) {
        int64_t gate = column / part, j = column % part;
        const float* unit = weight.data() + (gate * width + j) * width;
        return std::pair(Matrix{unit, 1, width}, std::min<int64_t>(LANES, width - j));
      },
      packed.data);
  float* keeps = is_kept ? floats_of(keep) : nullptr;
  in_parallel(form.batch, form.grain(), [&](int64_t first, int64_t end) {
    run_forward(form, by_step.data(), packed.data, h.data(), before.data(), floats_of(out), floats_of(last), keeps,
                first, end);
  });
  *y = out.release();
  *c = last.release();
  *kept = keep.release();
  return 0;
}

// rdukit::lstm_layer_backward(Tensor dy, Tensor dc, Tensor w, Tensor c0, Tensor kept, bool is_reversed)
//     -> (Tensor dgates, Tensor dc0)
static AOTITorchError aoti_torch_cpu_lstm_layer_backward(AtenTensorHandle dy, AtenTensorHandle dc, AtenTensorHandle w,
                                                         AtenTensorHandle c0, AtenTensorHandle kept,
                                                         int32_t is_reversed, AtenTensorHandle* dgates,
                                                         AtenTensorHandle* dc0) {
  using namespace rdukit;
  using namespace rdukit::lstm;
  Packed given(dy), last(dc), weight(w), before(c0), keep(kept);
  Form form{given.view.sizes[0], given.view.sizes[1], given.view.sizes[2], is_reversed != 0};
  auto gates = new_floats({form.steps, form.batch, 4 * form.width}), first_c = new_floats({form.batch, form.width});
  int64_t part = form.panels(), width = form.width;
  Lines packed(4 * width * part);
  pack(
      4 * width, part,
      [&](int64_t j) {
        return std::pair(Matrix{weight.data() + j, width, 1}, std::clamp<int64_t>(width - j, 0, LANES));
      },
      packed.data);
  in_parallel(form.batch, form.grain(), [&](int64_t first, int64_t end) {
    run_backward(form, given.data(), last.data(), packed.data, before.data(), keep.data(), floats_of(gates),
                 floats_of(first_c), first, end);
  });
  *dgates = gates.release();
  *dc0 = first_c.release();
  return 0;
}
#pragma GCC pop_options

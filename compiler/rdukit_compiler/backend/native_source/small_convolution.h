// Convolutions of small samples in float, with their gradients: one or two axes, stride 1, any padding and dilation.
//
// A padded copy of one sample lies in the cache. There, tap (channel, i, j) of every output position is the same plane
// shifted by a constant, so that each of the three products (output, gradient of the input, gradient of the weight) is
// a matrix product whose rows are shifted views: nothing is unfolded. Positions between the rows of a padded plane are
// computed too and left out at the end.
#pragma once
#include <map>
#include <mutex>
#include <vector>

#include "products.h"
#include "register_block.h"

#pragma GCC push_options
#pragma GCC optimize("O3", "fp-contract=fast")

namespace rdukit {
namespace small_convolution {

// Each of the following is a function of its own: within a larger one, sums would leave the registers.

// to[r][at] = sum over k of w[k][r] * from[shifts[k] + at] for R rows and the positions at in [0, run).
template <int R>
static __attribute__((noinline)) void sum_taps(int64_t taps, const float* w, const float* from, const int64_t* shifts,
                                               float* to, int64_t to_stride, int64_t run) {
  for (int64_t at = 0; at < run; at += WIDE)
    block<R, 2>(
        taps, [w](int64_t k, int r) { return w[k * BLOCK_ROWS + r]; },
        [from = from + at, shifts](int64_t k) { return from + shifts[k]; }, to + at, to_stride, false);
}

// to[k][f] += sum over the positions at in [0, run) of from[shifts[k] + at] * turned[at][f] for V * LANES filters.
template <int V>
static __attribute__((noinline)) void sum_positions(int64_t rows, const float* from, const int64_t* shifts,
                                                    const float* turned, float* to, int64_t stride, int64_t run) {
  constexpr int R = 2 * BLOCK_ROWS / V;
  for (int64_t k = 0; k < rows; k += R) {
    const float* p[R];
    for (int r = 0; r < R; r++) p[r] = from + shifts[k + r];
    block<R, V>(
        run, [&p](int64_t at, int r) { return p[r][at]; }, [=](int64_t at) { return turned + at * stride; },
        to + k * stride, stride, true);
  }
}

using SumTaps = void (*)(int64_t, const float*, const float*, const int64_t*, float*, int64_t, int64_t);
// sum_taps for the last rows too, of which there may be fewer than BLOCK_ROWS.
static inline SumTaps sum_taps_of(int64_t rows) {
  constexpr SumTaps made[] = {sum_taps<1>, sum_taps<2>, sum_taps<3>, sum_taps<4>, sum_taps<5>, sum_taps<6>};
  return made[rows - 1];
}

// One layer: x [batch, channels, height, width] and w [filters, channels, taps_y, taps_x] give
// y [batch, filters, out_height, out_width].
struct Form {
  int64_t batch, channels, height, width, filters, taps_y, taps_x, pad_y, pad_x, step_y, step_x;
  int64_t wide() const { return width + 2 * pad_x; }
  int64_t high() const { return height + 2 * pad_y; }
  int64_t out_width() const { return wide() - step_x * (taps_x - 1); }
  int64_t out_height() const { return high() - step_y * (taps_y - 1); }
  int64_t taps() const { return channels * taps_y * taps_x; }
  // From a plane's first output to its last, with what lies between the rows.
  int64_t run() const { return (out_height() - 1) * wide() + out_width(); }
  int64_t plane() const { return high() * wide(); }
  std::vector<int64_t> offsets() const {
    std::vector<int64_t> made;
    for (int64_t c = 0; c < channels; c++)
      for (int64_t i = 0; i < taps_y; i++)
        for (int64_t j = 0; j < taps_x; j++) made.push_back(c * plane() + i * step_y * wide() + j * step_x);
    return made;
  }
};

static inline int64_t whole(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// One image of a tensor [n, channels, height, width] of any strides; where mask, of the same shape, is not above zero,
// it counts as zero (the gradient of a rectifier whose output mask is).
struct Image {
  const float *data, *mask;
  const int64_t *strides, *mask_strides;
  // One row, side by side.
  RDUKIT_INLINE void read_row(float* to, int64_t n, int64_t c, int64_t i, int64_t width) const {
    const float* from = data + n * strides[0] + c * strides[1] + i * strides[2];
    int64_t step = strides[3], mask_step = mask ? mask_strides[3] : 0;
    if (step != 1) {
      for (int64_t j = 0; j < width; j++) to[j] = from[j * step];
    } else if (mask_step != 1) {
      __builtin_memcpy(to, from, width * sizeof(float));
    }
    if (!mask) return;
    const float* shown = mask + n * mask_strides[0] + c * mask_strides[1] + i * mask_strides[2];
    if (step != 1 || mask_step != 1) {
      for (int64_t j = 0; j < width; j++) to[j] = shown[j * mask_step] <= 0 ? 0 : to[j];
      return;
    }
    int64_t j = 0;  // in vectors, because which elements count cannot be foreseen
    for (; j + LANES <= width; j += LANES) put(to + j, lanes_at(shown + j) <= 0 ? Lanes{} : lanes_at(from + j));
    for (; j < width; j++) to[j] = shown[j] <= 0 ? 0 : from[j];
  }
};

// A sample's planes with zeros around them; the zeros are there already.
static void pad_into(float* to, const Image& image, int64_t n, const Form& form) {
  for (int64_t c = 0; c < form.channels; c++)
    for (int64_t i = 0; i < form.height; i++)
      image.read_row(to + c * form.plane() + (i + form.pad_y) * form.wide() + form.pad_x, n, c, i, form.width);
}

// w(f, c, i, j) as [blocks of BLOCK_ROWS filters][taps][BLOCK_ROWS], zeros at the end.
template <class W>
static std::vector<float> pack(const Form& form, W w) {
  std::vector<float> packed(whole(form.filters, BLOCK_ROWS) * form.taps());
  for (int64_t f = 0; f < form.filters; f++)
    for (int64_t c = 0, k = 0; c < form.channels; c++)
      for (int64_t i = 0; i < form.taps_y; i++)
        for (int64_t j = 0; j < form.taps_x; j++, k++)
          packed[(f / BLOCK_ROWS * form.taps() + k) * BLOCK_ROWS + f % BLOCK_ROWS] = w(f, c, i, j);
  return packed;
}

// y (contiguous) = convolution of x with packed weights.
static void forward(const Form& form, const Image& x, const std::vector<float>& packed, const float* bias,
                    bool is_rectified, float* y) {
  std::vector<int64_t> offsets = form.offsets();
  int64_t taps = form.taps(), run = form.run(), room = whole(run, WIDE), ow = form.out_width(), oh = form.out_height();
  int64_t grain = 1 + 200000 / (form.filters * taps * run / 8 + 1);
  in_parallel(form.batch, grain, [&](int64_t first, int64_t last) {
    std::vector<float> padded(form.channels * form.plane() + WIDE), made(BLOCK_ROWS * room);
    for (int64_t n = first; n < last; n++) {
      pad_into(padded.data(), x, n, form);
      for (int64_t f = 0; f < form.filters; f += BLOCK_ROWS) {
        const float* w = packed.data() + f * taps;
        int64_t rows = form.filters - f < BLOCK_ROWS ? form.filters - f : BLOCK_ROWS;
        sum_taps_of(rows)(taps, w, padded.data(), offsets.data(), made.data(), room, run);
        for (int64_t r = 0; r < rows; r++)
          for (int64_t i = 0; i < oh; i++) {
            float* to = y + ((n * form.filters + f + r) * oh + i) * ow;
            const float* from = made.data() + r * room + i * form.wide();
            float add = bias ? bias[f + r] : 0;
            int64_t j = 0;
            for (; j + LANES <= ow; j += LANES) {
              Lanes lanes = lanes_at(from + j) + add;
              put(to + j, is_rectified ? (lanes < 0 ? Lanes{} : lanes) : lanes);
            }
            for (; j < ow; j++) {
              float v = from[j] + add;
              to[j] = is_rectified && v < 0 ? 0 : v;
            }
          }
      }
    }
  });
}

// dw [filters, taps] and db [filters] from x and dy.
static void weight_gradients(const Form& form, const Image& x, const Image& dy, float* dw, float* db) {
  std::vector<int64_t> offsets = form.offsets();
  int64_t taps = form.taps(), run = form.run(), ow = form.out_width(), oh = form.out_height();
  int64_t room = form.filters <= LANES ? LANES : whole(form.filters, WIDE), rows = whole(taps, 2 * BLOCK_ROWS);
  offsets.resize(rows, 0);
  std::map<int64_t, std::vector<float>> parts;  // by first sample: added up in an order that does not change
  std::mutex lock;
  int64_t grain = 1 + 200000 / (form.filters * taps * run / 8 + 1);
  in_parallel(form.batch, grain, [&](int64_t first, int64_t last) {
    std::vector<float> padded(form.channels * form.plane() + WIDE), turned(run * room), line(ow);
    std::vector<float> own((rows + 1) * room);  // the last row is the bias'
    float* total = own.data() + rows * room;
    for (int64_t n = first; n < last; n++) {
      pad_into(padded.data(), x, n, form);
      for (int64_t i = 0; i < oh; i++)  // dy with its filters side by side; zeros between the rows
        for (int64_t f = 0; f < form.filters; f++) {
          float* to = turned.data() + i * form.wide() * room + f;
          dy.read_row(line.data(), n, f, i, ow);
          for (int64_t j = 0; j < ow; j++) to[j * room] = line[j];
        }
      if (room == LANES)
        sum_positions<1>(rows, padded.data(), offsets.data(), turned.data(), own.data(), room, run);
      else
        for (int64_t f = 0; f < room; f += WIDE)
          sum_positions<2>(rows, padded.data(), offsets.data(), turned.data() + f, own.data() + f, room, run);
      for (int64_t at = 0; at < run; at++)
        for (int64_t f = 0; f < room; f += LANES)
          put(total + f, lanes_at(total + f) + lanes_at(turned.data() + at * room + f));
    }
    std::lock_guard<std::mutex> guard(lock);
    parts[first] = std::move(own);
  });
  std::vector<float> sums((rows + 1) * room);
  for (const auto& part : parts)
    for (size_t i = 0; i < sums.size(); i++) sums[i] += part.second[i];
  for (int64_t f = 0; f < form.filters; f++) {
    for (int64_t k = 0; k < taps; k++) dw[f * taps + k] = sums[k * room + f];
    db[f] = sums[rows * room + f];
  }
}

// A tensor [n, c, width] or [n, c, height, width] by four axes.
struct Planes {
  const float* data;
  int64_t sizes[4], strides[4];
  explicit Planes(AtenTensorHandle tensor) {
    View view(tensor);
    if (view.dtype != aoti_torch_dtype_float32() || view.dim < 3) throw std::runtime_error("not planes of floats");
    data = (const float*)view.data;
    int64_t last = view.dim - 1;
    for (int to : {0, 1}) sizes[to] = view.sizes[to], strides[to] = view.strides[to];
    sizes[2] = view.dim == 4 ? view.sizes[2] : 1, strides[2] = view.dim == 4 ? view.strides[2] : 0;
    sizes[3] = view.sizes[last], strides[3] = view.strides[last];
  }
  float at(int64_t a, int64_t b, int64_t c, int64_t d) const {
    return data[a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3]];
  }
  Image image() const { return Image{data, nullptr, strides, nullptr}; }
  Image image(const Planes* mask) const {
    return mask ? Image{data, mask->data, strides, mask->strides} : image();
  }
};

static inline AtenTensorHandle new_planes(bool is_line, int64_t a, int64_t b, int64_t c, int64_t d) {
  int64_t four[] = {a, b, c, d}, three[] = {a, b, d};
  return new_tensor(is_line ? 3 : 4, is_line ? three : four, aoti_torch_dtype_float32());
}

static inline bool is_line(AtenTensorHandle tensor) {
  int64_t dim;
  must(aoti_torch_get_dim(tensor, &dim));
  return dim == 3;
}

}  // namespace small_convolution
}  // namespace rdukit

// rdukit::rdukit_small_convolution(Tensor x, Tensor w, Tensor? bias, int pad_y, int pad_x, int step_y, int step_x,
//                            bool is_rectified) -> Tensor
static AOTITorchError aoti_torch_cpu_rdukit_small_convolution(AtenTensorHandle x, AtenTensorHandle w,
                                                              AtenTensorHandle* bias, int64_t pad_y, int64_t pad_x,
                                                              int64_t step_y, int64_t step_x, int32_t is_rectified,
                                                              AtenTensorHandle* made) {
  using namespace rdukit;
  using namespace rdukit::small_convolution;
  Planes px(x), pw(w);
  Form form{px.sizes[0], px.sizes[1], px.sizes[2], px.sizes[3], pw.sizes[0], pw.sizes[2],
            pw.sizes[3], pad_y,       pad_x,       step_y,      step_x};
  Floats add = float_vector(bias, form.filters);
  RAIIAtenTensorHandle out(new_planes(is_line(x), form.batch, form.filters, form.out_height(), form.out_width()));
  auto packed = pack(form, [&](int64_t f, int64_t c, int64_t i, int64_t j) { return pw.at(f, c, i, j); });
  forward(form, px.image(), packed, add.data, is_rectified, floats_of(out));
  *made = out.release();
  return 0;
}

// rdukit::rdukit_small_convolution_weight(Tensor x, Tensor dy, Tensor? mask, int pad_y, int pad_x, int step_y,
//     int step_x, int taps_y, int taps_x) -> (Tensor, Tensor): the gradients of weight and bias from dy, of which
// elements count where mask is above zero.
static AOTITorchError aoti_torch_cpu_rdukit_small_convolution_weight(AtenTensorHandle x, AtenTensorHandle dy,
                                                                     AtenTensorHandle* mask, int64_t pad_y,
                                                                     int64_t pad_x, int64_t step_y, int64_t step_x,
                                                                     int64_t taps_y, int64_t taps_x,
                                                                     AtenTensorHandle* weight, AtenTensorHandle* bias) {
  using namespace rdukit;
  using namespace rdukit::small_convolution;
  Planes px(x), pg(dy);
  std::unique_ptr<Planes> pm(mask ? new Planes(*mask) : nullptr);
  Form form{px.sizes[0], px.sizes[1], px.sizes[2], px.sizes[3], pg.sizes[1], taps_y,
            taps_x,      pad_y,       pad_x,       step_y,      step_x};
  RAIIAtenTensorHandle dw(new_planes(is_line(x), form.filters, form.channels, taps_y, taps_x));
  RAIIAtenTensorHandle db(new_tensor(1, &form.filters, aoti_torch_dtype_float32()));
  weight_gradients(form, px.image(), pg.image(pm.get()), floats_of(dw), floats_of(db));
  *weight = dw.release();
  *bias = db.release();
  return 0;
}

// rdukit::rdukit_small_convolution_backward(Tensor x, Tensor dy, Tensor? mask, int pad_y, int pad_x, int step_y,
//     int step_x, Tensor w) -> (Tensor, Tensor, Tensor): the gradients of input, weight and bias.
// The input's is the convolution of dy with the turned taps, padded by what the taps reach less the padding.
static AOTITorchError aoti_torch_cpu_rdukit_small_convolution_backward(AtenTensorHandle x, AtenTensorHandle dy,
                                                                       AtenTensorHandle* mask, int64_t pad_y,
                                                                       int64_t pad_x, int64_t step_y, int64_t step_x,
                                                                       AtenTensorHandle w, AtenTensorHandle* input,
                                                                       AtenTensorHandle* weight,
                                                                       AtenTensorHandle* bias) {
  using namespace rdukit;
  using namespace rdukit::small_convolution;
  Planes pg(dy), pw(w);
  std::unique_ptr<Planes> pm(mask ? new Planes(*mask) : nullptr);
  int64_t taps_y = pw.sizes[2], taps_x = pw.sizes[3];
  Form form{pg.sizes[0], pw.sizes[0], pg.sizes[2], pg.sizes[3], pw.sizes[1], taps_y, taps_x,
            step_y * (taps_y - 1) - pad_y, step_x * (taps_x - 1) - pad_x, step_y, step_x};
  RAIIAtenTensorHandle dx(new_planes(is_line(dy), form.batch, form.filters, form.out_height(), form.out_width()));
  auto packed = pack(form, [&](int64_t f, int64_t c, int64_t i, int64_t j) {
    return pw.at(c, f, taps_y - 1 - i, taps_x - 1 - j);
  });
  forward(form, pg.image(pm.get()), packed, nullptr, false, floats_of(dx));
  must(aoti_torch_cpu_rdukit_small_convolution_weight(x, dy, mask, pad_y, pad_x, step_y, step_x, taps_y, taps_x, weight,
                                                      bias));
  *input = dx.release();
  return 0;
}
#pragma GCC pop_options

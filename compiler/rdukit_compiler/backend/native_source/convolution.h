// Convolutions in inference: scale and shift of the channels that leave, and a ReLU, are part of the convolution.
// Images lie channels last; the weights are brought to that order, and scaled, in each call: state stays outside.
// Computed by oneDNN, or of 3 x 3 taps by winograd.h where that is the route.
#pragma once
#include "products.h"
#include "winograd.h"

#ifndef RDUKIT_WINOGRAD
#define RDUKIT_WINOGRAD 0
#endif

namespace rdukit {

// to[o][y][x][i] = from[o][i][y][x] * scale[o]
template <class T>
static void turn_weights(float* to, const T* from, const View& w, const float* scale) {
  int64_t out = w.sizes[0], in = w.sizes[1], rows = w.sizes[2], columns = w.sizes[3];
  in_parallel(out, 1 + 16384 / (in * rows * columns + 1), [&](int64_t first, int64_t last) {
    for (int64_t o = first; o < last; o++) {
      float factor = scale ? scale[o] : 1.0f;
      for (int64_t y = 0; y < rows; y++)
        for (int64_t x = 0; x < columns; x++) {
          const T* source = from + o * w.strides[0] + y * w.strides[2] + x * w.strides[3];
          float* target = to + ((o * rows + y) * columns + x) * in;
          for (int64_t i = 0; i < in; i++) target[i] = value(source[i * w.strides[1]]) * factor;
        }
    }
  });
}

// Whether [b,c,h,w] lies as [b][h][w][c] without gaps.
static inline bool is_channels_last(const View& x) {
  int64_t step = 1;
  for (int64_t axis : {1, 3, 2, 0}) {
    if (x.sizes[axis] != 1 && x.strides[axis] != step) return false;
    step *= x.sizes[axis];
  }
  return true;
}

template <class T>
static void by_winograd(const winograd::Form& form, const float* x, const T* w, const View& vw, const float* scale,
                        const float* shift, bool is_rectified, float* y) {
  std::unique_ptr<float[]> packed(new float[form.weights()]);
  auto weight = [&](int64_t o, int64_t i, int64_t tap) {
    return value(w[o * vw.strides[0] + i * vw.strides[1] + tap / 3 * vw.strides[2] + tap % 3 * vw.strides[3]]);
  };
  in_parallel(form.out / WIDE, 1 + 16384 / (9 * form.in * WIDE), [&](int64_t first, int64_t last) {
    winograd::pack_weights(form, weight, scale, packed.get(), first, last);
  });
  winograd::convolve(form, x, packed.get(), shift, is_rectified, y,
                     [](int64_t count, int64_t grain, auto f) { in_parallel(count, grain, f); });
}

// oneDNN's own ReLU makes zero of NaN.
static void rectify(float* values, int64_t count) {
  in_parallel(count, 1 << 15, [&](int64_t first, int64_t last) {
    int64_t i = first;
    for (; i + LANES <= last; i += LANES) {
      Lanes lanes = lanes_at(values + i);
      put(values + i, lanes < 0 ? Lanes{} : lanes);
    }
    for (; i < last; i++) values[i] = values[i] < 0 ? 0 : values[i];
  });
}

}  // namespace rdukit

// rdukit::rdukit_convolution(Tensor x [b,i,y,x], Tensor w [o,i,h,w], Tensor? scale [o], Tensor? shift [o], strides,
// paddings, dilations, bool relu) -> Tensor [b,o,y,x]; x and the result are float and lie channels last.
static AOTITorchError aoti_torch_cpu_rdukit_convolution(AtenTensorHandle x, AtenTensorHandle w, AtenTensorHandle* scale,
                                                 AtenTensorHandle* shift, int64_t stride_y, int64_t stride_x,
                                                 int64_t padding_y, int64_t padding_x, int64_t dilation_y,
                                                 int64_t dilation_x, int32_t relu, AtenTensorHandle* made) {
  using namespace rdukit;
  View vx(x), vw(w);
  int64_t in = vw.sizes[1], rows = vw.sizes[2], columns = vw.sizes[3];
  if (vx.dim != 4 || vx.is_bf16() || (vx.sizes[1] > 1 && vx.strides[1] != 1))
    throw std::runtime_error("an image does not lie channels last");
  Floats scales = float_vector(scale, vw.sizes[0]);
  bool is_plain_step = stride_y == 1 && stride_x == 1 && dilation_y == 1 && dilation_x == 1;
  winograd::Form form{vx.sizes[0], vx.sizes[2], vx.sizes[3], in, vw.sizes[0], padding_y, padding_x};
  if (RDUKIT_WINOGRAD && rows == 3 && columns == 3 && is_plain_step && padding_y < 3 && padding_x < 3 &&
      form.rows() > 0 && form.columns() > 0 && winograd::fits(in, form.out) && is_channels_last(vx)) {
    int64_t sizes[] = {form.batch, form.out, form.rows(), form.columns()};
    int64_t last[] = {form.out * form.rows() * form.columns(), 1, form.out * form.columns(), form.out};
    AtenTensorHandle handle;
    must(aoti_torch_empty_strided(4, sizes, last, vx.dtype, aoti_torch_device_type_cpu(), 0, &handle));
    RAIIAtenTensorHandle out(handle);
    Floats shifts = float_vector(shift, form.out);
    float* y = (float*)View(out).data;
    if (vw.is_bf16())
      by_winograd(form, (const float*)vx.data, (const bf16*)vw.data, vw, scales.data, shifts.data, relu, y);
    else
      by_winograd(form, (const float*)vx.data, (const float*)vw.data, vw, scales.data, shifts.data, relu, y);
    *made = out.release();
    return 0;
  }
  int64_t strides[] = {rows * columns * in, 1, columns * in, in};
  AtenTensorHandle handle;
  must(aoti_torch_empty_strided(4, vw.sizes, strides, aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), 0,
                                &handle));
  RAIIAtenTensorHandle turned(handle);
  void* to;
  must(aoti_torch_get_data_ptr(turned, &to));
  if (vw.is_bf16())
    turn_weights((float*)to, (const bf16*)vw.data, vw, scales.data);
  else
    turn_weights((float*)to, (const float*)vw.data, vw, scales.data);
  int64_t padding[] = {padding_y, padding_x}, stride[] = {stride_y, stride_x}, dilation[] = {dilation_y, dilation_x};
  must(aoti_torch_cpu_mkldnn__convolution_pointwise(x, turned, shift, padding, 2, stride, 2, dilation, 2, 1,
                                                    "none", nullptr, 0, nullptr, &handle));
  RAIIAtenTensorHandle result(handle);
  View vr(result);
  if (relu) rectify((float*)vr.data, vr.sizes[0] * vr.sizes[1] * vr.sizes[2] * vr.sizes[3]);
  bool is_plain = vr.sizes[2] * vr.sizes[3] == 1 || vr.sizes[1] == 1;
  if (!is_plain && vr.strides[1] != 1) {  // shapes that are both orders at once: the library took the other
    int64_t c = vr.sizes[1], last[] = {c * vr.sizes[2] * vr.sizes[3], 1, c * vr.sizes[3], c};
    must(aoti_torch_empty_strided(4, vr.sizes, last, vr.dtype, aoti_torch_device_type_cpu(), 0, &handle));
    RAIIAtenTensorHandle moved(handle);
    must(aoti_torch_copy_(moved, result, 0));
    *made = moved.release();
  } else {
    *made = result.release();
  }
  return 0;
}

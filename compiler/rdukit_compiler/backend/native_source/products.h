// Matrix products by the route that is fast here, as operators that inductor's code calls through torch's C interface.
//
// Routes: ROWS, a row or some against a weight matrix that lies in rows (row_linear.h); FLOAT, bf16 operands computed by
// float's product (the BLAS's or oneDNN's, as float operands go), for processors without bf16 instructions; ONEDNN,
// float operands by oneDNN instead of the BLAS; FEW, float operands of which one dimension is a small batch's
// (few_row_product.h).
#pragma once
#include <torch/csrc/inductor/aoti_runtime/utils.h>
#include <torch/csrc/inductor/aoti_torch/c/shim_cpu.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#include <torch/csrc/stable/c/shim.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <type_traits>

#include "few_row_product.h"
#include "row_int8.h"
#include "row_linear.h"
#include "row_pairs.h"

#ifndef RDUKIT_FLOAT_ONEDNN
#define RDUKIT_FLOAT_ONEDNN 0
#endif

namespace rdukit {

using torch::aot_inductor::RAIIAtenTensorHandle;

// Rows up to which a product reads its weights once, in a sweep, and attention takes its queries one by one; and rows up
// to which weights are read so where no other product of ours is faster: as in routes.py.
constexpr int64_t FEW_ROWS = 8, SOME_ROWS = 16;

enum Route : int64_t { ROWS = 0, FLOAT = 1, ONEDNN = 2, FEW = 3 };

static inline void must(AOTITorchError status) {
  if (status != 0) throw std::runtime_error("a call of torch's C interface failed");
}

static inline float* floats_of(AtenTensorHandle tensor) {
  void* data;
  must(aoti_torch_get_data_ptr(tensor, &data));
  return (float*)data;
}

// A tensor's place and form, looked up once.
struct View {
  void* data;
  int32_t dtype;
  int64_t dim, sizes[4], strides[4];
  explicit View(AtenTensorHandle tensor) {
    must(aoti_torch_get_dim(tensor, &dim));
    if (dim > 4) throw std::runtime_error("a product of more than four dimensions");
    int64_t* values;
    must(aoti_torch_get_sizes(tensor, &values));
    for (int64_t i = 0; i < dim; i++) sizes[i] = values[i];
    must(aoti_torch_get_strides(tensor, &values));
    for (int64_t i = 0; i < dim; i++) strides[i] = values[i];
    must(aoti_torch_get_dtype(tensor, &dtype));
    must(aoti_torch_get_data_ptr(tensor, &data));
  }
  bool is_bf16() const { return dtype == aoti_torch_dtype_bfloat16(); }
  bool is_int8() const { return dtype == aoti_torch_dtype_int8(); }
};

static inline AtenTensorHandle new_tensor(int64_t dim, const int64_t* sizes, int32_t dtype) {
  int64_t strides[4], step = 1;
  for (int64_t i = dim - 1; i >= 0; i--) {
    strides[i] = step;
    step *= sizes[i];
  }
  AtenTensorHandle made;
  must(aoti_torch_empty_strided(dim, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, &made));
  return made;
}

static inline int32_t dtype_of(const float*) { return aoti_torch_dtype_float32(); }
static inline int32_t dtype_of(const bf16*) { return aoti_torch_dtype_bfloat16(); }

template <class T>
static inline RAIIAtenTensorHandle matrix_at(T* data, int64_t rows, int64_t columns, int64_t row_stride,
                                             int64_t column_stride) {
  int64_t sizes[] = {rows, columns}, strides[] = {row_stride, column_stride};
  AtenTensorHandle made;
  must(aoti_torch_create_tensor_from_blob(data, 2, sizes, strides, 0, dtype_of(data), aoti_torch_device_type_cpu(), 0,
                                          &made));
  return RAIIAtenTensorHandle(made);
}

// bf16 to float, n contiguous elements.
static inline void widen(float* to, const bf16* from, int64_t n) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    Lanes lanes = load(from + i);
    std::memcpy(to + i, &lanes, sizeof lanes);
  }
  for (; i < n; i++) to[i] = value(from[i]);
}

// float, with a bias added if there is one, to bf16, rounded to even; with bf16 instructions, what is below the normal
// numbers becomes zero.
static inline void narrow(bf16* to, const float* from, int64_t n, const float* bias = nullptr) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    Lanes lanes = load(from + i);
    if (bias) lanes += load(bias + i);
#if defined(__AVX512BF16__)
    _mm256_storeu_si256((__m256i*)(to + i), (__m256i)_mm512_cvtneps_pbh((__m512)lanes));
#else
    Words bits = (Words)lanes;
    Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    // not a number: keep it one
    rounded = (bits & 0x7fffffff) > 0x7f800000 ? Words{} + 0x7fc0 : rounded;
    Halves halves = __builtin_convertvector(rounded, Halves);
    std::memcpy(to + i, &halves, sizeof halves);
#endif
  }
  for (; i < n; i++) store(to + i, bias ? from[i] + bias[i] : from[i]);
}

// A bf16 matrix as floats with the same order of its elements in memory; strides of the result are (rs, cs).
static inline void widen_matrix(float* to, const bf16* from, int64_t rows, int64_t columns, int64_t row_stride,
                                int64_t column_stride, int64_t* rs, int64_t* cs) {
  if (column_stride == 1 || (row_stride != 1 && columns > 0)) {
    *rs = columns;
    *cs = 1;
    for (int64_t r = 0; r < rows; r++) {
      if (column_stride == 1)
        widen(to + r * columns, from + r * row_stride, columns);
      else
        for (int64_t c = 0; c < columns; c++) to[r * columns + c] = value(from[r * row_stride + c * column_stride]);
    }
  } else {
    *rs = 1;
    *cs = rows;
    for (int64_t c = 0; c < columns; c++) widen(to + c * rows, from + c * column_stride, rows);
  }
}

template <class F>
static void in_parallel(int64_t count, int64_t grain, F f) {
  if (count <= grain) return f(0, count);
  must(torch_parallel_for(
      0, count, grain, [](int64_t first, int64_t last, void* context) { (*(F*)context)(first, last); }, &f));
}

struct Floats {
  std::unique_ptr<float[]> own;
  const float* data = nullptr;
  int64_t stride = 0;
};

// The rows of a matrix as floats whose elements lie side by side.
static inline Floats float_rows(const View& a, int64_t m, int64_t k) {
  Floats made;
  int64_t rs = a.strides[0], cs = a.strides[1];
  if (!a.is_bf16() && (cs == 1 || k == 1)) {
    made.data = (const float*)a.data;
    made.stride = rs;
    return made;
  }
  made.own.reset(new float[m * k]);
  for (int64_t r = 0; r < m; r++)
    for (int64_t c = 0; c < k; c++)
      made.own[r * k + c] = a.is_bf16() ? value(((const bf16*)a.data)[r * rs + c * cs])
                                        : ((const float*)a.data)[r * rs + c * cs];
  made.data = made.own.get();
  made.stride = k;
  return made;
}

static inline Floats float_vector(AtenTensorHandle* tensor, int64_t n) {
  Floats made;
  if (!tensor) return made;
  View v(*tensor);
  if (!v.is_bf16() && v.strides[0] == 1) {
    made.data = (const float*)v.data;
    return made;
  }
  made.own.reset(new float[n]);
  for (int64_t i = 0; i < n; i++)
    made.own[i] = v.is_bf16() ? value(((const bf16*)v.data)[i * v.strides[0]])
                              : ((const float*)v.data)[i * v.strides[0]];
  made.data = made.own.get();
  return made;
}

// Calls f with blocks of eight, four, two and one of m rows, none larger than MOST: (rows of the block, first row), the
// count as a constant.
template <int MOST, class F>
static void in_row_blocks(int64_t m, F f) {
  int64_t i = 0;
  if constexpr (MOST >= 8)
    for (; i + 8 <= m; i += 8) f(std::integral_constant<int, 8>{}, i);
  if constexpr (MOST >= 4)
    for (; i + 4 <= m; i += 4) f(std::integral_constant<int, 4>{}, i);
  for (; i + 2 <= m; i += 2) f(std::integral_constant<int, 2>{}, i);
  for (; i < m; i++) f(std::integral_constant<int, 1>{}, i);
}

// Calls f for blocks of x's m rows and chunks of W's n: (rows of the block, its first row, first and last row of the
// chunk). A chunk stays in the cache for all blocks, so that W is read from memory once.
template <int MOST, class F>
static void in_tiles(int64_t m, int64_t n, int64_t row_bytes, F f) {
  constexpr int64_t KEPT = 131072;  // bytes of W
  int64_t chunk = m <= MOST ? n : std::max<int64_t>(KEPT / (row_bytes + 1) / LANES, 1) * LANES;
  // At least 32 KiB of W a thread: less does not pay for waking one.
  in_parallel(n, 1 + 32768 / (row_bytes + 1), [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += chunk)
      in_row_blocks<MOST>(m, [&](auto count, int64_t i) { f(count, i, first, std::min(end, first + chunk)); });
  });
}

#if defined(__AVX512BW__)
// y[m,n] by products of pairs; x has rows of x_stride elements, ``steps`` what each of its rows is a multiple of.
template <class W, class Y>
static void rows_of_pairs(const typename W::X* x, int64_t x_stride, const float* steps, const W& w, const float* scale,
                          const float* bias, Y* y, int64_t m, int64_t n) {
  in_tiles<W::MOST>(m, n, w.row_bytes(), [&](auto count, int64_t i, int64_t first, int64_t last) {
    pairs::rows<count>(x + i * x_stride, x_stride, w, first, last, i == 0, [&](int64_t row, int64_t r, float v) {
      if (steps) v *= steps[i + row];
      if (scale) v *= scale[r];
      store(y + (i + row) * n + r, bias ? v + bias[r] : v);
    });
  });
}
#endif

// The rows of a bf16 matrix with elements that lie side by side.
struct NarrowRows {
  std::unique_ptr<bf16[]> own;
  const bf16* data;
  int64_t stride;
  NarrowRows(const View& a, int64_t m, int64_t k) : data((const bf16*)a.data), stride(a.strides[0]) {
    if (a.strides[1] == 1 || k == 1) return;
    own.reset(new bf16[m * k]);
    for (int64_t r = 0; r < m; r++)
      for (int64_t c = 0; c < k; c++) own[r * k + c] = data[r * stride + c * a.strides[1]];
    data = own.get();
    stride = k;
  }
};

// a [m,k] has the dtype of y.
template <class W, class Y>
static void few_rows(const View& a, const W* w, const float* scale, const float* bias, Y* y, int64_t m, int64_t n,
                     int64_t k) {
  constexpr bool IS_NARROW = sizeof(Y) == 2, IS_INT8 = sizeof(W) == 1;
#if defined(__AVX512BF16__)
  if constexpr (IS_NARROW && !IS_INT8)
    if (m > 1) {
      NarrowRows x(a, m, k);
      return rows_of_pairs(x.data, x.stride, nullptr, pairs::OfBf16{w, k}, scale, bias, y, m, n);
    }
#endif
  Floats x = float_rows(a, m, k);
  if constexpr (IS_NARROW && IS_INT8)
    if (Rounded rounded; round_rows(x.data, x.stride, m, k, &rounded)) {
#if defined(__AVX512VNNI__)
      if (m > 1)
        return rows_of_pairs(rounded.data.get(), k, rounded.steps.get(), pairs::OfInt8{w, k}, scale, bias, y, m, n);
#endif
      return in_tiles<4>(m, n, k, [&](auto count, int64_t i, int64_t first, int64_t last) {
        rows<count>(rounded, i, w, scale, bias, y + i * n, n, k, first, last);
      });
    }
  // Eight where there are registers for their sums.
  in_tiles<LANES == 16 ? 8 : 4>(m, n, k * sizeof(W), [&](auto count, int64_t i, int64_t first, int64_t last) {
    rows<count>(x.data + i * x.stride, x.stride, w, scale, bias, y + i * n, n, k, first, last);
  });
}

// A part of a bf16 matrix, or of its copy in floats: where it lies, and its strides.
struct Part {
  float* data;
  int64_t row_stride, column_stride;
};

// A part of a product, a [m,k] b [k,n], by the way that is fast for floats. ``sums`` [m,n] has room for it, and what it
// is added to if it is_added. Gives where it is: there, or in ``made`` if the product is_whole.
static inline const float* float_product(float* sums, const Part& a, const Part& b, bool is_whole, bool is_added,
                                         int64_t m, int64_t n, int64_t k, RAIIAtenTensorHandle& made) {
  auto left = matrix_at(a.data, m, k, a.row_stride, a.column_stride);
  if (RDUKIT_FLOAT_ONEDNN && k > 0) {
    auto turned = matrix_at(b.data, n, k, b.column_stride, b.row_stride);
    AtenTensorHandle product;
    must(aoti_torch_cpu__linear_pointwise(left, turned, nullptr, "none", nullptr, 0, nullptr, &product));
    made = RAIIAtenTensorHandle(product);
    const float* data = floats_of(made);
    if (is_whole) return data;
    for (int64_t i = 0; i < m * n; i++) sums[i] = is_added ? sums[i] + data[i] : data[i];
    return sums;
  }
  auto out = matrix_at(sums, m, n, n, 1), right = matrix_at(b.data, k, n, b.row_stride, b.column_stride);
  if (is_added)
    must(aoti_torch_cpu_addmm_out(out, out, left, right, 1, 1));
  else
    must(aoti_torch_cpu_mm_out(out, left, right));
  return sums;
}

// y = a b + bias for bf16 a [m,k] and b [k,n], in blocks that stay in the cache while float's product uses them.
static void bf16_product(const View& a, const View& b, const float* bias, bf16* y, int64_t m, int64_t n, int64_t k) {
  constexpr int64_t BLOCK = 262144, KEPT = 4194304;  // elements
  int64_t deep = k <= 4096 ? k : 2048, tall = m <= 1024 ? m : 512;
  int64_t broad = BLOCK / (deep > 0 ? deep : 1) / 16 * 16;
  broad = broad < 64 ? 64 : broad;
  broad = broad > n ? n : broad;
  bool is_kept = m * k <= KEPT;  // then a is widened once, else again for each block of columns
  std::unique_ptr<float[]> wide_a(new float[is_kept ? m * k : tall * deep]), wide_b(new float[broad * deep]);
  std::unique_ptr<float[]> room(new float[tall * broad]);
  Part whole{wide_a.get(), 0, 0};
  if (is_kept)
    widen_matrix(whole.data, (const bf16*)a.data, m, k, a.strides[0], a.strides[1], &whole.row_stride,
                 &whole.column_stride);
  int64_t widened_column = -1, widened_depth = -1;
  Part right{wide_b.get(), 0, 0};
  for (int64_t column = 0; column < n; column += broad) {
    int64_t columns = n - column < broad ? n - column : broad;
    for (int64_t row = 0; row < m; row += tall) {
      int64_t rows = m - row < tall ? m - row : tall;
      const float* sums = room.get();
      RAIIAtenTensorHandle made;
      for (int64_t depth = 0; depth < k; depth += deep) {
        int64_t count = k - depth < deep ? k - depth : deep;
        if (widened_column != column || widened_depth != depth) {
          widen_matrix(right.data, (const bf16*)b.data + depth * b.strides[0] + column * b.strides[1], count, columns,
                       b.strides[0], b.strides[1], &right.row_stride, &right.column_stride);
          widened_column = column;
          widened_depth = depth;
        }
        Part left{whole.data + row * whole.row_stride + depth * whole.column_stride, whole.row_stride,
                  whole.column_stride};
        if (!is_kept)
          widen_matrix(left.data = wide_a.get(), (const bf16*)a.data + row * a.strides[0] + depth * a.strides[1], rows,
                       count, a.strides[0], a.strides[1], &left.row_stride, &left.column_stride);
        sums = float_product(room.get(), left, right, deep == k, depth > 0, rows, columns, count, made);
      }
      if (k == 0) std::memset(room.get(), 0, rows * columns * sizeof(float));
      for (int64_t r = 0; r < rows; r++)
        narrow(y + (row + r) * n + column, sums + r * columns, columns, bias ? bias + column : nullptr);
    }
  }
}

}  // namespace rdukit

// rdukit::rdukit_product(Tensor a [m,k], Tensor b [k,n], Tensor? bias [n], int route) -> Tensor [m,n]
static AOTITorchError aoti_torch_cpu_rdukit_product(AtenTensorHandle a, AtenTensorHandle b, AtenTensorHandle* bias,
                                             int64_t route, AtenTensorHandle* made) {
  using namespace rdukit;
  View va(a), vb(b);
  int64_t m = va.sizes[0], k = va.sizes[1], n = vb.sizes[1], sizes[] = {m, n};
  if (route == ONEDNN) {
    int64_t turned_sizes[] = {n, k}, turned_strides[] = {vb.strides[1], vb.strides[0]};
    AtenTensorHandle turned;
    must(aoti_torch__reinterpret_tensor(b, 2, turned_sizes, turned_strides, 0, &turned));
    RAIIAtenTensorHandle held(turned);
    return aoti_torch_cpu__linear_pointwise(a, held, bias, "none", nullptr, 0, nullptr, made);
  }
  RAIIAtenTensorHandle out(new_tensor(2, sizes, va.dtype));
  View vy(out);
  Floats biases = float_vector(bias, n);
  if (route == FLOAT) {
    bf16_product(va, vb, biases.data, (bf16*)vy.data, m, n, k);
  } else if (route == FEW) {
    using few_row_product::Matrix;
    few_row_product::multiply(Matrix{(const float*)va.data, va.strides[0], va.strides[1]},
                              Matrix{(const float*)vb.data, vb.strides[0], vb.strides[1]}, biases.data,
                              (float*)vy.data, m, n, k,
                              [](int64_t count, int64_t grain, auto f) { in_parallel(count, grain, f); });
  } else {
    if (vb.strides[0] != 1 || vb.strides[1] != k) throw std::runtime_error("the weights do not lie in rows");
    if (va.is_bf16())
      few_rows(va, (const bf16*)vb.data, nullptr, biases.data, (bf16*)vy.data, m, n, k);
    else
      few_rows(va, (const float*)vb.data, nullptr, biases.data, (float*)vy.data, m, n, k);
  }
  *made = out.release();
  return 0;
}

// rdukit::rdukit_batch_product(Tensor a [b,m,k], Tensor b [b,k,n]) -> Tensor [b,m,n], bf16 by float's product
static AOTITorchError aoti_torch_cpu_rdukit_batch_product(AtenTensorHandle a, AtenTensorHandle b, AtenTensorHandle* made) {
  using namespace rdukit;
  View va(a), vb(b);
  int64_t count = va.sizes[0], m = va.sizes[1], k = va.sizes[2], n = vb.sizes[2], sizes[] = {count, m, n};
  RAIIAtenTensorHandle out(new_tensor(3, sizes, va.dtype));
  View vy(out);
  std::unique_ptr<float[]> wide_a(new float[m * k]), wide_b(new float[k * n]), wide_y(new float[m * n]);
  for (int64_t i = 0; i < count; i++) {
    int64_t ars, acs, brs, bcs;
    widen_matrix(wide_a.get(), (const bf16*)va.data + i * va.strides[0], m, k, va.strides[1], va.strides[2], &ars, &acs);
    widen_matrix(wide_b.get(), (const bf16*)vb.data + i * vb.strides[0], k, n, vb.strides[1], vb.strides[2], &brs, &bcs);
    RAIIAtenTensorHandle product;
    Part left{wide_a.get(), ars, acs}, right{wide_b.get(), brs, bcs};
    const float* sums = float_product(wide_y.get(), left, right, true, false, m, n, k, product);
    narrow((bf16*)vy.data + i * m * n, sums, m * n);
  }
  *made = out.release();
  return 0;
}

// Attention whose logarithms of sums nobody reads: few queries one by one, more of bf16 in blocks, more of f32 by ATen.
#pragma once
#include "block_attention.h"
#include "row_attention.h"

namespace rdukit {

// How many positions any query of the b-th text may see.
static inline int64_t seen_positions(const View* mask, int64_t b, int64_t rows, int64_t positions) {
  if (!mask) return positions;
  const std::array<int64_t, 4> at = mask_steps(*mask);
  int64_t heads = at[1] ? mask->sizes[mask->dim - 3] : 1, seen = 0;
  for (int64_t h = 0; h < heads; h++)
    for (int64_t r = 0; r < rows; r++) {
      int64_t start = b * at[0] + h * at[1] + r * at[2];
      seen = std::max(seen, seen_by(*mask, start, at[3], positions));
    }
  return seen;
}

static inline RAIIAtenTensorHandle part_of(const View& whole, int64_t offset, const int64_t (&sizes)[4],
                                           const int64_t (&strides)[4]) {
  AtenTensorHandle made;
  must(aoti_torch_create_tensor_from_blob((float*)whole.data + offset, 4, sizes, strides, 0, whole.dtype,
                                          aoti_torch_device_type_cpu(), 0, &made));
  return RAIIAtenTensorHandle(made);
}

// Many f32 queries of each text, by ATen's attention to no more than what they may see.
static void seen_attention(const View& q, const View& k, const View& v, const View* mask, const View* texts,
                           double scale, const View& out) {
  int64_t heads = q.sizes[1], rows = q.sizes[2], width = q.sizes[3], groups = k.sizes[1], each = heads / groups;
  for (int64_t b = 0; b < q.sizes[0]; b++) {
    int64_t text = text_of(texts, b, k.sizes[0]), seen = seen_positions(mask, b, rows, k.sizes[2]);
    auto kept = [&](const View& x) {  // each group's heads read the same
      return part_of(x, text * x.strides[0], {groups, each, seen, width}, {x.strides[1], 0, x.strides[2], x.strides[3]});
    };
    RAIIAtenTensorHandle keys = kept(k), values = kept(v);
    RAIIAtenTensorHandle queries = part_of(q, b * q.strides[0], {groups, each, rows, width},
                                           {each * q.strides[1], q.strides[1], q.strides[2], q.strides[3]});
    RAIIAtenTensorHandle allowed;
    AtenTensorHandle given = nullptr, made, sums;
    if (mask) {
      const std::array<int64_t, 4> at = mask_steps(*mask);
      bool is_shared = at[1] == 0;
      allowed = part_of(*mask, b * at[0], {is_shared ? 1 : groups, is_shared ? 1 : each, rows, seen},
                        {each * at[1], at[1], at[2], at[3]});
      given = allowed.get();
    }
    must(aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu(queries, keys, values, 0, 0, mask ? &given : nullptr,
                                                                    &scale, &made, &sums));
    RAIIAtenTensorHandle result(made), unread(sums);
    View y(made);
    for (int64_t h = 0; h < heads; h++)
      for (int64_t r = 0; r < rows; r++)
        std::memcpy((float*)out.data + b * out.strides[0] + h * out.strides[1] + r * out.strides[2],
                    (float*)y.data + h / each * y.strides[0] + h % each * y.strides[1] + r * y.strides[2],
                    width * sizeof(float));
  }
}

}  // namespace rdukit

// rdukit::rdukit_attention(Tensor q [B,H,T,D], Tensor k [B,G,S,D], Tensor v [B,G,S,D], Tensor? mask, Tensor? texts [B],
//                          float scale, bool is_causal, int step_b, int step_h, int step_t) -> Tensor [B,H,T,D]
// The steps are the result's strides. With texts the keys and values are [R,G,S,D], and those numbers say which of the R
// each b reads.
static AOTITorchError aoti_torch_cpu_rdukit_attention(AtenTensorHandle q, AtenTensorHandle k, AtenTensorHandle v,
                                                      AtenTensorHandle* mask, AtenTensorHandle* texts, double scale,
                                                      int32_t is_causal, int64_t step_b, int64_t step_h,
                                                      int64_t step_t, AtenTensorHandle* made) {
  using namespace rdukit;
  View vq(q), vk(k), vv(v);
  int64_t rows = vq.sizes[2], strides[] = {step_b, step_h, step_t, 1};
  AtenTensorHandle handle;
  must(aoti_torch_empty_strided(4, vq.sizes, strides, vq.dtype, aoti_torch_device_type_cpu(), 0, &handle));
  RAIIAtenTensorHandle out(handle);
  View vy(out);
  std::unique_ptr<View> vm(mask ? new View(*mask) : nullptr), vt(texts ? new View(*texts) : nullptr);
#if defined(__AVX512BF16__)
  if (vq.is_bf16() && rows > FEW_ROWS) {
    block_attention(vq, vk, vv, vm.get(), vt.get(), (float)scale, is_causal, vy);
    *made = out.release();
    return 0;
  }
#endif
  if (!vq.is_bf16() && rows > FEW_ROWS)
    seen_attention(vq, vk, vv, vm.get(), vt.get(), scale, vy);
  else if (vq.is_bf16())
    row_attention<bf16>(vq, vk, vv, vm.get(), vt.get(), (float)scale, is_causal, vy);
  else
    row_attention<float>(vq, vk, vv, vm.get(), vt.get(), (float)scale, is_causal, vy);
  *made = out.release();
  return 0;
}

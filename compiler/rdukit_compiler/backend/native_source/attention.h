// Attention whose logarithms of sums nobody reads: few queries one by one, more of bf16 in blocks.
#pragma once
#include "block_attention.h"
#include "row_attention.h"

// rdukit::rdukit_attention(Tensor q [B,H,T,D], Tensor k [B,G,S,D], Tensor v [B,G,S,D], Tensor? mask, float scale,
//                          bool is_causal) -> Tensor [B,H,T,D], laid out as [B,T,H,D]
static AOTITorchError aoti_torch_cpu_rdukit_attention(AtenTensorHandle q, AtenTensorHandle k, AtenTensorHandle v,
                                                      AtenTensorHandle* mask, double scale, int32_t is_causal,
                                                      AtenTensorHandle* made) {
  using namespace rdukit;
  View vq(q), vk(k), vv(v);
  int64_t batch = vq.sizes[0], heads = vq.sizes[1], rows = vq.sizes[2], width = vq.sizes[3];
  int64_t sizes[] = {batch, heads, rows, width};
  int64_t strides[] = {rows * heads * width, width, heads * width, 1};
  AtenTensorHandle handle;
  must(aoti_torch_empty_strided(4, sizes, strides, vq.dtype, aoti_torch_device_type_cpu(), 0, &handle));
  RAIIAtenTensorHandle out(handle);
  View vy(out);
  std::unique_ptr<View> vm(mask ? new View(*mask) : nullptr);
#if defined(__AVX512BF16__)
  if (vq.is_bf16() && rows > FEW_ROWS) {
    block_attention(vq, vk, vv, vm.get(), (float)scale, is_causal, (bf16*)vy.data);
    *made = out.release();
    return 0;
  }
#endif
  if (vq.is_bf16())
    row_attention(vq, vk, vv, vm.get(), (float)scale, is_causal, (bf16*)vy.data);
  else
    row_attention(vq, vk, vv, vm.get(), (float)scale, is_causal, (float*)vy.data);
  *made = out.release();
  return 0;
}

// Runs a list of sections over slots, by the C interface alone: no Python, so the interpreter lock is free meanwhile.
#pragma once
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>
#include <cstring>
#include <ctime>
#include <vector>

namespace rdukit {

static inline void say(char* error, int64_t room, const char* what) {
  if (room <= 0) return;
  std::strncpy(error, what, room - 1);
  error[room - 1] = 0;
}

static inline int64_t nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

// Inputs are handed over: a section frees them after its last use of them.
typedef int32_t (*Section)(AtenTensorHandle* inputs, AtenTensorHandle* outputs, char* error, int64_t room);

// One section bound to slots. An input given as ~slot is the last use of that slot, which is empty afterwards.
// An output with is_written lives in memory of its own: its value is copied there. Freed slots are emptied at the end.
struct Step {
  Section section;
  const int32_t* inputs;
  const int32_t* outputs;
  const int32_t* is_written;
  const int32_t* freed;
  int32_t input_count, output_count, freed_count;
  int32_t index;
};

static inline void drop(AtenTensorHandle* slot) {
  if (*slot) aoti_torch_delete_tensor_object(*slot);
  *slot = nullptr;
}

// 0, or 1 with the reason in `error` and the failed step's position in `failed`.
static int32_t run_list(AtenTensorHandle* slots, const Step* steps, int64_t count, int64_t* durations, char* error,
                        int64_t room, int64_t* failed) {
  int32_t most = 0;
  for (int64_t s = 0; s < count; s++) {
    most = steps[s].input_count > most ? steps[s].input_count : most;
    most = steps[s].output_count > most ? steps[s].output_count : most;
  }
  std::vector<AtenTensorHandle> handles(2 * most);
  AtenTensorHandle *inputs = handles.data(), *outputs = inputs + most;
  int64_t began = durations ? nanoseconds() : 0;
  for (int64_t s = 0; s < count; s++) {
    const Step& step = steps[s];
    *failed = s;
    for (int32_t i = 0; i < step.input_count; i++) {
      int32_t slot = step.inputs[i];
      bool is_last = slot < 0;
      if (is_last) slot = ~slot;
      if (!slots[slot]) {
        for (int32_t j = 0; j < i; j++) drop(&inputs[j]);
        say(error, room, "an input has no value");
        return 1;
      }
      if (is_last) {
        inputs[i] = slots[slot];
        slots[slot] = nullptr;
      } else {
        aoti_torch_new_tensor_handle(slots[slot], &inputs[i]);
      }
    }
    std::memset(outputs, 0, step.output_count * sizeof outputs[0]);
    int32_t status = step.section(inputs, outputs, error, room);
    // What a section puts out twice it puts out as one handle; each slot has one of its own.
    for (int32_t i = 1; i < step.output_count && status == 0; i++) {
      for (int32_t j = 0; j < i; j++) {
        if (outputs[i] && outputs[i] == outputs[j]) {
          aoti_torch_new_tensor_handle(outputs[j], &outputs[i]);
          break;
        }
      }
    }
    for (int32_t i = 0; i < step.output_count && status == 0; i++) {
      AtenTensorHandle* slot = &slots[step.outputs[i]];
      if (step.is_written[i]) {
        // A section that works in place hands back the memory that it was given; outputs are contiguous.
        void *home = nullptr, *made = nullptr;
        aoti_torch_get_data_ptr(*slot, &home);
        aoti_torch_get_data_ptr(outputs[i], &made);
        if (home != made && aoti_torch_copy_(*slot, outputs[i], 0) != 0) {
          say(error, room, "an output could not be copied to its place");
          status = 1;
        }
        drop(&outputs[i]);
      } else {
        drop(slot);
        *slot = outputs[i];
        outputs[i] = nullptr;
      }
    }
    if (status != 0) {
      for (int32_t i = 0; i < step.output_count; i++) drop(&outputs[i]);
      return status;
    }
    for (int32_t i = 0; i < step.freed_count; i++) drop(&slots[step.freed[i]]);
    if (durations) {
      int64_t now = nanoseconds();
      durations[s] = now - began;
      began = now;
    }
  }
  return 0;
}

}  // namespace rdukit

extern "C" __attribute__((visibility("default"))) int32_t rdukit_run_list(AtenTensorHandle* slots,
                                                                          const rdukit::Step* steps, int64_t count,
                                                                          int64_t* durations, char* error, int64_t room,
                                                                          int64_t* failed) {
  bool had_grad = aoti_torch_grad_mode_is_enabled();
  aoti_torch_grad_mode_set_enabled(false);
  int32_t status = rdukit::run_list(slots, steps, count, durations, error, room, failed);
  aoti_torch_grad_mode_set_enabled(had_grad);
  return status;
}

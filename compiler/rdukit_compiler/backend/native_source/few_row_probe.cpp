// The product of few_row_product.h alone, in one thread, as a library that takes a second to compile: its time decides
// whether sections use it.
#include "few_row_product.h"

extern "C" void multiply_few_rows(const float* a, int64_t a_row, int64_t a_column, const float* b, int64_t b_row,
                                  int64_t b_column, float* y, int64_t m, int64_t n, int64_t k) {
  using rdukit::few_row_product::Matrix;
  rdukit::few_row_product::multiply(Matrix{a, a_row, a_column}, Matrix{b, b_row, b_column}, nullptr, y, m, n, k,
                                    [](int64_t count, int64_t, auto f) { f(0, count); });
}

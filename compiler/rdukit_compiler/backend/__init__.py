"""Native code generation: kernels as C++ that inductor writes, with our own products, built and kept as libraries."""

"""What torch's CPU kernels refuse although fake tensors let it pass: a compiled program would fail when it runs.

``scripts/cpu_kernels.py`` finds both lists by running torch's own samples of every operator; run it after an upgrade.
"""

from typing import Final

#: Operators without a bf16 kernel, forward or backward, by their names without overload.
WITHOUT_BF16: Final = frozenset(
    "_cdist_forward _lu_with_info _upsample_bicubic2d_aa _upsample_bilinear2d_aa avg_pool3d cdist cholesky "
    "cholesky_inverse cholesky_solve complex fft_fft fft_fft2 fft_fftn fft_hfft fft_hfft2 fft_hfftn fft_ifft "
    "fft_ifft2 fft_ifftn fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn "
    "fractional_max_pool3d "
    "geqrf histogram histogramdd istft linalg_cholesky linalg_cholesky_ex linalg_cond linalg_det linalg_eig "
    "linalg_eigh linalg_eigvals linalg_eigvalsh linalg_householder_product linalg_inv linalg_inv_ex linalg_ldl_factor "
    "linalg_ldl_factor_ex linalg_ldl_solve linalg_lu linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve "
    "linalg_matrix_norm linalg_matrix_rank linalg_pinv linalg_qr linalg_slogdet linalg_solve linalg_solve_ex "
    "linalg_solve_triangular linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve linalg_vander logdet "
    "lu_solve nanquantile ormqr pdist pinverse polar qr quantile special_airy_ai special_bessel_j0 special_bessel_j1 "
    "special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t special_chebyshev_polynomial_u "
    "special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_erfcx special_hermite_polynomial_h "
    "special_hermite_polynomial_he special_i1 special_i1e special_laguerre_polynomial_l special_legendre_polynomial_p "
    "special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 "
    "special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 "
    "special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u "
    "special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 "
    "special_zeta stft triangular_solve view_as_complex".split()
)
#: Operators whose floating operands must have one dtype.
SAME_DTYPE: Final = frozenset(
    "_softmax_backward_data _unsafe_masked_index_put_accumulate "
    "addbmm addmm addmv addr baddbmm bmm conv1d conv2d conv3d conv_transpose1d "
    "conv_transpose2d conv_transpose3d convolution cross dot einsum embedding_bag floor_divide grid_sampler "
    "grid_sampler_2d grid_sampler_3d group_norm heaviside igamma igammac index_add index_copy index_put index_reduce "
    "instance_norm linalg_cross linear masked_scatter matmul mm mv native_group_norm prelu put "
    "scaled_dot_product_attention scatter scatter_add "
    "gru gru_cell lstm lstm_cell rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell".split()  # not among torch's samples
)
#: Operators whose parameters must not be narrower than what they normalise.
NORMS: Final = frozenset({"layer_norm", "native_layer_norm", "rms_norm"})

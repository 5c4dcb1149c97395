"""Switches that programs ask for or set. Source: SDK reference 14.3."""


def use_mock_samba_runtime() -> bool:
    """Whether there is no device: False, the emulated one really computes, so programs keep their accuracy checks."""
    return False


def enable_conv_grad_accum_stoc() -> None:
    """Stochastic rounding of accumulated convolution gradients: accepted; accumulation here is f32."""


def enable_addbias_grad_accum_stoc() -> None:
    """Stochastic rounding of accumulated bias gradients: accepted; accumulation here is f32."""


def disable_sgd_stoc() -> None:
    """No stochastic rounding in SGD: accepted; updates here are f32."""

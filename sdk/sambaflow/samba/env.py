"""Switches that programs ask for or set. Source: SDK reference 14.3."""


def use_mock_samba_runtime() -> bool:
    """Return whether there is no device: False, the emulated one computes, so programs keep their accuracy checks."""
    return False


def enable_conv_grad_accum_stoc() -> None:
    """Accept stochastic rounding of accumulated convolution gradients; accumulation here is f32."""


def enable_addbias_grad_accum_stoc() -> None:
    """Accept stochastic rounding of accumulated bias gradients; accumulation here is f32."""


def disable_sgd_stoc() -> None:
    """Accept that SGD rounds to nearest; updates here are f32."""

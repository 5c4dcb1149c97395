"""Switches that programs read or set. Source: SDK reference 14.3."""


def use_mock_samba_runtime() -> bool:
    """Return whether there is no device: always False, so programs keep their accuracy checks."""
    return False


def enable_conv_grad_accum_stoc() -> None:
    """Accept stochastic rounding of accumulated convolution gradients; accumulation here is f32."""


def enable_addbias_grad_accum_stoc() -> None:
    """Accept stochastic rounding of accumulated bias gradients; accumulation here is f32."""


def disable_sgd_stoc() -> None:
    """Accept SGD without stochastic rounding; updates here are f32."""

from dataclasses import replace

from rdukit_compiler.backend.choose_small_convolutions import Geometry, is_small
from support import shows

pytestmark = shows("engine", "native")

_LINE = Geometry(batch=32, channels=64, filters=64, sizes=(96,), taps=(3,), padding=(4,), dilation=(4,))
_IMAGE = Geometry(batch=32, channels=6, filters=16, sizes=(14, 14), taps=(5, 5), padding=(0, 0), dilation=(1, 1))


def test_a_result_is_as_long_as_the_padded_axis_less_the_reach_of_the_taps() -> None:
    assert _LINE.made() == (96,) and _IMAGE.made() == (10, 10)
    assert replace(_LINE, padding=(0,)).made() == (88,)


def test_layers_of_small_models_are_small() -> None:
    assert is_small(_LINE, needs_input_gradient=True) and is_small(_IMAGE, needs_input_gradient=True)


def test_a_sample_or_a_result_beyond_the_cache_is_not_small() -> None:
    assert not is_small(replace(_IMAGE, sizes=(64, 64)), needs_input_gradient=False)
    assert not is_small(replace(_LINE, filters=512), needs_input_gradient=False)


def test_few_positions_do_not_pay_for_laying_out_the_weights() -> None:
    assert not is_small(replace(_LINE, batch=1), needs_input_gradient=False)


def test_images_that_are_mostly_padding_are_not_small() -> None:
    assert not is_small(replace(_IMAGE, sizes=(6, 6)), needs_input_gradient=False)


def test_padding_beyond_the_taps_matters_only_to_the_gradient_of_the_input() -> None:
    far = replace(_LINE, padding=(9,))
    assert is_small(far, needs_input_gradient=False) and not is_small(far, needs_input_gradient=True)


def test_layers_without_a_result_or_without_samples_are_not_small() -> None:
    assert not is_small(replace(_LINE, sizes=(1,), padding=(0,)), needs_input_gradient=False)
    assert not is_small(replace(_LINE, batch=0), needs_input_gradient=False)

"""Models traced without values, as with accelerate's ``init_empty_weights``: the values come and go by name."""

from pathlib import Path

import torch

from sambaflow import samba
from support import shows
from support.programs import LogReg, classifier_inputs, load_model

pytestmark = shows("pytorch", "surface")


def empty_model() -> LogReg:
    with torch.device("meta"):
        return LogReg()


def test_a_model_that_is_made_again_after_tracing_is_what_to_device_uploads(tmp_path: Path) -> None:
    loaded = load_model(
        empty_model(), classifier_inputs(), tmp_path, lambda p: samba.optim.SGD(p, lr=0.1),
        trace={"transfer_device": False}, precision="f32",
    )  # fmt: skip
    again = LogReg()
    samba.from_torch_model_(again)
    samba.session.to_device()
    assert torch.equal(samba.session.read_tensor("logreg__lin_layer__weight"), again.lin_layer.weight.data)
    image, label = loaded.inputs
    gold, _ = again(image.data, label.data)
    loss, _ = loaded.run(section_types=["fwd"])
    # f32 both: sums in another order at most
    assert abs(loss.item() - gold.item()) < 1e-6


def test_to_cpu_gives_an_empty_model_the_devices_values(tmp_path: Path) -> None:
    loaded = load_model(
        empty_model(), classifier_inputs(), tmp_path, lambda p: samba.optim.SGD(p, lr=0.1),
        trace={"transfer_device": False},
    )  # fmt: skip
    weight = torch.randn(4, 16)
    samba.session.write_tensor("logreg__lin_layer__weight", weight)
    parameter = loaded.model.lin_layer.weight
    assert not parameter.has_data
    samba.session.to_cpu(loaded.model)
    assert loaded.model.lin_layer.weight is parameter
    assert (parameter.sn_name, parameter.requires_grad) == ("logreg__lin_layer__weight", True)
    assert torch.equal(parameter.data, weight)
    plain = {name: samba.to_torch(value) for name, value in loaded.model.state_dict().items()}
    LogReg().load_state_dict(plain)

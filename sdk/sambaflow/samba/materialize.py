"""Materialization of lazy parameters. Source: SDK reference 13."""

from types import TracebackType

import torch
from torch import nn

from sambaflow.samba.lazy_param import ModuleInit, default_values, is_lazy, value_of
from sambaflow.samba.nn.parameter import SambaParameter


class materialize:
    """Set the values of a model's lazy parameters; use it as a call or as ``with materialize(model):``.

    With the same seed, they equal those of the model without ``lazy_param``. Names and ``requires_grad`` stay. The
    parameters are new objects, so create optimizers afterwards.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        made: dict[int, SambaParameter] = {}
        for module in model.modules():
            lazy = {n: p for n, p in module._parameters.items() if p is not None and is_lazy(p)}
            defaults: dict[str, torch.Tensor] = {}
            for name, parameter in lazy.items():
                assert isinstance(parameter, SambaParameter)
                if id(parameter) not in made:
                    if isinstance(parameter.materializer, ModuleInit) and parameter.materializer.module is module:
                        defaults = defaults or default_values(module)
                        value = defaults[parameter.materializer.name]
                    else:
                        value = value_of(parameter)
                    made[id(parameter)] = _filled(parameter, value)
                setattr(module, name, made[id(parameter)])

    def __enter__(self) -> nn.Module:
        return self.model

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def _filled(parameter: SambaParameter, value: torch.Tensor) -> SambaParameter:
    made = SambaParameter(value, parameter.requires_grad, name=parameter.sn_name or None)
    made._sn_region = parameter.__dict__.get("_sn_region")
    made.host_memory, made.batch_dim = parameter.host_memory, parameter.batch_dim
    return made


__all__ = ["materialize"]

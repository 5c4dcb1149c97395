"""Optimizers of programs, from which the compiler builds opt sections.

Source: SDK reference 9. On the host they are ``torch.optim`` optimizers, so ``step`` and ``zero_grad`` also work in a
CPU run; on the device, the opt section makes the same update.
"""

from sambaflow.samba.optim import adam, sgd
from sambaflow.samba.optim import adam as adagrad
from sambaflow.samba.optim.adam import Adagrad, Adam, AdamW, SparseAdamW
from sambaflow.samba.optim.sgd import SGD

#: All optimizer classes.
OPTIMIZERS = (SGD, Adagrad, Adam, AdamW, SparseAdamW)

__all__ = ["OPTIMIZERS", "SGD", "Adagrad", "Adam", "AdamW", "SparseAdamW", "adagrad", "adam", "sgd"]

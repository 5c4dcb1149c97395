"""Optimizers: what a program constructs, and what the compiler makes opt sections from.

Source: SDK reference 9. They are ``torch.optim`` optimizers on the host, so ``step`` and ``zero_grad`` work in a CPU
run too; on the device the same update is the opt section.
"""

from sambaflow.samba.optim import adam, sgd
from sambaflow.samba.optim import adam as adagrad
from sambaflow.samba.optim.adam import Adagrad, Adam, AdamW, SparseAdamW
from sambaflow.samba.optim.sgd import SGD

#: Every optimizer.
OPTIMIZERS = (SGD, Adagrad, Adam, AdamW, SparseAdamW)

__all__ = ["OPTIMIZERS", "SGD", "Adagrad", "Adam", "AdamW", "SparseAdamW", "adagrad", "adam", "sgd"]

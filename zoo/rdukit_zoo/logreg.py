"""Logistic regression: one linear layer and cross entropy; as a model of the zoo and as a SambaFlow program.

The program, as a user would write it::

    python -m rdukit_zoo.logreg compile --pef-name logreg
    python -m rdukit_zoo.logreg run --pef out/logreg/logreg.pef --num-epochs 2
"""

import argparse
import sys

import torch
from torch import nn

import sambaflow.samba as samba
from rdukit.cli import exit_on_error
from rdukit_zoo.digits_program import add_program_options, add_run_options, run_program
from rdukit_zoo.registry import model
from sambaflow.samba import utils
from sambaflow.samba.utils.argparser import parse_app_args


def make_inputs(batch_size: int, num_features: int = 784, num_classes: int = 10) -> tuple[samba.SambaTensor, ...]:
    """Return dummy inputs: ``image`` [batch, features] and ``label`` [batch]."""
    image = samba.randn(batch_size, num_features, name="image", batch_dim=0)
    label = samba.randint(num_classes, (batch_size,), name="label", batch_dim=0)
    return image, label


@model(
    name="logreg",
    title="Logistic regression",
    task="classification",
    licence="Apache-2.0",
    source="Bishop, Pattern Recognition and Machine Learning (2006), 4.3",
    sizes={"num_features": 784, "num_classes": 10},
    make_inputs=make_inputs,
)
class LogReg(nn.Module):
    """Logistic regression with its loss inside.

    (inputs [B, F], targets [B]) → (loss [], logits [B, C]); inputs alone → logits.
    """

    def __init__(self, num_features: int = 784, num_classes: int = 10) -> None:
        super().__init__()
        self.lin_layer = nn.Linear(num_features, num_classes)
        self.criterion = nn.CrossEntropyLoss()

    def forward(
        self, inputs: torch.Tensor, targets: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        out: torch.Tensor = self.lin_layer(inputs)
        if targets is None:
            return out
        loss = self.criterion(out, targets)
        return loss, out


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that shape the model: the same for compile and run."""
    parser.add_argument("--num-features", type=int, default=784)
    parser.add_argument("--num-classes", type=int, default=10)
    add_program_options(parser, lr=0.02, momentum=0.9)


def main(argv: list[str]) -> None:
    """Compile, or train and test on the bundled digits."""
    args = parse_app_args(argv=argv, common_parser_fn=add_options, run_parser_fn=add_run_options)
    utils.set_seed(args.seed)
    net = LogReg(args.num_features, args.num_classes)
    samba.from_torch_model_(net)
    inputs = make_inputs(args.batch_size, args.num_features, args.num_classes)
    optim = samba.optim.SGD(net.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    if args.command == "compile":
        samba.session.compile(
            net,
            inputs,
            None if args.inference else optim,
            name="logreg",
            app_dir=utils.get_file_dir(__file__),
            config_dict=vars(args),
            pef_metadata=utils.pef_utils.get_pefmeta(args, net),
        )
    else:
        run_program(args, net, inputs, None if args.inference else optim)


if __name__ == "__main__":
    with exit_on_error():
        main(sys.argv[1:])

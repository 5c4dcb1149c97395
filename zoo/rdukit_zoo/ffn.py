"""A residual feed-forward classifier: the model of the vendor's porting slides, as a SambaFlow program.

Source: ModelBox and SDK slides, "Sample Code": three linears without bias, two layer norms, tanh, a residual
connection, sigmoid, cross entropy, SGD. ::

    python -m rdukit_zoo.ffn compile -b 32 --pef-name ffn
    python -m rdukit_zoo.ffn run -b 32 --pef out/ffn/ffn.pef --num-epochs 5
"""

import argparse
import sys

import torch
from torch import nn

import sambaflow
import sambaflow.samba as samba
from rdukit.cli import exit_on_error
from rdukit_zoo.digits_program import add_program_options, add_run_options, run_program
from rdukit_zoo.registry import model
from sambaflow.samba import utils
from sambaflow.samba.utils.argparser import parse_app_args


def make_inputs(
    batch_size: int, num_features: int = 784, hidden_size: int = 128, num_classes: int = 10
) -> tuple[samba.SambaTensor, ...]:
    """Return dummy inputs: ``image`` [batch, features] and ``label`` [batch]."""
    image = samba.randn(batch_size, num_features, name="image", batch_dim=0)
    label = samba.randint(num_classes, (batch_size,), name="label", batch_dim=0)
    return image, label


@model(
    name="ffn",
    title="Residual feed-forward classifier",
    task="classification",
    licence="Apache-2.0",
    source="He et al., Deep Residual Learning for Image Recognition (2015), on a two-layer perceptron",
    sizes={"num_features": 784, "hidden_size": 128, "num_classes": 10},
    make_inputs=make_inputs,
)
class ResFFNLogReg(nn.Module):
    """Feed-forward network with two activations and a residual connection.

    (inputs [B, F], targets [B]) → (loss [], logits [B, C]); inputs alone → logits.
    """

    def __init__(self, num_features: int = 784, hidden_size: int = 128, num_classes: int = 10) -> None:
        super().__init__()
        self.gemm1 = nn.Linear(num_features, hidden_size, bias=False)
        self.gemm2 = nn.Linear(hidden_size, hidden_size, bias=False)
        self.gemm3 = nn.Linear(hidden_size, num_classes, bias=False)
        self.norm1 = nn.LayerNorm(hidden_size)
        self.norm2 = nn.LayerNorm(hidden_size)
        self.tanh1 = nn.Tanh()
        self.sigmoid1 = nn.Sigmoid()
        self.criterion = nn.CrossEntropyLoss()

    def forward(
        self, inputs: torch.Tensor, targets: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        out: torch.Tensor = self.gemm1(inputs)
        out = self.norm1(out)
        out = self.tanh1(out)
        residual = out
        out = self.gemm2(out)
        out = self.norm2(out)
        out = out + residual
        out = self.sigmoid1(out)
        out = self.gemm3(out)
        if targets is None:
            return out
        loss = self.criterion(out, targets)
        return loss, out


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that shape the model: the same for compile and run."""
    parser.add_argument("--num-features", type=int, default=784)
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--num-classes", type=int, default=10)
    add_program_options(parser, lr=0.02, momentum=0.9)


def main(argv: list[str]) -> None:
    """Compile, or train and test on the bundled digits."""
    args = parse_app_args(argv=argv, common_parser_fn=add_options, run_parser_fn=add_run_options)
    utils.set_seed(args.seed)
    net = ResFFNLogReg(args.num_features, args.hidden_size, args.num_classes)
    samba.from_torch_model_(net)
    inputs = make_inputs(args.batch_size, args.num_features, args.hidden_size, args.num_classes)
    optim = sambaflow.samba.optim.SGD(
        net.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.weight_decay
    )
    if args.command == "run":
        run_program(args, net, inputs, optim)
    else:
        samba.session.compile(
            model=net,
            inputs=inputs,
            optim=optim,
            name=net.__class__.__name__,
            init_output_grads=not args.inference,
            config_dict=vars(args),
        )


if __name__ == "__main__":
    with exit_on_error():
        main(sys.argv[1:])

"""A linear net as a SambaFlow program, in the place of the one that the vendor's SambaTune example names."""

#: Takes ``compile`` and ``measure-performance``, and the sizes of the example.
LINEAR_NET = """
import sys
from torch import nn
from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.utils.argparser import parse_app_args

class LinearNet(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x, label):
        return self.criterion(self.linear(x), label)

def add_options(parser):
    parser.add_argument("--in-features", type=int, default=8)
    parser.add_argument("--out-features", type=int, default=4)

args = parse_app_args(argv=sys.argv[1:], common_parser_fn=add_options)
utils.set_seed(0)
model = LinearNet(args.in_features, args.out_features)
samba.from_torch_model_(model)
inputs = (
    samba.randn(args.batch_size, args.in_features, name="x", batch_dim=0),
    samba.randint(args.out_features, (args.batch_size,), name="label", batch_dim=0),
)
optim = samba.optim.SGD(model.parameters(), lr=0.1)
if args.command == "compile":
    samba.session.compile(model, inputs, optim, name="linear_net", config_dict=vars(args))
else:
    utils.trace_graph(model, inputs, optim, pef=args.pef)
    utils.measure_performance(model, inputs, args.batch_size, n_iterations=args.num_iterations)
"""

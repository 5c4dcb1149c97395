"""The zoo's digit programs after tracing: train with checkpoints, resume, and test on held-out digits."""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sambaflow.samba as samba
from rdukit.errors import NotFound
from rdukit.files.atomic import atomic_target
from rdukit_zoo.datasets.digits import Digits, load_bundled, load_folder
from sambaflow.samba import utils
from sambaflow.samba.sambaloader import SambaLoader
from sambaflow.samba.utils.dataset.mnist import MEAN, STD


def add_program_options(parser: argparse.ArgumentParser, lr: float, momentum: float) -> None:
    """Add the options of every digit program; batch size gets the default 32."""
    parser.add_argument("-b", "--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=lr)
    parser.add_argument("--momentum", type=float, default=momentum)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the run command."""
    parser.add_argument("--num-epochs", "-e", type=int, default=5)
    parser.add_argument(
        "--data-folder", default=None, help="folder with MNIST's idx files; the bundled digits if absent"
    )
    parser.add_argument("--checkpoint", default=None, help="file to save to after each epoch")
    parser.add_argument("--resume", default=None, help="checkpoint to start from")


def run_program(args: Any, net: nn.Module, inputs: Any, optim: Any) -> float:
    """Trace, train unless ``--inference``, test; prints losses and accuracies.

    Returns:
        Accuracy on the held-out digits, computed on the device.
    """
    digits = load_folder(Path(args.data_folder)) if args.data_folder else load_bundled()
    first_epoch = _resume(args, net, optim)
    traced = utils.trace_graph(net, inputs, optim, pef=args.pef, mapping=args.mapping)
    if not args.inference:
        _train(args, net, optim, traced, digits, first_epoch)
    accuracy = _test_on_device(net, traced, digits, args.batch_size)
    print(f"Test accuracy on the device: {accuracy:.4f}")
    samba.session.to_cpu(net)
    print(f"Test accuracy on the host:   {_test_on_host(net, digits):.4f}")
    report = samba.session.report()
    print(f"Emulated RDU time (projected): {report['emulated_seconds']:.4f} s in {report['runs']} runs")
    print(f"Host time in sections: {report['host_seconds']:.4f} s")
    samba.session.close()
    return accuracy


def _train(args: Any, net: nn.Module, optim: Any, traced: Any, digits: Digits, first_epoch: int) -> None:
    hyperparameters = {"lr": args.lr, "momentum": args.momentum, "weight_decay": args.weight_decay}
    data = TensorDataset(*_tensors(digits.train_images, digits.train_labels))
    for epoch in range(first_epoch, args.num_epochs):
        order = torch.Generator().manual_seed(args.seed + epoch)
        loader = DataLoader(data, args.batch_size, shuffle=True, drop_last=True, generator=order)
        total, began = 0.0, time.perf_counter()
        for image, label in SambaLoader(loader, ["image", "label"]):
            loss, _ = samba.session.run(
                input_tensors=[image, label], output_tensors=traced, hyperparam_dict=hyperparameters
            )
            total += samba.to_torch(loss).mean().item()
        seconds = time.perf_counter() - began
        print(f"Epoch [{epoch + 1}/{args.num_epochs}], Loss: {total / len(loader):.4f}, {seconds:.2f} s", flush=True)
        if args.checkpoint:
            _save(Path(args.checkpoint), net, optim, epoch + 1)


def _save(path: Path, net: nn.Module, optim: Any, epochs: int) -> None:
    samba.session.to_cpu(net)
    samba.session.to_cpu(optim)
    state = {
        "model": {name: value.torch_tensor() for name, value in net.state_dict().items()},
        "optimizer": optim.state_dict(),
        "epochs": epochs,
    }
    with atomic_target(path) as temporary:
        torch.save(state, temporary)


def _resume(args: Any, net: nn.Module, optim: Any) -> int:
    """Load a checkpoint before tracing, which uploads it; returns the number of epochs that are done."""
    if not args.resume:
        return 0
    if not Path(args.resume).is_file():
        raise NotFound(f"no checkpoint at {args.resume!r}; train with --checkpoint FILE first")
    state = torch.load(args.resume, weights_only=True)
    net.load_state_dict(state["model"])
    if optim is not None:
        optim.load_state_dict(state["optimizer"])
    print(f"Resumed from {args.resume} after epoch {state['epochs']}")
    return int(state["epochs"])


def _tensors(images: Any, labels: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Convert images [N, 28, 28] uint8 to [N, 784] float32, normalised; labels are [N] int64."""
    flat = torch.from_numpy(images.copy()).float().reshape(len(images), -1)
    return (flat / 255.0 - MEAN) / STD, torch.from_numpy(labels.copy())


def _test_on_device(net: nn.Module, traced: Any, digits: Digits, batch_size: int) -> float:
    images, labels = _tensors(digits.test_images, digits.test_labels)
    net.eval()
    correct = 0
    for start in range(0, len(images), batch_size):
        rows = min(batch_size, len(images) - start)
        image, label = torch.zeros(batch_size, images.shape[1]), torch.zeros(batch_size, dtype=torch.int64)
        image[:rows], label[:rows] = images[start : start + rows], labels[start : start + rows]
        batch = [samba.from_torch_tensor(image, name="image"), samba.from_torch_tensor(label, name="label")]
        _, logits = samba.session.run(input_tensors=batch, output_tensors=traced, section_types=["fwd"])
        predicted = samba.to_torch(logits)[:rows].argmax(1)
        correct += int((predicted == labels[start : start + rows]).sum())
    net.train()
    return correct / len(images)


def _test_on_host(net: nn.Module, digits: Digits) -> float:
    images, labels = _tensors(digits.test_images, digits.test_labels)
    with torch.no_grad():
        _, logits = net(images, labels)
    return float((samba.to_torch(logits).argmax(1) == labels).float().mean())

"""Small training models as people write them: a perceptron, two forecasters, LeNet-5. Each forward gives the loss [].

B batch, L window, C channels.
"""

import torch
from torch import nn
from torch.nn import functional


class Perceptron(nn.Module):
    """(inputs [B, features], targets [B]) → cross entropy. Linear layers with layer norms between them."""

    def __init__(self, features: int = 784, width: int = 512, classes: int = 10, layers: int = 2) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(width if i else features, width) for i in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.last = nn.Linear(width, classes)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        for linear, norm in zip(self.inner, self.norms, strict=True):
            inputs = torch.tanh(norm(linear(inputs)))
        return functional.cross_entropy(self.last(inputs), targets)


class LstmForecaster(nn.Module):
    """(window [B, L, C], targets [B, horizon]) → mean squared error. Two LSTM layers; the last state forecasts."""

    def __init__(self, channels: int = 8, width: int = 64, layers: int = 2, horizon: int = 12) -> None:
        super().__init__()
        self.lstm = nn.LSTM(channels, width, layers, batch_first=True)
        self.head = nn.Linear(width, horizon)

    def forward(self, window: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(window)
        return functional.mse_loss(self.head(states[:, -1]), targets)


class ConvForecaster(nn.Module):
    """(window [B, C, L], targets [B, horizon]) → mean squared error. Three dilated 1-d convolutions, mean over time."""

    def __init__(self, channels: int = 8, width: int = 64, horizon: int = 12) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(channels, width, 3, padding=1), nn.ReLU(),
            nn.Conv1d(width, width, 3, padding=2, dilation=2), nn.ReLU(),
            nn.Conv1d(width, width, 3, padding=4, dilation=4), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(width, horizon)

    def forward(self, window: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(self.head(self.layers(window).mean(dim=2)), targets)


class LeNet(nn.Module):
    """(image [B, 1, 28, 28], targets [B]) → cross entropy.

    Source: LeCun and others, Gradient-Based Learning Applied to Document Recognition (1998), with ReLU and max pooling.
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv_1, self.conv_2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc_1, self.fc_2, self.fc_3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, classes)

    def forward(self, image: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(torch.relu(self.conv_1(image)), 2)
        x = functional.max_pool2d(torch.relu(self.conv_2(x)), 2)
        x = torch.relu(self.fc_1(x.flatten(1)))
        return functional.cross_entropy(self.fc_3(torch.relu(self.fc_2(x))), targets)

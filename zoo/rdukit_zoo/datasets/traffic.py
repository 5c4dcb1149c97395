"""Traffic on a graph of sensors: congestion that arises at rush hours and diffuses along the roads.

Axes: N windows, T steps of five minutes, V sensors.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

#: Steps of five minutes in a day.
DAY: Final = 288
#: Miles per hour of free traffic, and the share of readings that are missing and stored as 0.
FREE_SPEED: Final = 65.0
MISSING: Final = 0.03


def road_graph(sensors: int, seed: int = 0) -> NDArray[np.float32]:
    """Return the weights [V, V] of a directed graph: a Gaussian of the distance along the road, 0 below 0.1.

    Sensors lie on a ring road with an exit; traffic depends more on the road ahead than on the road behind.
    """
    draw = np.random.default_rng([seed, 12])
    place_V = np.sort(draw.uniform(0, sensors, sensors))
    ahead_VV = (place_V[None] - place_V[:, None]) % sensors
    distance_VV = np.minimum(ahead_VV, 2 * (sensors - ahead_VV))
    weight_VV = np.exp(-((distance_VV / max(1.0, sensors / 5)) ** 2))
    weight_VV[weight_VV < 0.1] = 0
    np.fill_diagonal(weight_VV, 1)
    return weight_VV.astype(np.float32)


def make_speeds(steps: int, sensors: int, seed: int) -> NDArray[np.float32]:
    """Simulate speeds [steps, V] in miles per hour; 0 stands for a missing reading.

    Congestion follows dc/dt = demand + diffusion from downstream - recovery, with two rush hours a day and accidents.
    """
    draw = np.random.default_rng([seed, 13])
    weight_VV = road_graph(sensors)
    walk_VV = weight_VV / weight_VV.sum(1, keepdims=True)
    habit_V = draw.uniform(0.3, 1.0, sensors)
    jam_V = np.zeros(sensors)
    found = np.empty((steps, sensors))
    for step in range(steps):
        hour = step % DAY / DAY * 24
        rush = np.exp(-(((hour - 8) / 1.3) ** 2)) + 0.9 * np.exp(-(((hour - 17.5) / 1.6) ** 2))
        accidents_V = (draw.random(sensors) < 0.0015) * draw.uniform(0.5, 1.2, sensors)
        jam_V = jam_V + 0.12 * rush * habit_V + accidents_V + 0.35 * (walk_VV @ jam_V - jam_V) - 0.09 * jam_V
        jam_V = np.clip(jam_V + draw.normal(0, 0.01, sensors), 0, 1.5)
        found[step] = FREE_SPEED * (1 - 0.75 * np.tanh(jam_V)) + draw.normal(0, 1.2, sensors)
    found = np.clip(found, 3, 75)
    found[draw.random(found.shape) < MISSING] = 0
    return found.astype(np.float32)


def make_windows(count: int, seed: int, nodes: int = 10, steps: int = 12) -> dict[str, NDArray[Any]]:
    """Cut windows out of a simulation: readings and the next values.

    Returns:
        ``history`` [N, T, V, 2] float32: speeds, and the time of day from 0 to 1; ``future`` [N, T, V] float32: the
        speeds after it. Miles per hour, 0 where a reading is missing. Windows are in the order of time.
    """
    speeds = make_speeds(count + 2 * steps - 1, nodes, seed)
    time_of_day = (np.arange(len(speeds)) % DAY / DAY).astype(np.float32)
    at_NT = np.arange(count)[:, None] + np.arange(steps)
    day_NTV = np.broadcast_to(time_of_day[at_NT][..., None], (count, steps, nodes))
    return {
        "history": np.stack([speeds[at_NT], day_NTV], -1),
        "future": np.ascontiguousarray(speeds[at_NT + steps]),
    }

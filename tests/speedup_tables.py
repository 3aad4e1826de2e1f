"""A made-up speedup table whose answer is known."""

from __future__ import annotations

from pathlib import Path

import torch

from experiments.speedup.analysis import laps_path
from experiments.speedup.config import NULL, Setting
from experiments.speedup.measure import COLUMNS, KEY, LAP_COLUMNS, LAP_KEY
from repro.core.cost import CostModel
from repro.core.schemes import registry
from repro.core.schemes.jagg import jagg
from repro.core.schemes.scheme import exact
from repro.results import Table
from repro.training.recipe import Algorithm


def made_up(
    folder: Path,
    slower: float = 1.0,
    overhead: float = 0.0,
    bursts: bool = False,
    algorithm: Algorithm = "dance_grpo",
    null: bool = False,
    rounds: int = 7,
) -> Path:
    """A table in which a forward takes a second and b is 2; `slower` multiplies JAGG's update.

    With `bursts`, the machine is a third as fast during one lap of every update of exact's. With `null`,
    exact is there again. Rollout and window are DanceGRPO's, whatever the algorithm is called.
    """
    csv = folder / "speedup.csv"
    times = torch.linspace(1, 0.1, 20)
    schemes = {
        "exact": exact(times),
        **({NULL: exact(times)} if null else {}),
        "jagg-time": jagg(times, 4),
        "routed-0.6": registry.build("routed", times, 4, jagg_frac=0.6),
    }
    table = Table(csv, COLUMNS, KEY, provenance={}, fresh=True)
    laps = Table(laps_path(csv), LAP_COLUMNS, LAP_KEY, provenance={}, fresh=True)
    for round_ in range(rounds):
        drift = 1 + 0.1 * round_  # the machine slows down: within a round it cancels
        for name, scheme in schemes.items():
            counts = CostModel(2.0, 1.0).counts(scheme)
            price = CostModel(2.0, 1.0).price(counts)
            update = price * drift * (1 if name in ("exact", NULL) else slower)
            key = {**vars(Setting(algorithm=algorithm)), "scheme": name, "round": round_}
            slow = [3 if bursts and name == "exact" and lap == round_ % 4 else 1 for lap in range(4)]
            seconds = [update / 4 * times for times in slow]
            forwards = [drift * times for times in slow]
            laps.append(
                *(
                    {**key, "repetition": 0, "lap": lap, "seconds": s, "forward_s": f}
                    for lap, (s, f) in enumerate(zip(seconds, forwards, strict=True))
                )
            )
            table.append(
                {
                    "model": "made-up",
                    "device": "none",
                    "dtype": "float32",
                    **key,
                    "samples": 12,
                    "parts": 1,
                    "sampling_steps": 21,
                    "trained_steps": 20,
                    "rollout_s": 21 * drift,
                    "decode_s": 0.0,
                    "reward_s": 0.0,
                    "update_s": sum(seconds),
                    "optimizer_s": 0.0,
                    "overhead_s": overhead,
                    "peak_memory": None,
                    **counts._asdict(),
                    "backward_calls": 10,
                    "forward_s": drift,
                    "backward_factor": 2.0,
                    "predicted_update_s": price * drift,
                }
            )
    return csv

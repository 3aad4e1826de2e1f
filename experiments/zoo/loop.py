"""One resumable training loop for every component of the zoo.

Randomness of step i comes from ``(seed, i)`` alone, so a run that was interrupted and resumed draws the same
batches and noise as one that was not.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

LossFn = Callable[[int, torch.Generator], tuple[Tensor, Mapping[str, float]]]


def warmup_cosine(step: int, steps: int, warmup: int = 100) -> float:
    """Learning-rate factor: linear warm-up, then a cosine to zero at ``steps``; then the same again."""
    step %= steps
    return min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / steps))


def train(
    module: nn.Module,
    loss_fn: LossFn,
    *,
    folder: Path,
    steps: int,
    lr: float,
    seed: int,
    weight_decay: float = 0.01,
    save_every: int = 200,
    snapshots: Mapping[int, Path] | None = None,
    cycles: int = 1,
) -> dict[str, float]:
    """Train ``module`` in place; return the last losses (running means over some 50 steps) and the seconds.

    ``loss_fn(step, generator)`` gives a scalar loss and numbers to show. State is kept in
    ``folder/state.pt``; rerunning continues from it. ``snapshots`` maps a step to a file that receives the
    state dict at that step. The learning rate ends at zero, so no averaging of weights is needed; it does
    so ``cycles`` times.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state_file = folder / "state.pt"
    # Only matrices decay: biases, norms and embeddings have no scale to shrink.
    matrices = [p for p in module.parameters() if p.requires_grad and p.ndim >= 2]
    vectors = [p for p in module.parameters() if p.requires_grad and p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=lr,
        betas=(0.9, 0.98),
        foreach=True,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warmup_cosine(step, steps // cycles))
    shown: dict[str, float] = {}
    start, seconds = 0, 0.0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        module.load_state_dict(state["module"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        start, seconds, shown = state["step"], state["seconds"], state["shown"]

    def save(step: int) -> None:
        state = {
            "module": module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(),
            "step": step,
            "seconds": seconds + time.perf_counter() - began,
            "shown": shown,
        }
        temporary = state_file.with_suffix(".tmp")
        torch.save(state, temporary)
        os.replace(temporary, state_file)

    began = time.perf_counter()
    columns = (
        TextColumn(folder.name),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[shown]}"),
    )
    with Progress(*columns) as progress:
        task = progress.add_task(folder.name, total=steps, completed=start, shown="")
        for step in range(start, steps):
            generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
            loss, numbers = loss_fn(step, generator)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            for key, value in {"loss": loss.item(), **numbers}.items():
                shown[key] = value if key not in shown else 0.98 * shown[key] + 0.02 * value
            progress.update(task, advance=1, shown=" ".join(f"{k} {v:.4f}" for k, v in shown.items()))
            done = step + 1
            if snapshots and done in snapshots:
                torch.save(module.state_dict(), snapshots[done])
            if done % save_every == 0 or done == steps:
                save(done)
                with (folder / "log.txt").open("a") as log:
                    elapsed = seconds + time.perf_counter() - began
                    print(done, f"{elapsed:.0f}s", {k: round(v, 5) for k, v in shown.items()}, file=log)
    return {**shown, "seconds": seconds + time.perf_counter() - began}

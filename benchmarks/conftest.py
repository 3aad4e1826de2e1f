"""What the suites time: a policy, one batch of its samples, and the plain loop's time on them.

pytest benchmarks                                          tiny-flux, 48 samples
pytest benchmarks --model reduced --batch 4                a much reduced FLUX with random weights
pytest benchmarks --results results/benchmarks             writes benchmarks.csv there as well
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from plain_loop import plain_update
from torch import Tensor

from experiments import paper
from experiments.benchmarks.report import COLUMNS, KEY
from repro import zoo
from repro.core.gradient import GradientReport, VelocityFn
from repro.core.minibatch import Minibatch
from repro.core.rollout import Trajectory, sample
from repro.core.schemes.scheme import Scheme
from repro.core.sde import Dance, shifted_sigmas
from repro.models import Backbone, Conditioning, bind, load
from repro.models.synthetic import build
from repro.provenance import collect
from repro.results import Table


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--model", default="tiny-flux", help="a model, or 'reduced' for random weights")
    parser.addoption("--batch", type=int, default=48, help="samples")
    parser.addoption("--device", default="cpu", help="torch device")
    parser.addoption(
        "--results", type=Path, help="folder for a table of what was measured; replaces an older one"
    )
    parser.addoption("--threads", type=int, default=0, help="CPU threads, 0 for all cores")


def pytest_configure(config: pytest.Config) -> None:
    if threads := config.getoption("--threads"):
        torch.set_num_threads(threads)


@dataclass
class Batch:
    """One update's input: B samples of the early code's 21 steps, 20 of them trained."""

    backbone: Backbone
    conditioning: Conditioning
    trajectory: Trajectory
    advantages: Tensor
    sigmas: Tensor
    n_steps: int

    @property
    def times(self) -> Tensor:
        """(n,), sigma at the trained steps."""
        return self.sigmas[: self.n_steps]

    @property
    def network(self) -> VelocityFn:
        """The velocity at the sampling steps."""
        return bind(self.backbone, self.conditioning, self.sigmas)

    def first(self, samples: int) -> Batch:
        """The same with fewer samples."""
        part = slice(0, samples)
        return replace(
            self,
            conditioning=self.conditioning.index(part),
            trajectory=self.trajectory.samples(part),
            advantages=self.advantages[part],
        )

    @property
    def minibatch(self) -> Minibatch:
        """Of all samples, with the clipped objective."""
        return Minibatch(self.network, self.trajectory, self.n_steps, self.advantages, paper.CLIP_RANGE.low)

    def update(
        self, scheme: Scheme, chunk: int = 2, kept: bool = False, network: VelocityFn | None = None
    ) -> GradientReport:
        """Accumulate a scheme's gradient; `kept` takes the rollout's velocities."""
        return replace(self.minibatch, network=network or self.network).accumulate(
            scheme, velocities="rollout" if kept else "recompute", policy_version=0, anchor_chunk=chunk
        )

    def plain(self) -> float:
        """The plain loop's update."""
        return plain_update(
            self.backbone,
            self.conditioning,
            self.trajectory,
            self.advantages,
            self.n_steps,
            paper.ETA.low,
            paper.CLIP_RANGE.low,
        )

    def gradient(self, update: Callable[[], Any]) -> Tensor:
        """What `update` adds to .grad, flat."""
        self.backbone.transformer.zero_grad()
        update()
        gradients = [p.grad.flatten() for p in self.backbone.transformer.parameters() if p.grad is not None]
        self.backbone.transformer.zero_grad()
        return torch.cat(gradients)

    @cached_property
    def plain_seconds(self) -> float:
        """How long the plain loop takes: the median of three, minutes in all at full size."""
        self.first(1).plain()  # warm-up
        return median(self._plain_once() for _ in range(3))

    def _plain_once(self) -> float:
        start = time.perf_counter()
        self.plain()
        synchronize(self.backbone.device)
        return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@pytest.fixture(scope="session")
def backbone(pytestconfig: pytest.Config) -> Backbone:
    name, device = pytestconfig.getoption("--model"), pytestconfig.getoption("--device")
    if name == "reduced":
        return build("flux-dev", torch.float32, device, 64, reduced=True)
    folder = zoo.resolve(name)
    if folder is not None and not (folder / "model_index.json").exists():
        pytest.skip(f"{name} is not in this tree; --model reduced needs nothing")
    return load(name, device=device)


@pytest.fixture(scope="session")
def batch(backbone: Backbone, pytestconfig: pytest.Config) -> Batch:
    samples = pytestconfig.getoption("--batch")
    sigmas = shifted_sigmas(int(paper.SAMPLING_STEPS.low), paper.SHIFT.low)
    generator = torch.Generator().manual_seed(0)
    conditioning = backbone.encode(["noto red apple"]).repeat(samples)
    noise = torch.randn(samples, *backbone.latent_shape(), generator=generator).to(backbone.device)
    velocity = bind(backbone, conditioning, sigmas)
    trajectory = sample(velocity, noise, sigmas, Dance(paper.ETA.low), generator)
    advantages = torch.randn(samples, generator=generator).to(backbone.device)
    return Batch(backbone, conditioning, trajectory, advantages, sigmas, int(paper.TRAINED_STEPS.low))


@pytest.fixture
def full_size(benchmark: Any, pytestconfig: pytest.Config) -> bool:
    """Whether what the suite promises is to be held: on tiny-flux with 48 samples on a CPU, really timed."""
    size = [pytestconfig.getoption(name) for name in ("--model", "--batch", "--device")]
    return size == ["tiny-flux", 48, "cpu"] and bool(benchmark.enabled)


@pytest.fixture
def timed(benchmark: Any, backbone: Backbone) -> Callable[..., float]:
    """Run a function in a few rounds after a warm-up; returns the median of its seconds."""

    def run(function: Callable[[], Any], rounds: int = 5) -> float:
        def finished() -> Any:
            result = function()
            synchronize(backbone.device)
            return result

        start = time.perf_counter()
        benchmark.pedantic(finished, rounds=rounds, warmup_rounds=1)
        once = time.perf_counter() - start  # with --benchmark-disable it runs once and has no statistics
        return once if benchmark.stats is None else benchmark.stats.stats.median

    return run


@pytest.fixture(scope="session")
def results(pytestconfig: pytest.Config, backbone: Backbone) -> Iterator[tuple[Table, dict[str, Any]] | None]:
    """The table of --results, and what all its rows share."""
    folder = pytestconfig.getoption("--results")
    if folder is None or pytestconfig.getoption("--benchmark-disable"):
        yield None
        return
    config = {name: pytestconfig.getoption(f"--{name}") for name in ("model", "batch", "device")}
    checkpoint = zoo.resolve(config["model"])
    provenance = collect(config, seed=0, checkpoint=checkpoint, device=config["device"])
    table = Table(folder / "benchmarks.csv", COLUMNS, KEY, provenance=provenance, fresh=True)
    yield table, {**config, "device": provenance["device"]}


@pytest.fixture(autouse=True)
def _recorded(request: pytest.FixtureRequest, results: tuple[Table, dict[str, Any]] | None) -> Iterator[None]:
    if results is None or "benchmark" not in request.fixturenames:
        yield
        return
    benchmark = request.getfixturevalue("benchmark")
    yield
    if benchmark.stats is None:  # the test failed before it timed anything
        return
    table, common = results
    stats, extra = benchmark.stats.stats, benchmark.extra_info
    name = request.node.name.removeprefix("test_").replace("_", "-").replace("[", "-").rstrip("]")
    figures = {column: extra.get(column) for column in ("plain_loop_s", "times_as_fast", "core_share")}
    table.append(
        {
            **common,
            "benchmark": name,
            "rounds": stats.rounds,
            "median_s": stats.median,
            "min_s": stats.min,
            **figures,
        },
        unit=name,
    )

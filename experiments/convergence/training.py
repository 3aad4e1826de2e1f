"""One cell of the convergence table: a training run into the three tables, resumed where it stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from experiments.common.inputs import Model
from experiments.convergence.arms import Cell
from experiments.convergence.evaluation import REWARD, Evaluator
from experiments.convergence.resuming import make_way, require_rows
from experiments.convergence.start import disturb
from repro.distributed.ranks import Ranks
from repro.rewards import Scorer
from repro.shared_table import SharedTable
from repro.training import logs
from repro.training.checkpoint import Checkpoints
from repro.training.metrics import METRICS, PHASES, StepRecord
from repro.training.policy import make_policy, weights_dtype
from repro.training.recipe import Recipe
from repro.training.trainer import Trainer, train

if TYPE_CHECKING:
    from experiments.convergence.measure import Config

CELL: dict[str, type] = {"regime": str, "arm": str, "lr_factor": float, "seed": int}
COLUMNS: dict[str, type] = {
    "model": str,
    "algorithm": str,
    **CELL,
    "step": int,
    "metric": str,
    "value": float,
}
TRAINING_COLUMNS: dict[str, type] = {**CELL, **METRICS}
TIMING_COLUMNS: dict[str, type] = {**CELL, "step": int, **{phase: float for phase in PHASES}}


class Tables(NamedTuple):
    """The three open tables."""

    evaluations: SharedTable
    training: SharedTable
    timings: SharedTable


@dataclass(frozen=True)
class Work:
    """What all cells share."""

    config: Config
    base: Recipe
    model: Model
    scorer: Scorer
    prompts: list[str]
    evaluator: Evaluator
    tables: Tables
    provenance: dict[str, Any]
    ranks: Ranks

    @property
    def folder(self) -> Path:
        """Where the tables are."""
        return self.tables.evaluations.path.parent

    def policy_folder(self, cell: Cell) -> Path:
        """Where the cell's trained policy is kept."""
        return self.folder / "policies" / cell.name

    def due(self, cell: Cell, step: int) -> bool:
        """Whether the cell is evaluated after `step` training steps."""
        every, last = (cell.steps(n) for n in (self.config.evaluate_every, self.config.steps))
        return step % every == 0 or step == last

    def done(self, cell: Cell, step: int) -> bool:
        """Whether the cell was evaluated after `step` training steps."""
        return self.tables.evaluations.has(**cell._asdict(), step=step, metric=REWARD)


def train_cell(work: Work, cell: Cell, advance: Callable[..., None]) -> None:
    """One training run, from its last checkpoint if there is one; all ranks together."""
    config, tables, key, ranks = work.config, work.tables, cell._asdict(), work.ranks
    recipe, steps = cell.recipe(work.base), cell.steps(config.steps)
    backbone = work.model.backbone(weights_dtype(recipe))
    disturb(backbone.transformer, config.start_noise or 0.0)
    policy = make_policy(backbone, recipe, cell.seed, ranks)
    trainer = Trainer(recipe, policy, work.scorer, work.prompts, seed=cell.seed, steps=steps, ranks=ranks)
    own = {**work.provenance, "config": {**work.provenance["config"], "cell": cell.name}}
    checkpoints = Checkpoints(states_folder(work.folder) / cell.name, own, ranks)
    saved = max(ranks.on_main(checkpoints.steps), default=0)
    require_rows(work, cell, saved)
    ranks.on_main(_make_folder, checkpoints.folder)
    counted = 0

    def record(result: StepRecord) -> None:
        step, row = result.metrics["step"], {**key, **result.metrics}
        make_way(work, cell, row)
        if not tables.training.has(**key, step=step):
            tables.training.append(row)
        if not tables.timings.has(**key, step=step):
            tables.timings.append({**key, "step": step, **result.seconds})
        log(step, {**result.metrics, **{f"seconds/{k}": v for k, v in result.seconds.items()}})

    def visit(done: int) -> None:
        nonlocal counted
        if work.due(cell, done) and not work.done(cell, done):
            values, images = work.evaluator(policy, recipe)
            if config.save and done == steps:
                policy.save(work.policy_folder(cell))
            if ranks.main and cell.seed == config.seed and done in (0, steps):
                save_images(images, work.folder / "samples" / f"{cell.name}-step{done}.png")
            common = {"model": work.model.name, "algorithm": config.algorithm, **key, "step": done}
            rows = ({**common, "metric": name, "value": value} for name, value in values.items())
            tables.evaluations.append(*rows)
            log(done, {f"evaluation/{k}": v for k, v in values.items()})
        advance(done - counted, note=cell.name)
        counted = done

    log_kind = config.log if ranks.main else "none"
    with logs.open_log(log_kind, work.folder / "logs", cell.name, own["config"], saved) as log:
        train(
            trainer,
            steps,
            record=record,
            visit=visit,
            checkpoints=checkpoints,
            checkpoint_every=config.checkpoint_every,
        )
    checkpoints.clear()


def _make_folder(folder: Path) -> None:
    """A folder for states, which git ignores."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / ".gitignore").write_text("*\n")


def states_folder(folder: Path) -> Path:
    """Where cells in training keep their states."""
    return folder / ".states"


def save_images(images: Tensor, path: Path, count: int = 8) -> None:
    """The first images, side by side."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    strip = images[:count].clamp(0, 1).permute(2, 0, 3, 1).flatten(1, 2)  # (H, count W, 3)
    Image.fromarray((strip * 255).round().byte().cpu().numpy()).save(path)

"""Does JAGG's reward follow the exact baseline's? One training run per regime, arm, learning rate and seed.

Three tables are written, all keyed by run and step:

* ``convergence.csv``: evaluations every few steps (`experiments.convergence.evaluation`), a row per metric;
* ``convergence-training.csv``: what every training step saw (`repro.training.metrics`);
* ``convergence-timings.csv``: its seconds per phase, apart, so that the other two are the same in every run.

A run is the unit that is recorded: until it is finished its rows live in its checkpoint, from which it
resumes. What chooses runs (arms, regimes, seeds, learning rates) is no part of the tables' identity: later
sessions add runs to the same tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from experiments.common.fill import fill
from experiments.common.inputs import Model, load_model, load_prompts, load_scorer
from experiments.convergence.arms import REWARD, Run
from experiments.convergence.config import Config, identity, planned, settled
from experiments.convergence.evaluation import Evaluator, load_evaluation_prompts
from experiments.convergence.start import disturb
from repro.distributed.ranks import ALONE, Ranks
from repro.errors import InputError
from repro.provenance import collect
from repro.results import Layout, Table, hidden
from repro.rewards import Scorer, local_path
from repro.rewards import load as load_reward
from repro.training import logs
from repro.training.checkpoint import Checkpoints, Rows
from repro.training.metrics import METRICS, PHASES, StepRecord
from repro.training.policy import make_policy, weights_dtype
from repro.training.trainer import Trainer, train

__all__ = ["Config", "run"]

RUN: dict[str, type] = {"regime": str, "arm": str, "lr_factor": float, "seed": int}
EVALUATIONS, TRAINING, TIMINGS = "convergence.csv", "convergence-training.csv", "convergence-timings.csv"
TABLES: dict[str, Layout] = {
    EVALUATIONS: (
        {"model": str, "algorithm": str, **RUN, "step": int, "metric": str, "value": float},
        (*RUN, "step", "metric"),
    ),
    TRAINING: ({**RUN, **METRICS}, (*RUN, "step")),
    TIMINGS: ({**RUN, "step": int, **{phase: float for phase in PHASES}}, (*RUN, "step")),
}
"""The first tells that a run is done, so it is written last."""
MERGED_FOLDERS = ("samples", "policies")


def run(config: Config, ranks: Ranks = ALONE) -> Path:
    """Train the runs that are missing; returns the CSV of evaluations.

    Raises:
        ValueError: settings that contradict each other or do not divide over the ranks, or a model, scorer or
            prompts that cannot be loaded.
    """
    config = settled(config)
    runs, base = planned(config), config.recipe
    for run in runs:
        run.recipe(base).validate_ranks(ranks)
    prompts = load_prompts(config.prompts_file, config.train_prompts or None, config.seed)
    eval_prompts = load_evaluation_prompts(config.eval_prompts_file, config.eval_prompts)
    model = load_model(config.model, config.device)
    scorer, reward = load_scorer(config.reward, model)
    others = [load_reward(spec, config.device) for spec in config.eval_rewards]
    evaluator = Evaluator(eval_prompts, config.eval_images, scorer, others, ranks)
    folder = config.folder
    provenance = collect(
        identity(config),
        seed=config.seed,
        checkpoint=model.path,
        scorer=local_path(reward),
        prompts=[*prompts, *eval_prompts.texts],
        device=config.device,
        ranks=ranks.size,
    )

    def table(name: str) -> Table:
        return ranks.on_main(Table, folder / name, *TABLES[name], provenance=provenance, fresh=config.fresh)

    tables = {name: table(name) for name in TABLES}
    work = Work(config, model, scorer, prompts, evaluator, folder, tables, provenance, ranks)
    if config.save:
        ranks.on_main(_require_policies, work, runs)
    fill(
        f"convergence {folder.name}",
        runs,
        folder=folder,
        name=lambda run: run.name,
        done=work.done,
        measure=lambda run, advance: train_run(work, run, advance),
        size=lambda run: run.steps(config.steps),
        ranks=ranks,
    )
    return folder / EVALUATIONS


@dataclass(frozen=True)
class Work:
    """What all runs share."""

    config: Config
    model: Model
    scorer: Scorer
    prompts: list[str]
    evaluator: Evaluator
    folder: Path
    tables: dict[str, Table]
    provenance: dict[str, Any]
    ranks: Ranks

    def policy_folder(self, run: Run) -> Path:
        """Where the run's trained policy is kept."""
        return self.folder / "policies" / run.name

    def due(self, run: Run, step: int) -> bool:
        """Whether the run is evaluated after `step` training steps."""
        every, last = (run.steps(n) for n in (self.config.evaluate_every, self.config.steps))
        return step % every == 0 or step == last

    def done(self, run: Run) -> bool:
        """Whether the run is in the tables."""
        last = run.steps(self.config.steps)
        return self.tables[EVALUATIONS].has(**run._asdict(), step=last, metric=REWARD)


def train_run(work: Work, run: Run, advance: Callable[..., None]) -> None:
    """One training run, from its last checkpoint if there is one, into the tables; all ranks together."""
    config, key, ranks = work.config, run._asdict(), work.ranks
    recipe, steps = run.recipe(config.recipe), run.steps(config.steps)
    backbone = work.model.backbone(weights_dtype(recipe))
    disturb(backbone.transformer, config.start_noise)
    policy = make_policy(backbone, recipe, run.seed, ranks)
    trainer = Trainer(recipe, policy, work.scorer, work.prompts, seed=run.seed, steps=steps, ranks=ranks)
    told = {**work.provenance, "config": {**work.provenance["config"], "run": run.name}}
    place = ranks.on_main(hidden, work.folder) / run.name
    checkpoints = Checkpoints(place, told, ranks)
    if config.fresh:
        checkpoints.clear()
    saved = max(ranks.on_main(checkpoints.steps), default=0)
    rows: Rows = {name: [] for name in TABLES}
    counted = 0

    def record(result: StepRecord) -> None:
        step = result.metrics["step"]
        rows[TRAINING].append({**key, **result.metrics})
        rows[TIMINGS].append({**key, "step": step, **result.seconds})
        log(step, {**result.metrics, **{f"seconds/{k}": v for k, v in result.seconds.items()}})

    def visit(done: int) -> None:
        nonlocal counted
        evaluated = any(row["step"] == done for row in rows[EVALUATIONS])
        if work.due(run, done) and not evaluated:
            values, images = work.evaluator(policy, recipe)
            if config.save and done == steps:
                policy.save(work.policy_folder(run))
            if ranks.main and run.seed == config.seed and done in (0, steps):
                save_images(images, work.folder / "samples" / f"{run.name}-step{done}.png")
            common = {"model": work.model.name, "algorithm": config.algorithm, **key, "step": done}
            rows[EVALUATIONS] += [{**common, "metric": name, "value": v} for name, v in values.items()]
            log(done, {f"evaluation/{k}": v for k, v in values.items()})
        advance(done - counted, note=run.name)
        counted = done

    log_kind = config.log if ranks.main else "none"
    with logs.open_log(log_kind, work.folder / "logs", run.name, told["config"], saved) as log:
        train(
            trainer,
            steps,
            record=record,
            visit=visit,
            checkpoints=checkpoints,
            save=lambda done: work.due(run, done) or done % config.checkpoint_every == 0,
            rows=rows,
        )
    for name in reversed(TABLES):
        ranks.on_main(work.tables[name].append, *rows[name], unit=run.name)
    checkpoints.clear()


def save_images(images: Tensor, path: Path, count: int = 8) -> None:
    """The first images, side by side."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    strip = images[:count].clamp(0, 1).permute(2, 0, 3, 1).flatten(1, 2)  # (H, count W, 3)
    Image.fromarray((strip * 255).round().byte().cpu().numpy()).save(path)


def _require_policies(work: Work, runs: list[Run]) -> None:
    """Refuse to save what was trained before: the weights are gone."""
    for run in runs:
        if work.done(run) and not work.policy_folder(run).is_dir():
            raise InputError(
                f"{run.name} was trained without --save, its policy is gone: pass --fresh to train "
                "everything again, or another --out"
            )

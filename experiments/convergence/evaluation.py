"""How good a policy is, measured the same way at every step of every run.

Names that the generator saw and reinforcement learning did not; noise fixed once and for all; the
deterministic sampler. Besides the scorer that is trained on, whose rise may be reward hacking: scorers that
had no part in it, and two measures that no scorer can game, both in an evaluation scorer's feature space:

* ``similarity``: cosine with the true picture of that name, where there is one;
* ``diversity``: 1 - cosine, averaged over the pairs of a prompt's images.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.common.inputs import load_prompts
from experiments.convergence.arms import DIVERSITY, REWARD, SIMILARITY
from repro import zoo
from repro.console import note
from repro.core.rollout import sample
from repro.core.sde import ODE
from repro.distributed.ranks import ALONE, Ranks
from repro.errors import InputError
from repro.models import bind
from repro.rewards import Scorer
from repro.training.guard import Fault, Guarded
from repro.training.policy import Policy
from repro.training.recipe import Recipe

BATCH_IMAGES = 48
"""Images sampled together."""


class Prompts(NamedTuple):
    """What is drawn, and the true pictures (N, 3, H, W) in [0, 1] where they are known."""

    texts: list[str]
    pictures: Tensor | None


def load_evaluation_prompts(file: Path | None, count: int) -> Prompts:
    """``count`` prompts from a file, or of the bundled evaluation prompts with their pictures.

    Raises:
        ValueError: fewer prompts than asked for, or no such file.
    """
    if file is not None:
        return Prompts(load_prompts(file, count, seed=0), None)
    texts = zoo.prompts("eval")
    if len(texts) < count:
        raise InputError(f"{count} evaluation prompts were asked for, the bundled list has {len(texts)}")
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0))[:count].tolist()
    return Prompts([texts[i] for i in order], zoo.pictures("eval")[order])


class Evaluation(NamedTuple):
    """Values by metric, and the first image of every prompt, (N, 3, H, W)."""

    values: dict[str, float]
    images: Tensor


class Evaluator:
    """See the module.

    Args:
        prompts: what is drawn.
        images: per prompt, at least 2.
        scorer: the one that is trained on.
        others: evaluation scorers; the first with ``image_features`` gives the feature space.
        ranks: who shares the prompts; N must divide them.
    """

    def __init__(
        self,
        prompts: Prompts,
        images: int,
        scorer: Scorer,
        others: Sequence[Scorer],
        ranks: Ranks = ALONE,
    ) -> None:
        if images < 2:
            raise InputError(f"{images} images a prompt have no diversity: evaluate 2 or more")
        self._share = ranks.share(range(len(prompts.texts)), "evaluation prompts")
        self._ranks = ranks
        self.prompts = prompts
        self.images = images
        self._scorers = {REWARD: scorer} | {other.name: other for other in others}
        able = [s for s in others if hasattr(s, "image_features")]
        self._features: Any = able[0].image_features if able else None
        if self._features is None:
            note(
                "evaluation: no scorer of --eval-rewards has image_features, so similarity and diversity are "
                "left out"
            )

    def __call__(self, policy: Policy, recipe: Recipe) -> Evaluation:
        """Evaluate the policy's moving average, or the policy, with the recipe's schedule and guidance."""
        with policy.averaged():
            images = self._sample(policy, recipe)  # of this rank's prompts; what is made of them is of all
        cat = self._ranks.cat
        texts = [self.prompts.texts[i] for i in self._share for _ in range(self.images)]
        values = {
            name: float(cat(self._score(scorer, images, texts)).mean())
            for name, scorer in self._scorers.items()
        }
        if self._features is not None:
            features = cat(self._features(images)).unflatten(0, (-1, self.images))  # (N, G, d), unit vectors
            if self.prompts.pictures is not None:
                truth = self._features(self.prompts.pictures).to(features.device)
                values[SIMILARITY] = float((features * truth[:, None]).sum(-1).mean())
            cosines = features @ features.mT
            pairs = self.images * (self.images - 1)
            off_diagonal = cosines.sum((1, 2)) - cosines.diagonal(dim1=1, dim2=2).sum(1)
            values[DIVERSITY] = float(1 - (off_diagonal / pairs).mean())
        return Evaluation(values, cat(images[:: self.images]))

    def _score(self, scorer: Scorer, images: Tensor, texts: list[str]) -> Tensor:
        """Scores, or on every rank a ValueError: an evaluation, unlike a training step, is not skipped."""
        try:
            return Guarded(scorer, self._ranks)(images, texts)
        except Fault as fault:
            raise InputError(
                f"evaluation stopped, nothing of it is written: {fault}; rerun the same command to go on"
            ) from None

    def _sample(self, policy: Policy, recipe: Recipe) -> Tensor:
        sigmas = recipe.sigmas
        generator = torch.Generator().manual_seed(0)
        shape = (len(self.prompts.texts), self.images, *policy.latent_shape())
        noise = torch.randn(shape, generator=generator)
        at_once = max(1, BATCH_IMAGES // self.images)
        parts = []
        for start in range(self._share[0], self._share[-1] + 1, at_once):
            here = slice(start, min(start + at_once, self._share[-1] + 1))
            conditioning = policy.encode(self.prompts.texts[here], negative=recipe.guidance > 1)
            velocity = bind(policy, conditioning.repeat_interleave(self.images), sigmas, recipe.guidance)
            latents = noise[here].flatten(0, 1).to(policy.device)
            parts.append(policy.decode(sample(velocity, latents, sigmas, ODE()).final))
        return torch.cat(parts)

"""The numbers of the JAGG paper, each with where it comes from. Nothing here was measured by this suite.

Every quantity carries a mark, to be shown wherever the number is:

* "reported": stated by the summary of the paper that this suite was built from (not the paper's own text);
* "early code": read in an early public version of the authors' training code, months before the paper;
* "ours": derived here, never to be presented as the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Mark: TypeAlias = Literal["reported", "early code", "ours"]

TITLE = "JAGG: Jacobian-Aggregated Group Gradient for Efficient GRPO Training of Diffusion Models"
AUTHORS = ("Ding", "Li", "Kang", "Liu", "Song", "Chen")
ARXIV = "2607.17572"


@dataclass(frozen=True)
class Quantity:
    """A number or a range, in ``unit``, with its mark. ``low == high`` for a single number."""

    what: str
    low: float
    high: float
    unit: str
    mark: Mark

    def __str__(self) -> str:
        numbers = f"{self.low:g}" if self.low == self.high else f"{self.low:g} … {self.high:g}"
        return f"{numbers}{' ' * bool(self.unit)}{self.unit} ({self.mark})"


@dataclass(frozen=True)
class Statement:
    """A result that was reported in words."""

    what: str
    text: str
    mark: Mark

    def __str__(self) -> str:
        return f"{self.text} ({self.mark})"


def _number(what: str, value: float, unit: str = "", mark: Mark = "reported") -> Quantity:
    return Quantity(what, value, value, unit, mark)


# What was reported

STEP_QWEN_IMAGE_EXACT = _number("time per training step, DanceGRPO, Qwen-Image, exact", 835, "s")
STEP_QWEN_IMAGE_JAGG = _number("time per training step, DanceGRPO, Qwen-Image, JAGG", 691, "s")
STEP_FLUX_EXACT = _number("time per training step, DanceGRPO, FLUX, exact", 279, "s")
STEP_FLUX_JAGG = _number("time per training step, DanceGRPO, FLUX, JAGG", 228, "s")
STEP_REDUCTION = Quantity("time off a DanceGRPO training step", 17.3, 18.2, "%", "reported")
STEP_REDUCTION_QWEN_IMAGE = _number(
    "time off a DanceGRPO step, Qwen-Image, from the seconds", 17.2, "%", "ours"
)
STEP_REDUCTION_FLUX = _number("time off a DanceGRPO step, FLUX, from the seconds", 18.3, "%", "ours")
UPDATE_REDUCTION_FAST = Quantity("time off the update phase, Flow-GRPO-Fast", 29.9, 30.0, "%", "reported")

COSINE_EARLY_GROUPS = Quantity("cosine(JAGG, exact), groups 0-2", 0.74, 0.85, "", "reported")
COSINE_GROUPS = (0, 1, 2)
"""The groups, from high noise, that :data:`COSINE_EARLY_GROUPS` is about."""
COSINE_TREND = Statement("cosine(JAGG, exact), later groups", "falls in later groups", "reported")

QUALITY = Statement(
    "reward against training step (HPSv2.1, PickScore, CLIPScore)",
    "follows the baseline's curve; equal or slightly above at convergence; sometimes more stable",
    "reported",
)
ABLATION = Statement(
    "backwards at the endpoints, no interpolation, the full loss assigned to the endpoints independently",
    "consistently worse than JAGG",
    "reported",
)
COST_PER_GROUP = Statement(
    "computational cost per group of 4",
    "about half: 4 backwards become 2, at negligible loss of quality",
    "reported",
)
ALL_GATHERS = Statement(
    "all-gathers per module in the joint backward", "exactly one, in place of W", "reported"
)

# Settings

GROUP_SIZE = _number("W, steps per group", 4)
JAGG_FRAC = _number("share of the groups, from high noise, on JAGG", 0.6)
SAMPLING_STEPS = _number("sampling steps, the last of them not trained", 21, "", "early code")
TRAINED_STEPS = _number("sampling steps in the groups", 20, "", "early code")
TIMESTEP_FRACTION = _number("share of the shuffled groups trained", 0.6, "", "early code")
SHIFT = _number("shift of the noise schedule", 3, "", "early code")
ETA = _number("eta of DanceGRPO's SDE", 0.3, "", "early code")
IMAGES_PER_PROMPT = _number("images per prompt (8 at first)", 12, "", "early code")
CLIP_RANGE = _number("clip range of the ratio", 0.1, "", "early code")
CLIP_RANGE_DANCE = _number("clip range of the ratio in DanceGRPO's own scripts", 1e-4, "", "early code")
ADVANTAGE_CLIP = _number("clip of the advantages", 5, "", "early code")
LEARNING_RATE = _number("learning rate", 1e-5, "", "early code")
WEIGHT_DECAY = _number("weight decay", 1e-4, "", "early code")
MAX_GRAD_NORM = _number("largest gradient norm", 10, "", "early code")
RESOLUTION = _number("height and width", 720, "px", "early code")

# Derived from the cost model; no part of the paper

STEP_COST_EXACT = _number("cost of a DanceGRPO step, exact, b=2, checkpointing", 101, "forwards", "ours")
STEP_COST_JAGG = _number(
    "cost of a DanceGRPO step, jagg_frac 0.6, b=2, checkpointing", 83, "forwards", "ours"
)
STEP_COST_REDUCTION = _number("cost off a DanceGRPO step, the same", 17.8, "%", "ours")
COSINE_ENDPOINTS_ALONE = _number(
    "cosine of endpoints only at W=4, if the steps' gradients were independent and alike in size",
    0.707,
    "",
    "ours",
)


def facts() -> tuple[Quantity | Statement, ...]:
    """Everything above, in order."""
    return tuple(value for value in globals().values() if isinstance(value, (Quantity, Statement)))

"""The paper's claims, each with its test here and what the tables found of it.

A claim is data: what is claimed, what was reported, how it is tested, and which table's findings judge it,
in which folders. Words and judgements come from the tables' own analysis
(`experiments.TABLE.analysis.findings`); nothing is measured or decided here.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

from experiments import paper
from experiments.common.findings import Finding
from experiments.convergence.arms import ALGORITHMS
from repro import zoo


@dataclass(frozen=True)
class Place:
    """A folder of results, and what its numbers are of.

    Attributes:
        folder: in the folder of results.
        model: whose column of the summary it belongs to.
        algorithm: the training recipe's label; empty where the table is not of training runs.
    """

    folder: str
    model: str
    algorithm: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.model, self.algorithm)))


MODELS = tuple(Place(model, model) for model in zoo.MODELS)
RUNS = tuple(
    Place(f"{model}-{algorithm}", model, label)
    for model in zoo.MODELS
    for algorithm, label in ALGORITHMS.items()
)
RANKS = (Place("allgather", "tiny-flux"),)
"""Collectives are counted on FLUX's blocks and do not depend on their size."""


@dataclass(frozen=True)
class Claim:
    """One claim and its test.

    Attributes:
        what: in a few words, as the summary's rows name it.
        reported: by the paper's summary; "-" for a control of ours that it does not have.
        test: what is done here to test it, in a sentence.
        table: whose findings judge it; empty where nothing here tests the claim.
        key: of its finding, in ``findings(csv)`` of the table.
        places: the folders that are looked into.
        held_by: the test file that shows it, for what follows from the mathematics.
        headline: whether it is a row of the summary.
        short: how sentences name it, where that is shorter.
    """

    what: str
    reported: str
    test: str
    table: str = ""
    key: str = ""
    places: tuple[Place, ...] = MODELS
    held_by: str = ""
    headline: bool = True
    short: str = ""

    def __str__(self) -> str:
        return self.short or self.what


CLAIMS = (
    Claim(
        f"time off a DanceGRPO step, JAGG on {paper.JAGG_FRAC.low:g} of the groups",
        f"{paper.STEP_REDUCTION.low:g} … {paper.STEP_REDUCTION.high:g} %",
        "Whole training steps, timed in turn with exact's in one process; median of the rounds, beside the "
        "cost model's prediction.",
        "speedup",
        "step",
        short="a step's time",
    ),
    Claim(
        "time off Flow-GRPO-Fast's update",
        f"{paper.UPDATE_REDUCTION_FAST.low:g} … {paper.UPDATE_REDUCTION_FAST.high:g} %",
        "The update's passes alone, timed in the same way.",
        "speedup",
        "update",
        short="the update's time",
    ),
    Claim(
        "cosine with the exact gradient, groups 0 … 2",
        f"{paper.COSINE_EARLY_GROUPS.low:g} … {paper.COSINE_EARLY_GROUPS.high:g}",
        "Both gradients of the same batch, group by group.",
        "cosine",
        "level",
        short="the cosine's level",
    ),
    Claim(
        "cosine over the groups",
        paper.COSINE_TREND.text,
        "Last group minus first, with a jackknife's interval over prompts.",
        "cosine",
        "trend",
        short="the cosine's fall over the groups",
    ),
    Claim(
        "JAGG's reward minus exact's, in % of exact's rise",
        paper.QUALITY.text,
        "Training runs paired by seed: a test of equivalence within a margin that was set beforehand, and "
        "one of difference, over the run and at its end.",
        "convergence",
        "follows",
        RUNS,
        short="JAGG's reward",
    ),
    Claim(
        "endpoints without interpolation, minus JAGG, in % of exact's rise",
        paper.ABLATION.text,
        "Every reading of the summary's wording is trained, paired by seed with JAGG.",
        "ablation",
        "endpoints",
        RUNS,
        short="endpoints alone",
    ),
    Claim(
        "exact on fewer steps at JAGG's cost, minus JAGG, in % of exact's rise",
        "-",
        "The control that the summary does not have: exact gradients of so many steps as cost the same. The "
        "steps are drawn per prompt, which may handicap it.",
        "ablation",
        "equal-cost",
        RUNS,
        short="exact on fewer steps at JAGG's cost",
    ),
    Claim(
        "all-gathers a module in the joint backward",
        paper.ALL_GATHERS.text,
        "Collectives counted on two ranks, block by block, for every layout of an update.",
        "allgather",
        "all-gathers",
        RANKS,
        short="all-gathers",
    ),
    Claim(
        "cost of a group of 4",
        paper.COST_PER_GROUP.text,
        "Passes counted by the plan that the update runs: half the backwards, but forwards stay, so the "
        "group's cost falls by 37.5 % with checkpointing and by 33.3 % without.",
        held_by="tests/core/test_cost.py",
        headline=False,
    ),
    Claim(
        "exact where v is linear in latents and time (Theorem 1)",
        "error zero",
        "Closed forms: no error with latents placed on the segment between a group's ends, and off it, "
        "where the sampler's noise leads, exactly the error that the derivation gives.",
        held_by="tests/core/test_theorem1.py",
        headline=False,
    ),
    Claim(
        "training is as stable, or more",
        "sometimes more stable",
        "The spread of the seeds' rises beside exact's is in the section on convergence, from six seeds on.",
        headline=False,
    ),
    Claim(
        "weights by time beat weights by index",
        "weights by time, where the early code has them by index",
        "Both are schemes of the cosine table's CSV; no difference between them is tested yet.",
        headline=False,
    ),
    Claim(
        "the cosine falls because of the noise level, not because shift 3 widens later groups",
        "-",
        "The cosine table has groups of equal sigma span beside the paper's; its section tells their trend.",
        headline=False,
    ),
    Claim(
        "JAGG on the first 0.6 of the groups is the right routing",
        "used for text-to-image",
        "Only this fraction was trained, with three seeds; no other was.",
        headline=False,
    ),
    Claim(
        "interpolating with a later step's Jacobian is unbiased enough to train with",
        "-",
        "The cosine of one batch cannot see a bias that does not average out; no table tests it yet.",
        headline=False,
    ),
    Claim(
        "orthogonal to accelerators of sampling",
        "claimed, not measured",
        "None is combined with JAGG here.",
        headline=False,
    ),
)

Judged: TypeAlias = Mapping[Claim, Mapping[Place, Finding]]
"""What was found of every claim, wherever it was measured."""


def judged(results: Path) -> dict[Claim, dict[Place, Finding]]:
    """Every claim with its findings, from the CSVs in a folder of results; empty where there are none."""

    @cache
    def findings(table: str, folder: str) -> dict[str, Finding]:
        csv = results / folder / f"{table}.csv"
        if not csv.exists():
            return {}
        return importlib.import_module(f"experiments.{table}.analysis").findings(csv)

    return {
        claim: {
            place: found[claim.key]
            for place in claim.places
            if claim.table and claim.key in (found := findings(claim.table, place.folder))
        }
        for claim in CLAIMS
    }

"""The convergence tables read back: one row per run, curves, and what a run spent.

The unit is the training seed. An outcome of a run is a number per metric:

* ``final``: the mean of its last quarter of evaluations, the last one at least;
* ``curve``: the mean of all evaluations after the start, the area under the curve.

Both as the rise over the run's own start, which is the same for all arms of a seed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.common.findings import Finding, Judgement
from experiments.common.intervals import LEVEL, MARGIN, Comparison, Verdict, compare, decide, p_rise
from experiments.common.markdown import counted, ranged
from experiments.convergence.arms import REGIMES, REWARD, ArmName, RegimeName
from repro.errors import InputError
from repro.results import provenance_path, read
from repro.training.metrics import PHASES
from repro.training.recipe import Recipe

RUN = ["regime", "arm", "lr_factor", "seed"]
OUTCOMES = ("final", "curve")
BASELINE: ArmName = "exact"
JAGGS: tuple[ArmName, ...] = ("jagg", "routed")
"""The arms that the paper's statement is about: the method on all groups, and as it was used."""
PRIMARY: tuple[RegimeName, ArmName] = ("comfortable", "jagg")
"""Of `following`."""


def complete(csv: Path) -> pd.DataFrame:
    """The evaluations of runs that are complete: evaluated at the start and after the last configured step.

    Raises:
        ValueError: if there are none.
    """
    table, steps = read(csv), config_of(csv)["steps"]
    last = table.regime.map({name: steps * regime.steps for name, regime in REGIMES.items()})
    ends = [set(table[table.step == step].set_index(RUN).index) for step in (0, last)]
    rows = table[table.set_index(RUN).index.isin(ends[0] & ends[1])]
    if rows.empty:
        raise InputError(f"{csv} has no complete training run yet: let `repro run convergence` finish one")
    return rows


def config_of(csv: Path) -> dict[str, Any]:
    """The settings that a table's runs share, from its provenance."""
    config: dict[str, Any] = json.loads(provenance_path(csv).read_text())["config"]
    return config


def recipe_of(csv: Path, regime: RegimeName) -> Recipe:
    """The exact baseline's recipe in a regime of a table, from its provenance."""
    config = config_of(csv)
    return REGIMES[regime].change(Recipe(**{f.name: config[f.name] for f in fields(Recipe)}))


def runs(table: pd.DataFrame) -> pd.DataFrame:
    """Outcomes by run and metric, columns ``start``, ``final`` and ``curve``, of complete runs."""
    rows = []
    for key, curve in table.groupby([*RUN, "metric"], sort=False):
        values = curve.sort_values("step").set_index("step")["value"]
        start, rest = values.loc[0], values.iloc[1:]
        tail = rest.iloc[-max(1, round(len(rest) / 4)) :]
        outcome = {"start": start, "final": tail.mean() - start, "curve": rest.mean() - start}
        rows.append(dict(zip([*RUN, "metric"], key, strict=True)) | outcome)
    return pd.DataFrame(rows, columns=[*RUN, "metric", "start", *OUTCOMES])


def main_rate(rows: pd.DataFrame) -> float:
    """The learning rate's factor at which a regime's arms are compared, of rows with the columns of `RUN`.

    That at which most arms were trained; of several such factors 1, or the one with most runs.
    """
    cells = rows.drop_duplicates(RUN[1:])

    def rank(factor: float) -> tuple[int, bool, int, float]:
        of_factor = cells[cells.lr_factor == factor]
        return of_factor.arm.nunique(), factor == 1, len(of_factor), -abs(math.log(factor))

    return float(max(cells.lr_factor.unique(), key=rank))


def at_main_rate(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of every regime's `main_rate`."""
    main = {regime: main_rate(of_regime) for regime, of_regime in rows.groupby("regime")}
    return rows[rows.lr_factor == rows.regime.map(main)]


def differences(
    outcomes: pd.DataFrame, first: tuple[str, float], second: tuple[str, float], outcome: str
) -> pd.Series:
    """By seed, an outcome of one (arm, lr_factor) minus another's; seeds that only one has are left out."""
    by_run = outcomes.set_index(["arm", "lr_factor", "seed"])[outcome]

    def of(choice: tuple[str, float]) -> pd.Series:
        return by_run[by_run.index.droplevel("seed") == choice].droplevel(["arm", "lr_factor"])

    return (of(first) - of(second)).dropna()


def best_factors(outcomes: pd.DataFrame) -> pd.DataFrame:
    """Every arm's own best learning rate (of one regime), seeds by arms: for each seed by the *other* seeds.

    Chosen by the mean ``curve`` of the training reward, so that no seed both chooses a rate and is judged at
    it. Only of arms with several rates, over the seeds that all of these have, two or more.
    """
    best = {}
    for arm, rows in outcomes[outcomes.metric == REWARD].groupby("arm"):
        wide = rows.pivot(index="seed", columns="lr_factor", values="curve").dropna()
        if min(wide.shape) > 1:
            best[arm] = {seed: wide.drop(seed).mean().idxmax() for seed in wide.index}
    return pd.DataFrame(best)


def at_factors(of_metric: pd.DataFrame, factors: pd.DataFrame, outcome: str) -> pd.DataFrame:
    """An outcome, seeds by arms, at learning rates ``factors``, seeds by arms; nan where there is none."""
    by_run = of_metric.set_index(["arm", "seed", "lr_factor"])[outcome]
    return pd.DataFrame(
        {
            arm: by_run.reindex([(arm, seed, factor) for seed, factor in chosen.items()]).to_numpy()
            for arm, chosen in factors.items()
        },
        index=factors.index,
    )


def spent(csv: Path) -> pd.DataFrame:
    """By run and step, cumulative seconds, backwards, and predicted cost in forwards of one image.

    The cost is sampling and updates by the cost model; decoding and rewards are in the seconds alone. Seconds
    are those of the session that made the step; where it was made again after a kill, of the first time.
    A table's runs may be of several machines, busy or not, so seconds are brought to one pace (`_pace`).
    """
    training = read(csv.with_name("convergence-training.csv"))
    timings = read(csv.with_name("convergence-timings.csv"))
    joined = training.merge(timings, on=[*RUN, "step"]).sort_values([*RUN, "step"])
    recipe = config_of(csv)
    backward, velocity = 1 if recipe["lora_rank"] else 2, 2 if recipe["guidance"] > 1 else 1
    forwards = joined.rollout_forwards + joined.forwards + joined.recomputes + joined.reference_forwards
    joined["cost"] = velocity * (forwards + backward * joined.backwards)
    joined["seconds"] = joined[list(PHASES)].sum(axis=1) * _pace(joined)
    totals = ["seconds", "cost", "backwards"]
    joined[totals] = joined.groupby(RUN)[totals].cumsum()
    return joined[[*RUN, "step", *totals]]


def _pace(joined: pd.DataFrame) -> pd.Series:
    """What to multiply a run's seconds by: as if it sampled as fast as its regime's exact runs do (median).

    Sampling is the same work in all of a regime's runs, so how long it took tells how fast the machine was.
    It does not tell by how much updates were faster, which need not be the same: arms of equal forwards show
    what that leaves between them.
    """
    of_run = joined.groupby(RUN)[["rollout", "rollout_forwards"]].transform("sum")
    pace = of_run.rollout / of_run.rollout_forwards
    reference = pace.where(joined.arm == BASELINE).groupby(joined.regime).transform("median")
    return (reference.fillna(pace) / pace).fillna(1.0)


def off_policy(csv: Path) -> pd.DataFrame:
    """Training steps of several updates a rollout, faults left out, at the main rate.

    Later updates of a rollout are off-policy: importance ratios leave 1, the clip begins to act, and the
    rollout's velocities are stale. They are forwarded again, without gradient, or corrected from the anchors;
    column ``extra_forwards`` has these passes for each backward.
    """
    table = read(csv.with_name("convergence-training.csv"))
    table = at_main_rate(table[(table.updates > 1) & table.fault.isna()])
    return table.assign(extra_forwards=(table.forwards - table.backwards) / table.backwards)


def totals(outcomes: pd.DataFrame, spending: pd.DataFrame) -> pd.DataFrame:
    """What a run spent, the mean over seeds by (arm, lr_factor), of the runs in one regime's outcomes."""
    of_runs = spending.merge(outcomes[RUN].drop_duplicates(), on=RUN).groupby(RUN)
    return of_runs[["seconds", "cost", "backwards"]].max().groupby(["arm", "lr_factor"]).mean()


def at_steps(spending: pd.DataFrame, steps: Sequence[int]) -> pd.DataFrame:
    """The rows of given steps, and a row of zeros for step 0 of every run."""
    zero = spending.drop_duplicates(RUN).assign(step=0, seconds=0.0, cost=0.0, backwards=0)
    return pd.concat([zero, spending])[lambda rows: rows.step.isin(steps)]


def learned(rises: Sequence[float] | pd.Series) -> bool:
    """Whether a reward rose over the seeds, by `p_rise`; not of fewer than `FEWEST`."""
    return p_rise(rises) < LEVEL


def against_exact(here: pd.DataFrame, arm: str, outcome: str) -> Comparison | None:
    """Of an arm's reward with the exact baseline's, of one regime's outcomes, within `MARGIN` of its rise.

    None without seeds of both, or where the baseline did not rise on these.
    """
    reward, rate = here[here.metric == REWARD], main_rate(here)
    difference = differences(reward, (arm, rate), (BASELINE, rate), outcome)
    exact = reward[(reward.arm == BASELINE) & (reward.lr_factor == rate)].set_index("seed")[outcome]
    margins = MARGIN * exact.reindex(difference.index)
    return compare(difference.to_numpy(), margins.to_numpy()) if margins.mean() > 0 else None


def percent(comparison: Comparison) -> tuple[float, float]:
    """A difference and half its interval, in per cent of exact's mean rise, whose spread is not in that."""
    unit = 100 * MARGIN / comparison.margin
    return unit * comparison.mean, unit * comparison.half


@dataclass(frozen=True)
class Following:
    """An arm's reward minus exact's in one regime, in both `OUTCOMES`.

    Attributes:
        verdicts: of the comparisons; of an exploratory contrast, corrected for the table's number of those.
        learned: whether the baseline did; where it did not, nothing can be told.
    """

    comparisons: Mapping[str, Comparison]
    verdicts: Mapping[str, Verdict]
    learned: bool

    @property
    def judgement(self) -> Judgement:
        """Of what is reported: it is about convergence, which these runs do not reach.

        So they may not contradict it, no more.
        """
        verdicts = set(self.verdicts.values())
        if not self.learned:
            return Judgement.UNDECIDED
        if Verdict.LOWER in verdicts:
            return Judgement.DISAGREES
        return Judgement.UNDECIDED if Verdict.UNDECIDED in verdicts else Judgement.NOT_CONTRADICTED


def following(outcomes: pd.DataFrame) -> dict[tuple[RegimeName, ArmName], Following]:
    """Of both `JAGGS` in every regime at its main rate, where there is something to compare.

    JAGG on all groups in the comfortable regime is the primary contrast, the others are exploratory.
    """
    outcomes = at_main_rate(outcomes)
    found: dict[tuple[RegimeName, ArmName], dict[str, Comparison]] = {}
    rose = {}
    for regime in [name for name in REGIMES if name in set(outcomes.regime)]:
        here = outcomes[outcomes.regime == regime]
        rose[regime] = learned(here[(here.metric == REWARD) & (here.arm == BASELINE)].final)
        for arm in JAGGS:
            compared = {outcome: against_exact(here, arm, outcome) for outcome in OUTCOMES}
            if all(compared.values()):
                found[regime, arm] = {outcome: c for outcome, c in compared.items() if c}
    exploratory = [key for key in found if key != PRIMARY]
    corrected = {o: decide([found[key][o] for key in exploratory]) for o in OUTCOMES}
    verdicts = {
        key: {
            o: corrected[o][exploratory.index(key)] if key != PRIMARY else found[key][o].decision
            for o in OUTCOMES
        }
        for key in found
    }
    return {key: Following(found[key], verdicts[key], rose[key[0]]) for key in found}


WHY = {
    Judgement.NOT_CONTRADICTED: "What is reported is about convergence, which these runs do not reach.",
    Judgement.DISAGREES: "JAGG came out lower over the run or at its end.",
    Judgement.UNDECIDED: (
        "Too few seeds, too small a rise, or too wide an interval, over the run or at its end."
    ),
}


def findings(csv: Path) -> dict[str, Finding]:
    """Of "follows": JAGG on all groups minus exact in the comfortable regime, in % of exact's rise."""
    found = following(runs(complete(csv))).get(PRIMARY)
    if found is None:
        return {}
    curve = found.comparisons["curve"]
    difference, verdict = ranged(*percent(curve)), found.verdicts["curve"]
    text = f"{difference} over the run, {verdict}, {counted(curve.n, 'seed')}"
    return {"follows": Finding(text, found.judgement, WHY[found.judgement])}

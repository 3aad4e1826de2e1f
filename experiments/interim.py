"""Findings of tables whose own ``analysis.findings`` has not landed yet; goes table by table as they do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from experiments import paper
from experiments.common.findings import Finding, Judgement


def speedup(csv: Path) -> dict[str, Finding]:
    """Of the two cells that were reported, in the paper's mode at the largest batch."""
    from experiments.speedup.analysis import cells
    from experiments.speedup.report import PAPER_MODE, REPORTED, mode

    whys = {
        "step": "What a step spends outside the update differs with model and machine.",
        "update": "The reported phase may contain more than the passes (optimizer, advantages, "
        "communication: the paper's summary does not say), which would pull the saving towards the "
        "reported one.",
    }
    group = (int(paper.GROUP_SIZE.low), 2)
    found: dict[str, Finding] = {}
    for cell in sorted(cells(csv), key=lambda c: c.of("batch")):
        kind, reported = REPORTED.get((cell.of("algorithm"), cell.scheme), ("", None))
        if (
            reported
            and mode(cell) == PAPER_MODE
            and (cell.of("group_size"), cell.of("anchor_chunk")) == group
        ):
            value, low, high = (100 * x for x in (cell.step if kind == "step" else cell.priced))
            predicted = 100 * (cell.predicted_step if kind == "step" else cell.predicted_update)
            judgement = _against(value, low, high, reported)
            text = f"{value:.1f} % ({low:.1f} … {high:.1f}; cost model {predicted:.1f})"
            found[kind] = Finding(text, judgement, whys[kind] if judgement is Judgement.DISAGREES else "")
    return found


def _against(value: float, low: float, high: float, reported: paper.Quantity) -> Judgement:
    if reported.low <= value <= reported.high:
        return Judgement.AGREES
    apart = high < reported.low or low > reported.high
    return Judgement.DISAGREES if apart else Judgement.NOT_CONTRADICTED


def convergence(csv: Path) -> dict[str, Finding]:
    """JAGG's reward over the run minus exact's, in per cent of exact's rise, in the comfortable regime."""
    from experiments.common.intervals import LEVEL, MARGIN
    from experiments.common.markdown import counted
    from experiments.convergence.analysis import at_main_rate, complete, runs
    from experiments.convergence.figure import LEARNED, learning, of_baseline
    from experiments.convergence.report import REWARD, against_exact

    outcomes = at_main_rate(runs(complete(csv)))
    here = outcomes[outcomes.regime == "comfortable"]
    compared = against_exact(here, "jagg", "curve") if {"exact", "jagg"} <= set(here.arm) else None
    if compared is None:
        return {}
    unit = compared.margin / MARGIN / 100
    ends = [x / unit for x in (compared.mean, compared.mean - compared.half, compared.mean + compared.half)]
    rises = of_baseline(here)[lambda rows: rows.metric == REWARD].final
    why = ""
    if learning(rises) < LEARNED:
        judgement, why = Judgement.UNDECIDED, "The exact baseline was not seen to learn."
    elif compared.p_equivalence < LEVEL:
        judgement = Judgement.NOT_CONTRADICTED
        why = "Equal within the margin over a run at whose end the reward still rises: not at convergence."
    elif ends[2] < 0:
        judgement, why = Judgement.DISAGREES, "JAGG's reward is lower than exact's beyond its interval."
    else:
        judgement = Judgement.UNDECIDED
    text = (
        f"{ends[0]:+.1f} % of exact's rise ({ends[1]:+.1f} … {ends[2]:+.1f}; {counted(compared.n, 'seed')})"
    )
    return {"follows": Finding(text, judgement, why)}


def ablation(csv: Path) -> dict[str, Finding]:
    """Every reading, and the control at equal cost, minus JAGG, in per cent of exact's rise."""
    from experiments.common.intervals import MARGIN
    from experiments.common.markdown import counted
    from experiments.convergence.analysis import at_main_rate
    from experiments.convergence.arms import ARMS
    from experiments.convergence.evaluation import REWARD
    from experiments.convergence.figure import BASELINE, LEARNED, learning
    from repro.results import read

    rows = read(csv)
    rows = rows[(rows.metric == REWARD) & (rows.outcome == "curve") & (rows.rates == "same")]
    rows = rows[(rows.regime == "comfortable") & (rows["second"] == "jagg")].set_index("first")
    spent = at_main_rate(read(csv.with_name("ablation-efficiency.csv")))
    rises = spent[(spent.regime == "comfortable") & (spent.arm == BASELINE)].rise
    learned = learning(rises) >= LEARNED

    def words(arm: str) -> str:
        row = rows.loc[arm]
        unit = row.margin / MARGIN / 100
        mean, half = row.difference / unit, row.half_interval / unit
        return f"{mean:+.0f} % ({mean - half:+.0f} … {mean + half:+.0f}; {counted(int(row.seeds), 'seed')})"

    found: dict[str, Finding] = {}
    readings = [arm for arm in ARMS if arm.startswith("endpoints") and arm in rows.index]
    # From three seeds nothing is higher or lower.
    lower = [a for a in readings if rows.loc[a].verdict == "lower" and rows.loc[a].seeds >= 6]
    if readings:
        text = "; ".join(f"{ARMS[arm].label.removeprefix('endpoints: ')} {words(arm)}" for arm in readings)
        judgement, why = Judgement.UNDECIDED, ""
        if not learned:
            why = "The exact baseline was not seen to learn."
        elif len(lower) == len(readings):
            judgement = Judgement.AGREES
        elif any("equal" in rows.loc[arm].verdict for arm in readings):
            judgement = Judgement.DISAGREES
            why = (
                "Not every reading of the summary's wording is worse: only keeping each end's own signal is."
            )
        found["endpoints"] = Finding(text, judgement, why)
    if "subset" in rows.index:
        found["equal-cost"] = Finding(words("subset"))
    return found


FINDINGS: dict[str, Callable[[Path], dict[str, Finding]]] = {
    f.__name__: f for f in (speedup, convergence, ablation)
}

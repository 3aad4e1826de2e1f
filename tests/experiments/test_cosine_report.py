"""The cosine table read back: intervals, the trend, and what is judged."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.common.findings import Judgement
from experiments.cosine import analysis, report
from experiments.cosine import figure as cosine_figure
from experiments.cosine.analysis import Direction, Estimate, direction
from repro.errors import InputError


def made_up(folder: Path, first: float, last: float, model: str = "tiny-flux", spread: float = 0.001) -> Path:
    """A table of five groups of 4 in which JAGG's cosine goes evenly from `first` to `last`."""
    rows = []
    for group, cosine in enumerate(np.linspace(first, last, 5)):
        units = [("batch", "all", 0.0), *(("batch-without", str(i), o) for i, o in enumerate((-1, 0, 1)))]
        units += [("prompt", str(i), 0.0) for i in range(3)] + [("sample", f"{i}.0", 0.0) for i in range(3)]
        for scheme in ("jagg-time", "endpoints-own", "endpoints-half"):
            for unit, unit_id, offset in units:
                value = cosine + group * offset * spread
                rows.append((model, "base", 3.0, group, 4, 1.0, 0.9, scheme, unit, unit_id, 12, value, value))
    columns = "model variant shift group steps sigma_first sigma_last scheme unit unit_id images cosine"
    csv = folder / "cosine.csv"
    pd.DataFrame(rows, columns=[*columns.split(), "middle_cosine"]).to_csv(csv, index=False)
    return csv


def test_jackknife_of_a_mean_is_its_standard_error() -> None:
    """For a plain mean, the delete-one jackknife is the textbook standard error exactly."""
    values = np.random.default_rng(0).normal(size=8)
    replicates = np.array([np.delete(values, i).mean() for i in range(8)])
    expected = stats.t.ppf(0.975, 7) * values.std(ddof=1) / math.sqrt(8)
    assert analysis.jackknife(replicates) == pytest.approx(expected, rel=1e-12)


def test_single_images_of_a_prompt_count_once() -> None:
    rows = pd.DataFrame(
        {"unit": "sample", "unit_id": ["0.0", "0.1", "1.0", "1.1"], "cosine": [0.9, 0.9, 0.7, 0.7]}
    )
    once = pd.DataFrame({"unit": "prompt", "unit_id": ["0", "1"], "cosine": [0.9, 0.7]})
    assert analysis.mean_estimate(rows, "cosine", "sample") == analysis.mean_estimate(
        once, "cosine", "prompt"
    )


def test_another_table_is_not_drawn(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="no cosine table"):
        cosine_figure.plot(tmp_path / "other.csv")


def test_a_trend_is_one_only_beyond_its_interval() -> None:
    assert direction(Estimate(-0.2, 0.1)) is Direction.FALLS
    assert direction(Estimate(0.2, 0.1)) is Direction.RISES
    assert direction(Estimate(-0.2, 0.3)) is direction(Estimate(-0.2, math.nan)) is Direction.NEITHER


def test_findings_are_judged(tmp_path: Path) -> None:
    def judged(*numbers: float, **other: float) -> list[Judgement | None]:
        found = analysis.findings(made_up(tmp_path, *numbers, **other))
        assert all(f.why for f in found.values() if f.judgement is Judgement.DISAGREES)
        return [found["level"].judgement, found["trend"].judgement]

    assert judged(0.99, 0.9) == [Judgement.NOT_CONTRADICTED, Judgement.AGREES]
    assert judged(0.99, 0.9, model="black-forest-labs/FLUX.1-dev") == [Judgement.DISAGREES, Judgement.AGREES]
    assert judged(0.84, 0.7) == [Judgement.AGREES, Judgement.AGREES]
    assert judged(0.9, 0.99) == [Judgement.NOT_CONTRADICTED, Judgement.DISAGREES]
    assert judged(0.99, 0.9, spread=0.1) == [Judgement.NOT_CONTRADICTED, Judgement.UNDECIDED]


def test_every_group_stands_beside_what_is_reported(tmp_path: Path) -> None:
    lines = [line for line in report.markdown(made_up(tmp_path, 0.99, 0.9)).splitlines() if line[:1] == "|"]
    assert len(lines) == 2 + 5
    assert ["0.74 … 0.85" in line for line in lines[2:]] == [True, True, True, False, False]

"""What the contrasts of made-up runs say of the paper's claims."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from training_tables import fake, rises, write_tables

from experiments.ablation import measure as ablation
from experiments.ablation.analysis import contrasts, efficiency, findings, judged
from experiments.common.findings import Judgement
from experiments.common.intervals import Verdict
from experiments.convergence import analysis as convergence
from repro.results import read

NOISE = [0.1, 0.7, 0.3, 0.5, 0.2, 0.6]


def written(folder: Path, exact: list[float] | None = None, **arms: list[float]) -> Path:
    cells = {"exact": exact or rises(0.4), "jagg": rises(0.4, reverse=True)}
    cells |= {name.replace("_", "-"): values for name, values in arms.items()}
    csv = write_tables(fake({(arm, 1.0): values for arm, values in cells.items()}), folder)
    ablation.write(csv, ablation.Config())
    return csv.with_name("ablation.csv")


@pytest.mark.parametrize(
    ("own", "half", "judgement"),
    [
        (rises(0.2), rises(0.3), Judgement.AGREES),
        (rises(0.2), rises(0.4), Judgement.NOT_CONTRADICTED),  # which reading is meant is not known
        (rises(0.4), rises(0.6), Judgement.DISAGREES),
        (rises(0.6), NOISE, Judgement.UNDECIDED),
        (rises(0.2)[:3], rises(0.2)[:3], Judgement.UNDECIDED),
    ],
)
def test_endpoints_without_interpolation(tmp_path, own, half, judgement):
    csv = written(tmp_path, endpoints_own=own, endpoints_half=half)
    assert findings(csv)["endpoints"].judgement is judgement


def test_a_baseline_that_did_not_learn_judges_nothing(tmp_path):
    csv = written(tmp_path, exact=[0.1, 0.9, -0.6, 0.3, -0.2, 0.1], endpoints_own=rises(0.2))
    assert findings(csv)["endpoints"].judgement is Judgement.UNDECIDED


def test_differences_in_per_cent_of_the_exact_rise(tmp_path):
    table = judged(written(tmp_path, endpoints_own=rises(0.2), subset=rises(0.3)))
    rows = table[table.outcome == "curve"].set_index("first")
    exact = 9 / 16 * sum(rises(0.4)) / 6
    assert rows.rise.tolist() == pytest.approx([exact] * len(rows))
    assert rows.percent["endpoints-own"] == pytest.approx(100 * -0.2 * 9 / 16 / exact)
    assert rows.judged.to_dict() == {
        "jagg": Verdict.EQUAL,
        "endpoints-own": Verdict.LOWER,
        "subset": Verdict.LOWER,
    }
    assert rows.primary.to_dict() == {"jagg": True, "endpoints-own": False, "subset": True}


def test_the_rows_are_those_that_are_written(tmp_path):
    csv = written(tmp_path, endpoints_own=rises(0.2))
    cells = csv.with_name("convergence.csv")
    outcomes = convergence.runs(convergence.complete(cells))
    made = {
        "ablation": contrasts(outcomes, margin=0.1),
        "ablation-efficiency": efficiency(outcomes, convergence.spent(cells)),
    }
    for name, rows in made.items():
        table = read(csv.with_name(f"{name}.csv")).drop(columns=["model", "algorithm"])
        ours = pd.DataFrame(list(rows))[list(table)]
        pd.testing.assert_frame_equal(ours, table, rtol=1e-6, check_dtype=False)


@pytest.mark.parametrize(
    ("jagg", "exact", "judgement"),
    [
        (rises(0.4, reverse=True), None, Judgement.NOT_CONTRADICTED),
        (rises(0.5), None, Judgement.NOT_CONTRADICTED),
        (rises(0.2), None, Judgement.DISAGREES),
        (rises(0.2)[:3], None, Judgement.UNDECIDED),
        (NOISE, None, Judgement.UNDECIDED),
        (rises(0.4), [0.1, 0.9, -0.6, 0.3, -0.2, 0.1], Judgement.UNDECIDED),
    ],
)
def test_following_the_baseline(tmp_path, jagg, exact, judgement):
    csv = write_tables(fake({("exact", 1.0): exact or rises(0.4), ("jagg", 1.0): jagg}), tmp_path)
    assert convergence.findings(csv)["follows"].judgement is judgement

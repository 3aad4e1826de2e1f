"""The ablation's contrasts, from made-up cells whose answer is known, and from real ones."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from training_tables import fake, write_tables

from experiments.ablation import figure
from experiments.ablation import measure as ablation
from experiments.ablation.analysis import CONTRASTS
from experiments.convergence import config as convergence
from experiments.convergence.arms import ARMS
from repro.results import read
from repro.training.metrics import PHASES

SPREAD = (-0.003, -0.001, 0.0, 0.001, 0.002, 0.003)


def rises(center: float, reverse: bool = False) -> list[float]:
    return [center + s for s in (reversed(SPREAD) if reverse else SPREAD)]


@pytest.fixture
def cells(tmp_path):
    """Tables of six seeds: JAGG as exact but for noise, endpoints-own at half, the subset undecided."""
    table = fake(
        {
            ("exact", 1.0): rises(0.4),
            ("exact", 2.0): rises(0.3),
            ("jagg", 1.0): rises(0.4, reverse=True),
            ("jagg", 2.0): rises(0.5),
            ("endpoints-own", 1.0): rises(0.2),
            ("endpoints-own", 2.0): rises(0.1),
            ("subset", 1.0): [0.3, 0.5, 0.3, 0.5, 0.4, 0.4],
        }
    )
    return write_tables(table, tmp_path)


def contrast(table: pd.DataFrame, first: str, second: str, rates: str = "same") -> pd.Series:
    chosen = table[(table["first"] == first) & (table["second"] == second) & (table.rates == rates)]
    return chosen[chosen.outcome == "curve"].iloc[0]


def test_contrasts_say_what_was_put_in(cells):
    ablation.write(cells, ablation.Config())
    csv = cells.with_name("ablation.csv")
    table = read(csv)
    equal = contrast(table, "jagg", "exact")
    assert equal.seeds == 6 and equal.verdict == "equal within the margin"
    # A linear rise of 0.4 over eight evaluations has the mean 0.225; a tenth of it is the margin.
    assert equal.margin == pytest.approx(0.1 * 0.225, rel=1e-2)
    worse = contrast(table, "endpoints-own", "jagg")
    assert worse.verdict == "lower" and worse.p_sign_flip == pytest.approx(2 / 64)
    assert contrast(table, "subset", "jagg").verdict == "undecided"
    # At the other rate, too, beside exact's rise there; the subset was not trained at it.
    twice = contrast(table, "endpoints-own", "jagg", rates="×2")
    assert (twice.lr_first, twice.lr_second, twice.verdict) == (2.0, 2.0, "lower")
    assert twice.difference == pytest.approx(2 * worse.difference) and twice.margin < worse.margin
    assert set(table[table["first"] == "subset"].rates) == {"same"}
    best = contrast(table, "jagg", "exact", rates="best")
    assert (best.lr_first, best.lr_second, best.verdict) == (2.0, 1.0, "higher")
    made = json.loads(csv.with_name("ablation.provenance.json").read_text())
    assert (made["checkpoint_sha256"], made["device"]) == ("abc", "a GPU")
    assert figure.plot(csv).stat().st_size > 4_000
    assert csv.with_name("ablation-more.png").stat().st_size > 4_000


def test_efficiency_divides_a_rise_by_what_it_cost(cells):
    ablation.write(cells, ablation.Config())
    table = read(cells.with_name("ablation-efficiency.csv"))
    exact, jagg = (table[(table.arm == arm) & (table.lr_factor == 1)].iloc[0] for arm in ("exact", "jagg"))
    assert (exact.backwards, jagg.backwards) == (800, 400)  # eight steps
    assert exact.forwards == 8 * (80 + 100 + 2 * 100) and jagg.forwards == 8 * (80 + 50 + 2 * 50)
    assert exact.seconds == pytest.approx(8 * len(PHASES) * 0.2)


def test_a_margin_of_nothing_is_refused():
    with pytest.raises(ValueError, match="margin is 0, expected a share above 0"):
        ablation.run(ablation.Config(margin=0))


def test_the_margin_cannot_move_once_the_contrasts_were_seen(tmp_path):
    folder = tmp_path / "tiny-flux-dance_grpo"
    folder.mkdir()
    (folder / "ablation.provenance.json").write_text('{"config": {"margin": 0.1}}')
    with pytest.raises(ValueError, match="margin is 0.3, .* has 0.1, which was set beforehand"):
        ablation.run(ablation.Config(margin=0.3, runs=convergence.Config(out=tmp_path)))


def test_every_contrast_is_between_arms_that_exist():
    assert {arm for pair in CONTRASTS for arm in pair} <= set(ARMS)

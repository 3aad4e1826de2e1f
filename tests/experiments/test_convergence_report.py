"""What is said and drawn of made-up convergence tables."""

from __future__ import annotations

import pandas as pd
from training_tables import fake, rises, swept, write_tables

from experiments.convergence import analysis as convergence_data
from experiments.convergence import figure
from experiments.convergence import rates as convergence_rates
from experiments.convergence import report as convergence_markdown
from experiments.convergence.analysis import runs
from experiments.convergence.figure import curve_points, hacking_sentence, learning_sentence


def test_the_learning_sentence_keeps_to_its_bar():
    assert "it learned" in learning_sentence(runs(fake({("exact", 1.0): [0.5, 0.6, 0.55]})))
    assert "too little" in learning_sentence(runs(fake({("exact", 1.0): [0.0, 0.6, 0.1]})))
    assert "needs 3 seeds" in hacking_sentence(runs(fake({("exact", 1.0): [0.5, 0.5]})))


def test_reward_hacking_is_named():
    def of(**others: float) -> str:
        tables = [
            fake({("exact", 1.0): rises(rise)}, metric=m) for m, rise in {"reward": 0.4, **others}.items()
        ]
        return hacking_sentence(convergence_markdown.runs(pd.concat(tables)))

    assert "rises while similarity falls is being hacked" in of(similarity=-0.1, clipscore=0.1)
    assert "no sign of reward hacking" in of(similarity=0.1, diversity=-0.1)
    assert "hack" not in of(diversity=-0.1) and "diversity fell" in of(diversity=-0.1)
    assert of(similarity=0.0) == "Nothing it was not trained on changed beyond its interval."


def test_only_several_rates_have_a_figure_of_theirs(tmp_path):
    csv = swept(tmp_path, {1.0: [0.1], 3.0: [0.1]})
    cells = convergence_data.complete(csv)
    convergence_rates.plot(csv, cells[cells.lr_factor == 1])
    assert not csv.with_name("convergence-rates.png").exists()
    convergence_rates.plot(csv, cells)
    assert csv.with_name("convergence-rates.png").stat().st_size > 4_000


def test_a_table_of_one_arm_and_several_rates_is_drawn(tmp_path):
    one = write_tables(fake({("exact", 3.0): [0.4], ("exact", 9.0): [0.5]}, "paper-eta"), tmp_path / "one")
    assert figure.plot(one).stat().st_size > 4_000
    assert one.with_name("convergence-rates.png").stat().st_size > 4_000


def test_an_arm_of_fewer_seeds_is_placed_by_its_difference_from_exact():
    rows = [
        {"arm": arm, "step": step, "seed": seed, "value": step * (seed + 1) + shift}
        for arm, seeds, shift in (("exact", 4, 0.0), ("routed", 2, 0.25), ("jagg", 4, 0.5))
        for step in (0, 4)
        for seed in range(seeds)
    ]
    points = curve_points(pd.DataFrame(rows), pd.DataFrame(), "step").set_index(["arm", "x"])["mean"]
    assert points["exact", 4] == 4 * 2.5
    assert points["jagg", 4] == 4 * 2.5 + 0.5
    assert points["routed", 4] == 4 * 2.5 + 0.25  # its own seeds' mean is 4 * 1.5 + 0.25

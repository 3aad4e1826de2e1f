"""The sweep's one table."""

from __future__ import annotations

import pandas as pd
from training_tables import fake, swept, write_tables

from experiments.common.intervals import p_rise
from experiments.convergence import sweep


def test_a_row_for_each_regime_in_each_folder(tmp_path):
    one = swept(tmp_path / "one", {1.0: [0.1]})
    sparse = fake({("exact", 1.0): [0.4]}, "sparse")
    later = sparse[sparse.step > 0].assign(step=lambda rows: rows.step + 8)
    other = write_tables(pd.concat([sparse, later]), tmp_path / "other", start_noise=0.0)
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in sweep.markdown([one, other]).splitlines()
        if line.startswith("| m |")
    ]
    # Sparse's learning rate is twice the recipe's, and it trains twice as long.
    assert [row[1:8] for row in rows] == [
        ["0.6", "comfortable", "0.7", "8 × 12", "21", "8", "3e-05"],
        ["0.6", "paper-eta", "0.3", "8 × 12", "21", "8", "3e-05"],
        ["0", "sparse", "0.7", "8 × 4", "21", "16", "6e-05"],
    ]
    comfortable, early, _ = (row[8].split("; ") for row in rows)
    assert comfortable[1].startswith(f"×3: {0.81 * 15 / 16:+.4f}±")
    assert f"(3 seeds, p {p_rise([0.8, 0.81, 0.82]):.2g})" in comfortable[1]
    assert early == [f"×1: {0.1 * 15 / 16:+.4f} (1 seed)"]


def test_other_arms_are_no_part_of_it(tmp_path):
    csv = write_tables(fake({("jagg", 1.0): [0.4]}), tmp_path)
    assert "|" not in sweep.markdown([csv])

"""What README says of the sweep of learning rates, etas and starts."""

from __future__ import annotations

import pandas as pd
import pytest
from markdown_tables import row
from training_tables import fake, swept, write_tables

from experiments.convergence import sweep as sweep_markdown


@pytest.mark.parametrize(
    ("early", "said"),
    [
        (
            {1.0: [0.2, 0.21, 0.22], 3.0: [0.1, 0.1, 0.1]},
            "learns at this size: at its best of 2 learning rates (×1, the small",
        ),
        (
            {1.0: [0.0, 0.0, 0.03], 3.0: [0.0, 0.0, 0.1]},
            "does not visibly learn at this size: at its best of 2 learning",
        ),
        (
            {1.0: [-0.2, -0.2, -0.21]},
            "does not visibly learn at this size: at rate ×1 the reward fell by 0.19",
        ),
        (
            {3.0: [0.1]},
            ": at rate ×3 the reward rose by 0.0938; 1 seed cannot tell whether that is learning.",
        ),
        (
            {3.0: [0.1, 0.1]},
            ": at rate ×3 the reward rose by 0.0938; 2 seeds cannot tell whether that is learning.",
        ),
    ],
)
def test_the_sweep_says_whether_the_early_codes_eta_learns(tmp_path, early, said):
    text = sweep_markdown.markdown(swept(tmp_path, early))
    assert "exact gradients, 21 sampling steps, from noise 0.6 on the weights: rise in reward" in text
    assert "| regime | images | eta | rate ×1 | steps | seeds | ×1 | ×3 |" in text
    ours = row(text, "many images per update")
    assert ours[:5] == ["8 × 12", "0.7", "3e-05", "8", "3"] and ours[6].startswith(f"{0.81 * 15 / 16:+.4f}±")
    first = row(text, "eta 0.3 (early code), else as comfortable")
    assert first[1] == "0.3"
    mean = f"{sum(early[1.0]) / 3 * 15 / 16:+.4f}±" if 1.0 in early else "-"
    assert first[5].startswith(mean)
    assert f"The early code's eta 0.3{' ' * (said[0] != ':')}{said}" in text
    assert "Our eta 0.7 learns at this size: at its best of 2 learning rates (×3, the largest tried)" in text
    assert "+8.4" not in text  # the other arms are no part of it


def test_the_sweep_has_other_regimes_and_starts(tmp_path):
    sparse = fake({("exact", 1.0): [0.4]}, "sparse")
    later = sparse[sparse.step > 0].assign(step=lambda rows: rows.step + 8)
    csv = write_tables(pd.concat([sparse, later]), tmp_path, start_noise=0.0)
    text = sweep_markdown.markdown(csv)
    # Its learning rate is twice the recipe's, and it trains twice as long.
    assert row(text, "few images per update, twice the learning rate, twice as long")[:5] == [
        "8 × 4",
        "0.7",
        "6e-05",
        "16",
        "1",
    ]
    assert "from the model's own weights: rise in reward on evaluation prompts" in text

"""The figure of the all-gather table: what the backward gathers, layout by layout, under either FSDP."""

from __future__ import annotations

from pathlib import Path

from experiments.allgather.analysis import in_backward, per_group
from experiments.allgather.config import WRAPPERS
from experiments.common.figures import save

SHOWN = {
    "exact": "exact,\na backward a step",
    "jagg-early": "JAGG,\ntwo backwards",
    "jagg-joint": "JAGG,\none joint backward",
    "jagg-stacked": "JAGG,\nendpoints stacked",
}
"""Layouts with their labels; the others are in the report's table."""


def plot(csv: Path) -> Path:
    """Redraw ``allgather.png`` beside the CSV: all-gathers in the backward, per block and group."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import seaborn as sns

    counts = per_group(csv)
    sns.set_theme(style="white", context="paper", palette="colorblind", font_scale=1.15)
    figure, axis = plt.subplots(figsize=(8, 3.6), constrained_layout=True)
    axis.axhline(1, color="0.3", linestyle="--", linewidth=1)
    axis.annotate(
        "reported of the\njoint backward: 1", (1.005, 1), xycoords=("axes fraction", "data"), va="center"
    )
    width = 0.36
    for i, wrapper in enumerate(WRAPPERS):
        heights = [in_backward(counts, layout, wrapper) for layout in SHOWN]
        places = [place + width * (i - 0.5) for place in range(len(SHOWN))]
        axis.bar_label(axis.bar(places, heights, width * 0.95, label=wrapper), fmt="%g", padding=2)
    axis.set_xticks(range(len(SHOWN)), list(SHOWN.values()))
    axis.set_yticks([])
    axis.margins(y=0.12)
    first = counts.iloc[0]
    axis.set(
        ylabel="all-gathers of a block",
        title=f"What the backward of a group of {first.group_size:g} steps gathers",
    )
    axis.legend(frameon=False)
    sns.despine(left=True)
    return save(figure, csv.with_suffix(".png"))

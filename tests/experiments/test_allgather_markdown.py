"""What README says of the all-gathers that were counted."""

from __future__ import annotations

from pathlib import Path

from markdown_tables import row

from experiments.allgather import measure as allgather
from repro.results import Table


def counted(folder: Path, joint: float, with_checkpointing: float) -> str:
    csv = folder / "allgather.csv"
    rows = [
        {
            **dict.fromkeys(allgather.COLUMNS, 0),
            "layout": layout,
            "checkpointing": checkpointing,
            "sync_held_back": held,
            "ranks": 2,
            "blocks": 4,
            "groups": 2,
            "group_size": 4,
            "all_gathers_forward": 2.0 * forward,
            "all_gathers_backward": 2.0 * (with_checkpointing if checkpointing else backward),
            "reduce_scatters_backward": 1.0 if held else 2.0 * backward,
            "gradient_error": 1e-7,
        }
        for layout, forward, backward in (("jagg-joint", 4, joint), ("jagg-stacked", 2, 1.0))
        for checkpointing in (False, True)
        for held in (False, True)
    ]
    with Table(csv, allgather.COLUMNS, allgather.KEY, provenance={}, fresh=True) as written:
        written.append(*rows)
    return allgather.markdown(csv)


def test_the_claim_of_one_all_gather_is_judged(tmp_path):
    text = counted(tmp_path, joint=2.0, with_checkpointing=3.0)
    assert row(text, "JAGG, two graphs, joint backward") == ["4", "2", "1", "2", "0.5"]
    assert row(text, "JAGG, endpoints stacked") == ["2", "1", "-", "1", "0.5"]
    assert "made 2 here: this does not agree. One was made by: JAGG, endpoints stacked." in text
    assert "Checkpointing changes the counts of: JAGG, two graphs" in text
    text = counted(tmp_path, joint=1.0, with_checkpointing=1.0)
    assert "made 1 here: this agrees." in text and "changes none of the counts" in text

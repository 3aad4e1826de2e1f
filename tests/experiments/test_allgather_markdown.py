"""What the report says of the all-gathers that were counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from markdown_tables import row

from experiments.allgather.analysis import changed_by_checkpointing, findings, per_group
from experiments.allgather.config import COLUMNS, FSDP1, FSDP2, KEY, LAYOUTS, WRAPPERS
from experiments.allgather.report import markdown
from experiments.common.findings import Judgement
from repro.results import Table

GROUPS = 2


def counted(folder: Path, joint: dict[str, float], with_checkpointing: float = 0) -> Path:
    """A table in which the joint backward makes so many all-gathers a group, and more under checkpointing."""
    csv = folder / "allgather.csv"
    rows = []
    for wrapper in WRAPPERS:
        for layout in LAYOUTS:
            backward = joint[wrapper] if layout == "jagg-joint" else 1
            for checkpointing in (False, True):
                for held in (False, True):
                    rows.append(
                        {
                            **dict.fromkeys(COLUMNS, 0),
                            **dict(zip(KEY, (wrapper, layout, checkpointing, held), strict=True)),
                            "groups": GROUPS,
                            "all_gathers_forward": GROUPS * 4,
                            "all_gathers_backward": GROUPS * (backward + checkpointing * with_checkpointing),
                            "reduce_scatters_backward": 1 if held else GROUPS,
                        }
                    )
    Table(csv, COLUMNS, KEY, provenance={}, fresh=True).append(*rows)
    return csv


@pytest.mark.parametrize(
    ("fsdp1", "fsdp2", "judgement"),
    [(1, 2, Judgement.AGREES), (1, 1, Judgement.AGREES), (2, 1, Judgement.DISAGREES)],
)
def test_the_claim_is_judged_on_its_own_stack(
    tmp_path: Path, fsdp1: float, fsdp2: float, judgement: Judgement
) -> None:
    finding = findings(counted(tmp_path, {FSDP1: fsdp1, FSDP2: fsdp2}))["all-gathers"]
    assert finding.judgement == judgement
    assert finding.why


def test_both_wrappers_stand_beside_what_was_reported(tmp_path: Path) -> None:
    text = markdown(counted(tmp_path, {FSDP1: 1, FSDP2: 2}))
    assert row(text, LAYOUTS["jagg-joint"]) == ["4", "1", "2", "1", "1", "0.5"]
    assert row(text, LAYOUTS["jagg-stacked"]) == ["4", "1", "1", "-", "1", "0.5"]


def test_what_checkpointing_changes(tmp_path: Path) -> None:
    joint = {FSDP1: 1, FSDP2: 2}
    assert changed_by_checkpointing(per_group(counted(tmp_path, joint))) == []
    changed = changed_by_checkpointing(per_group(counted(tmp_path, joint, with_checkpointing=1)))
    assert set(changed) == {(wrapper, layout) for wrapper in WRAPPERS for layout in LAYOUTS}

"""What README says of the speedup: measured, reported and predicted."""

from __future__ import annotations

from markdown_tables import row
from speedup_tables import made_up

from experiments.speedup import report as speedup_report


def test_the_speedup_stands_beside_reported_and_predicted(tmp_path):
    text = speedup_report.markdown(made_up(tmp_path))
    routed = row(text, "routed-0.6")
    assert routed == ["22.5 ± 0.0", "22.5 ± 0.0", "22.5", "17.8 ± 0.0", "17.8", "step: 17.3 … 18.2"]
    assert row(text, "jagg-time")[-1] == "-"
    assert "consistent with the 17.3 … 18.2 % reported." in text
    assert "within 5 % in 2 of 2 cells" in text and "b, measured: 2.00 … 2.00 with all weights" in text


def test_a_smaller_saving_is_told_and_overhead_marked(tmp_path):
    text = speedup_report.markdown(made_up(tmp_path, slower=1.08, overhead=10.0))
    assert "below the 17.3 … 18.2 % reported." in text
    assert r"jagg-time\*" in text and r"marked \*, with forwards too short" in text
    faster = speedup_report.markdown(made_up(tmp_path, slower=0.9))
    assert "above the 17.3 … 18.2 % reported." in faster

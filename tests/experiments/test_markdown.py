"""The building blocks of the report's tables and sentences."""

from __future__ import annotations

from experiments.common.markdown import counted, listed, signed, table


def test_building_blocks():
    assert table(("a", "b"), [(1, "x")]) == "| a | b |\n|---|---|\n| 1 | x |"
    assert [signed(0.5, 0.25, 2), signed(-1.0), signed(float("nan"))] == ["+0.50±0.25", "-1.0000", "-"]
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
    assert [counted(1, "seed"), counted(2, "seed")] == ["1 seed", "2 seeds"]

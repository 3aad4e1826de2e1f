"""Fields of a result table: how values are written, and recognised when read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from repro.results import format_value, is_field


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (1 / 3, float, "0.333333333"),
        (np.float32(0.1), float, "0.100000001"),
        (torch.tensor(0.25), float, "0.25"),
        (-0.0, float, "0"),
        (3, float, "3"),
        (float("nan"), float, "nan"),
        (-float("inf"), float, "-inf"),
        (1e-30, float, "1e-30"),
        (np.int64(7), int, "7"),
        (torch.tensor(7), int, "7"),
        (np.bool_(True), bool, "true"),
        (None, str, ""),
        ("a, b", str, "a, b"),
    ],
)
def test_format(value, kind, text):
    assert format_value(value, kind) == text


@pytest.mark.parametrize(
    ("value", "kind"),
    [(1.5, int), (True, int), (True, float), ("1", float), (1, bool), (1, str), ("", str), ("a\nb", str)],
)
def test_format_refuses_other_types(value, kind):
    with pytest.raises(ValueError):
        format_value(value, kind)


@given(st.floats(), st.integers(), st.booleans())
def test_what_is_written_is_recognised(number, integer, flag):
    for value, kind in ((number, float), (integer, int), (flag, bool)):
        assert is_field(format_value(value, kind), kind)

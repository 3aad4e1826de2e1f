"""The summary: every headline beside ours, or that there is none; its sentences by judgement."""

from __future__ import annotations

from pathlib import Path

from markdown_tables import row

from experiments import summary
from experiments.claims import CLAIMS, RUNS, judged
from experiments.common.findings import Finding, Judgement
from experiments.report import ROOT

HEADLINES = [claim for claim in CLAIMS if claim.headline]
STEP, UPDATE, *_ = HEADLINES
REWARD = next(claim for claim in HEADLINES if claim.key == "follows")
CONTROL = next(claim for claim in HEADLINES if claim.key == "equal-cost")


def test_at_most_eight_rows() -> None:
    assert 0 < len(HEADLINES) <= 8


def test_what_was_not_measured_is_not_there(tmp_path: Path) -> None:
    found = judged(tmp_path)
    assert list(found) == list(CLAIMS) and not any(found.values())
    assert [row(summary.table(found), claim.what) for claim in HEADLINES] == [
        [claim.reported, "-", "-"] for claim in HEADLINES
    ]
    assert summary.sentences(found) == ("", "", "")


def test_a_recipe_is_named_where_there_are_several() -> None:
    flux, qwen = (
        next(place for place in RUNS if place.model == model) for model in ("tiny-flux", "tiny-qwen-image")
    )
    found = {
        STEP: {STEP.places[0]: Finding("16 %", Judgement.AGREES)},
        REWARD: {flux: Finding("+1 %"), qwen: Finding("+2 %", Judgement.UNDECIDED)},
    }
    text = summary.table(found)
    assert row(text, STEP.what)[1:] == ["16 %: agrees", "-"]
    assert row(text, REWARD.what)[1:] == ["DanceGRPO: +1 %", "DanceGRPO: +2 %: undecided"]


def test_sentences_sort_claims_by_judgement() -> None:
    places = UPDATE.places
    found = {
        STEP: {places[0]: Finding("a", Judgement.AGREES), places[1]: Finding("b", Judgement.UNDECIDED)},
        UPDATE: {place: Finding("c", Judgement.DISAGREES, "Because.") for place in places},
        REWARD: {RUNS[0]: Finding("d", Judgement.NOT_CONTRADICTED)},
        CONTROL: {RUNS[0]: Finding("-21 %")},
    }
    agrees, disagrees, undecided = summary.sentences(found)
    assert f"{STEP} (tiny-flux)" in agrees and str(REWARD) in agrees and str(UPDATE) not in agrees
    assert str(UPDATE) in disagrees and disagrees.count("Because") == 1 and str(STEP) not in disagrees
    assert f"{STEP} (tiny-qwen-image)" in undecided and f"not reported: {CONTROL}" in undecided
    assert all(text.endswith(".") and not text.endswith("..") for text in (agrees, disagrees, undecided))


def test_claims_without_a_table_are_told_apart() -> None:
    assert {bool(claim.table) for claim in CLAIMS} == {True, False}
    held = [claim.held_by for claim in CLAIMS if claim.held_by]
    assert held and all((ROOT / path).exists() for path in held)
    assert all(claim.table and claim.key for claim in HEADLINES)

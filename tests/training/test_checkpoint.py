"""Training states on disk: whole or absent, and refused when damaged or another run's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from repro.training.checkpoint import Checkpoints

PROVENANCE = {"config": {"recipe": {"eta": 0.3}, "model": "m"}, "seed": 1, "checkpoint_sha256": "a" * 64}


def state(step: int) -> dict:
    return {"done": step, "weights": {"w": torch.full((3,), float(step))}, "none": None}


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "cell", PROVENANCE)


def test_nothing_there_is_no_checkpoint(checkpoints):
    assert checkpoints.latest() is None


def test_the_newest_is_read_back_and_two_are_kept(checkpoints):
    for step in (10, 20, 30):
        checkpoints.save(step, state(step))
    assert checkpoints.steps() == [20, 30]
    assert sorted(p.suffix for p in checkpoints.folder.iterdir()) == [".json", ".json", ".pt", ".pt"]
    found = checkpoints.latest()
    assert found.step == 30 and found.state["done"] == 30 and found.state["none"] is None
    assert torch.equal(found.state["weights"]["w"], torch.full((3,), 30.0))


@pytest.mark.parametrize("renames_before_the_end", [0, 1])
def test_an_interrupted_save_leaves_the_one_before(checkpoints, monkeypatch, renames_before_the_end):
    checkpoints.save(10, state(10))
    left, replace = renames_before_the_end, os.replace

    def killed(*arguments):
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        replace(*arguments)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(20, state(20))
    monkeypatch.undo()
    assert checkpoints.latest().step == 10
    checkpoints.save(20, state(20))
    assert checkpoints.latest().step == 20
    checkpoints.clear()
    assert not checkpoints.folder.exists()


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (damage, "its content is not what was written"),
        (lambda path: path.write_bytes(path.read_bytes()[:100]), "its content is not what was written"),
        (lambda path: path.unlink(), "the file is missing"),
        (lambda path: path.with_suffix(".json").write_text("{"), "is not a manifest"),
    ],
)
def test_a_damaged_one_is_refused_and_the_older_offered(checkpoints, harm, reason):
    checkpoints.save(10, state(10))
    checkpoints.save(20, state(20))
    harm(checkpoints.folder / "state-000020.pt")
    with pytest.raises(ValueError, match=f"state-000020.pt is damaged .*{reason}") as caught:
        checkpoints.latest()
    manifest = checkpoints.folder / "state-000020.json"
    assert str(caught.value).endswith(f"delete {manifest} to resume from the older good one, after step 10")
    assert "\n" not in str(caught.value)
    manifest.unlink()
    assert checkpoints.latest().step == 10


def test_without_an_older_one_a_fresh_start_is_offered(checkpoints):
    checkpoints.save(10, state(10))
    checkpoints.save(20, state(20))
    damage(checkpoints.folder / "state-000010.pt")
    damage(checkpoints.folder / "state-000020.pt")
    with pytest.raises(ValueError, match="there is no older good one, pass --fresh to start over"):
        checkpoints.latest()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 2}, "seed=1, not the 2 asked for now"),
        ({"config": {"recipe": {"eta": 0.7}, "model": "m"}}, "eta=0.3, not the 0.7 asked for now"),
        ({"checkpoint_sha256": None}, "checkpoint_sha256=a+…, not the None"),
    ],
)
def test_another_runs_is_refused(checkpoints, change, message):
    checkpoints.save(10, state(10))
    other = Checkpoints(checkpoints.folder, {**PROVENANCE, **change})
    with pytest.raises(ValueError, match=f"belongs to another run .{message}"):
        other.latest()


def test_a_state_that_could_run_code_is_not_loaded(checkpoints):
    checkpoints.save(10, {"done": 10, "path": Path("x")})
    with pytest.raises(Exception, match="[Ww]eights.only|Unsupported"):
        checkpoints.latest()


def test_the_manifest_is_plain_json(checkpoints):
    checkpoints.save(10, state(10))
    manifest = json.loads((checkpoints.folder / "state-000010.json").read_text())
    assert (
        manifest["step"] == 10
        and manifest["rows"] == {}
        and manifest["seed"] == 1
        and len(manifest["sha256"]) == 64
    )


def test_the_rows_of_an_unfinished_run_are_kept_with_its_state(checkpoints):
    rows = {"training": [{"step": 1, "loss": 0.1 + 0.2, "fault": None}, {"step": 2, "loss": float("nan")}]}
    checkpoints.save(2, state(2), rows)
    found = checkpoints.latest().rows["training"]
    assert found[0] == rows["training"][0] and found[1]["loss"] != found[1]["loss"]

"""Provenance: what is collected, and how a table is told from one of other settings."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from result_tables import COLUMNS, KEY, MADE_BY, measure, open_table, row

from repro import provenance, results
from repro.results import Table


@dataclass
class Config:
    model: str = "tiny-flux"
    etas: tuple[float, ...] = (0.3, 0.7)
    dtype: torch.dtype = torch.float32
    out: Path | None = None
    fresh: bool = False


def test_collect_tells_settings_code_and_machine(tmp_path):
    (tmp_path / "weights").write_bytes(b"w")
    found = provenance.collect(Config(out=Path("/elsewhere")), seed=3, checkpoint=tmp_path)
    assert found["config"] == {"model": "tiny-flux", "etas": [0.3, 0.7], "dtype": "torch.float32"}
    assert found["seed"] == 3
    assert found["checkpoint_sha256"] == provenance.checkpoint_sha256(tmp_path)
    assert found["versions"]["torch"] == importlib.metadata.version("torch")
    assert set(found["versions"]) == {
        "python",
        "torch",
        "diffusers",
        "transformers",
        "open_clip_torch",
        "numpy",
    }
    assert found["threads"] == torch.get_num_threads()
    assert found["cpu"] and found["device"] and found["date"].endswith("+00:00") and found["command"]
    json.dumps(found)
    path = tmp_path / "t.csv"
    Table(path, COLUMNS, KEY, provenance=found).append(row(0))
    other_place = provenance.collect(
        Config(out=tmp_path, fresh=True), seed=3, checkpoint=tmp_path / "weights"
    )
    same = {**other_place, "checkpoint_sha256": found["checkpoint_sha256"]}
    Table(path, COLUMNS, KEY, provenance=same)  # where a table goes is no setting


def test_code_version_is_this_checkouts():
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=provenance.ROOT, capture_output=True, text=True)
    if git.returncode:
        pytest.skip("not a git checkout")
    commit, dirty = provenance.code_version()
    assert commit == git.stdout.strip() and isinstance(dirty, bool)


def test_code_version_outside_a_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert provenance.code_version() == (None, None)


def test_checkpoint_hash_follows_names_and_contents_but_not_the_card(tmp_path):
    folder = tmp_path / "model"
    (folder / "vae").mkdir(parents=True)
    (folder / "vae" / "a.bin").write_bytes(b"1")
    (folder / "b.bin").write_bytes(b"2")
    hashes = [provenance.checkpoint_sha256(folder)]
    (folder / "README.md").write_text("a card")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "x").write_text("y")
    assert provenance.checkpoint_sha256(folder) == hashes[0]
    (folder / "b.bin").write_bytes(b"3")
    hashes.append(provenance.checkpoint_sha256(folder))
    (folder / "b.bin").rename(folder / "c.bin")
    hashes.append(provenance.checkpoint_sha256(folder))
    (folder / "c.bin").rename(folder / "vae" / "c.bin")
    hashes.append(provenance.checkpoint_sha256(folder))
    hashes.append(provenance.checkpoint_sha256(folder / "vae" / "c.bin"))
    assert len(set(hashes)) == 5
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        provenance.checkpoint_sha256(tmp_path / "nowhere")


# Beside a table


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"config": {"model": "tiny-flux", "batch": 8}}, "batch=4, not the 8 asked for now"),
        ({"config": {"model": "tiny-flux", "batch": 4, "eta": 0.7}}, "eta=None, not the 0.7 asked for now"),
        ({"seed": 1}, "seed=0, not the 1 asked for now"),
        ({"checkpoint_sha256": "def"}, "checkpoint_sha256=abc, not the def asked for now"),
    ],
)
def test_other_settings_are_refused_in_one_line(tmp_path, changes, told):
    whole = measure(tmp_path / "t.csv")
    with pytest.raises(ValueError, match=told) as caught:
        open_table(tmp_path / "t.csv", **changes)
    assert "--out" in str(caught.value) and "--fresh" in str(caught.value) and "\n" not in str(caught.value)
    assert (tmp_path / "t.csv").read_bytes() == whole


def test_another_commit_or_date_is_resumed_and_recorded(tmp_path):
    path = tmp_path / "t.csv"
    measure(path, groups=1)
    first = json.loads(results.provenance_path(path).read_text())
    assert first == {**MADE_BY, "made": ["group 0"]}
    table = open_table(path, commit="decade", session="later")
    assert json.loads(results.provenance_path(path).read_text()) == first  # nothing added yet
    table.append(row(1), unit="1")
    table.append(row(2), unit="2")
    resumed = json.loads(results.provenance_path(path).read_text())
    session = {"commit": "decade", "session": "later", "made": ["1", "2"]}
    assert resumed == {**first, "resumed": [session]}


@pytest.mark.parametrize("content", [None, "{half"])
def test_a_table_without_readable_provenance_is_refused(tmp_path, content):
    measure(tmp_path / "t.csv")
    beside = results.provenance_path(tmp_path / "t.csv")
    beside.unlink() if content is None else beside.write_text(content)
    with pytest.raises(ValueError, match="settings.*--fresh"):
        open_table(tmp_path / "t.csv")

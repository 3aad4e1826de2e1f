"""The wall-clock table: what is timed, what is predicted beside it, and how the two are read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import CAPTIONS, build_flux
from torch import Tensor

from experiments import speedup, speedup_report
from experiments.speedup import COLUMNS, KEY
from experiments.speedup_report import Cell, Median, cells, median, verdict
from experiments.speedup_settings import Config, settings
from experiments.speedup_step import PHASES, Setting, Step, peak_memory
from repro import arms
from repro.backbones import synthetic
from repro.cli import main
from repro.cost import CostModel
from repro.policy import Policy
from repro.recipes import preset
from repro.results import Table, read
from repro.scheme import exact, jagg

SMALL = Config(
    model="flux-dev",
    synthetic_weights=True,
    reduced=True,
    algorithms=("flow_grpo_fast",),
    variations=("base",),
    schemes=("jagg",),
    rounds=1,
    prompts=1,
    images=2,
)


def brightness(images: Tensor, prompts: list[str]) -> Tensor:
    return images.mean(dim=(1, 2, 3))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speedup.run(replace(SMALL, out=tmp_path_factory.mktemp("small")))


def test_a_row_is_a_step_of_a_scheme(small: Path) -> None:
    table = read(small)
    assert list(table.scheme) == ["exact", "jagg-time"]
    assert (table.trained_steps == 4).all() and (table.sampling_steps == 21).all()
    assert (table[["rollout_s", "decode_s", "update_s", "optimizer_s", "overhead_s"]] > 0).all().all()
    assert (table.reward_s < 1e-3).all()  # random advantages: nothing scores a random model
    assert list(table.forwards) == [4, 4]
    assert list(table.backwards) == list(table.recomputes) == [4, 2]


def test_the_prediction_is_the_cost_models(small: Path) -> None:
    for row in read(small).itertuples():
        forwards = 4 + row.backwards * (1 + row.backward_factor)
        assert row.predicted_update_s == pytest.approx(row.forward_s * forwards, rel=1e-6)


def test_a_finished_table_is_not_measured_again(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(speedup, "_measure", refuse)
    before = small.read_bytes()
    speedup.run(replace(SMALL, out=small.parents[1]))
    assert small.read_bytes() == before


def test_schemes_take_turns_and_the_first_round_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed, time = [], Step.time

    def watched(self: Step, scheme: Any) -> Any:
        timed.append(scheme.name)
        return time(self, scheme)

    monkeypatch.setattr(Step, "time", watched)
    table = read(speedup.run(replace(SMALL, rounds=2, out=tmp_path)))
    assert timed == ["exact", "jagg-time"] * 3
    assert list(table["round"]) == [0, 0, 1, 1]


def test_an_interrupted_setting_is_timed_again_from_its_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit, calls = Step.unit, []

    def interrupt(self: Step) -> Any:
        calls.append(1)
        if len(calls) == 3:  # after the warm-up and a round, whose rows are on disk
            raise KeyboardInterrupt
        return unit(self)

    config = replace(SMALL, rounds=2, out=tmp_path)
    monkeypatch.setattr(Step, "unit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        speedup.run(config)
    (csv,) = tmp_path.glob("*/speedup.csv")
    first = read(csv)
    assert list(first["round"]) == [0, 0]
    table = read(speedup.run(config))
    assert list(table["round"]) == [0, 0, 1, 1]
    assert not table.update_s.head(2).equals(first.update_s), "rounds of two sessions are not compared"


def test_what_does_not_fit_is_left_out_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    time = Step.time

    def scarce(self: Step, scheme: Any) -> Any:
        if not self.setting.checkpointing:
            raise torch.OutOfMemoryError
        return time(self, scheme)

    monkeypatch.setattr(Step, "time", scarce)
    table = read(speedup.run(replace(SMALL, variations=("base", "checkpointing"), out=tmp_path)))
    assert table.checkpointing.all()
    assert "left out, as flux-dev-synthetic-reduced does not fit" in capsys.readouterr().err


def test_a_model_with_a_scorer_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(CAPTIONS))
    config = replace(
        SMALL,
        model=str(build_flux(tmp_path / "model")),
        synthetic_weights=False,
        reduced=False,
        reward="test_speedup:brightness",
        prompts_file=prompts,
        out=tmp_path / "results",
    )
    table = read(speedup.run(config))
    assert (table.reward_s > 0).all()
    assert "% off update" in capsys.readouterr().out


def policy(checkpointing: bool = False, lora_rank: int = 0) -> Policy:
    backbone = synthetic.build("flux-dev", torch.float32, "cpu", 64, reduced=True)
    return Policy(backbone, checkpointing=checkpointing, lora_rank=lora_rank)


@pytest.mark.parametrize("velocities", ["recompute", "rollout"])
def test_counts_are_the_cost_models_in_every_part(velocities: Any) -> None:
    setting = Setting(checkpointing=False, batch=2, anchor_chunk=4, velocities=velocities)
    recipe = replace(preset("dance_grpo"), sampling_steps=5, images=2)
    step = Step(policy(), None, ["a", "b"], recipe, setting)
    assert len(step.parts) == 2
    for scheme in (exact(step.times), jagg(step.times, 4)):
        timing = step.time(scheme)
        assert timing.counts == CostModel().counts(scheme, velocities, anchor_chunk=4)
        assert set(timing.seconds) == set(PHASES)


def test_a_step_leaves_the_policy_as_it_was() -> None:
    learner = policy(checkpointing=True, lora_rank=2)
    before = [p.detach().clone() for p in learner.backbone.transformer.parameters()]
    recipe = replace(preset("flow_grpo_fast"), images=2, weight_decay=1e-4)
    step = Step(learner, None, ["a"], recipe, Setting(algorithm="flow_grpo_fast", batch=2))
    step.unit()
    step.overhead(exact(step.times))
    step.time(exact(step.times))
    for p, was in zip(learner.backbone.transformer.parameters(), before, strict=True):
        assert torch.equal(p, was) and p.grad is None


def test_a_batch_must_divide_the_samples() -> None:
    with pytest.raises(ValueError, match="4 samples do not divide into parts of 3"):
        recipe = replace(preset("dance_grpo"), images=2)
        Step(policy(), None, ["a", "b"], recipe, Setting(batch=3))


def test_peak_memory_sees_what_was_there_for_a_moment() -> None:
    with peak_memory(torch.device("cpu")) as before:
        pass
    with peak_memory(torch.device("cpu")) as found:
        torch.ones(2**26).sum()  # 256 MiB
    if found:  # where the system tells
        assert found[0] - before[0] > 200 * 2**20


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpus_steps_are_timed(tmp_path: Path, compiled: bool) -> None:
    table = read(speedup.run(replace(SMALL, device="cuda", dtype="bfloat16", compile=compiled, out=tmp_path)))
    assert (table.device == torch.cuda.get_device_name()).all()
    assert (table.peak_memory > 0).all() and (table.update_s > 0).all()


# Settings


def test_every_row_of_the_full_table_has_a_key_of_its_own() -> None:
    wanted = settings(Config())
    for setting, chosen in wanted.items():
        names = [
            arms.build(name, torch.linspace(1, 0.1, 20), 4, jagg_frac=fraction, subset_steps=12).name
            for name, fraction in chosen
        ]
        assert names[0] == "exact" and len(set(names)) == len(names)
        if setting.algorithm == "flow_grpo_fast":
            assert not any(name.startswith(("routed", "subset")) for name in names)
    assert {s.group_size for s in wanted} == {2, 4, 5, 10}
    assert {s.anchor_chunk for s in wanted} == {1, 2, 4}
    assert {s.weights for s in wanted} == {"full", "lora"}
    assert {s.batch for s in wanted} == {4, 12, 48}
    modes = [(s.weights, s.checkpointing) for s in wanted]
    runs = [mode for mode, before in zip(modes, [None, *modes], strict=False) if mode != before]
    assert len(runs) == len(set(modes)), "one policy after the other"
    assert runs[0] == ("full", True), "the paper's mode first"


# Bad input


def test_full_size_on_a_cpu_is_refused_with_the_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "speedup", "--model", "flux-dev", "--synthetic-weights"]) == 2
    line = capsys.readouterr().err
    assert "flux-dev at full size needs 45 GiB" in line and line.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"model": "sd3"}, "no synthetic weights for sd3"),
        ({"rounds": 0}, "rounds is 0"),
        ({"synthetic_weights": False}, "--reduced is for --synthetic-weights"),
        ({"batch": 3}, "2 samples do not divide"),
    ],
)
def test_bad_settings_are_refused(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        speedup.run(replace(SMALL, out=tmp_path, **change))


def test_out_of_memory_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("no")

    monkeypatch.setattr(Step, "time", fail)
    with pytest.raises(ValueError, match="nothing was timed: .* does not fit on cpu .*: lower --prompts"):
        speedup.run(replace(SMALL, out=tmp_path))


# Reading back


def made_up(folder: Path, slower: float = 1.0, overhead: float = 0.0) -> Path:
    """A DanceGRPO table in which a forward takes a second and b is 2; `slower` multiplies JAGG's update."""
    csv = folder / "speedup.csv"
    times = torch.linspace(1, 0.1, 20)
    schemes = [
        exact(times),
        jagg(times, 4),
        arms.build("routed", times, 4, jagg_frac=0.6),
    ]
    with Table(csv, COLUMNS, KEY, provenance={}, fresh=True) as table:
        for round_ in range(7):
            drift = 1 + 0.1 * round_  # the machine slows down: within a round it cancels
            for scheme in schemes:
                counts = CostModel(2.0, 1.0).counts(scheme)
                price = CostModel(2.0, 1.0).price(counts)
                table.append(
                    {
                        "model": "made-up",
                        "device": "none",
                        "dtype": "float32",
                        **vars(Setting()),
                        "scheme": scheme.name,
                        "round": round_,
                        "samples": 48,
                        "parts": 1,
                        "sampling_steps": 21,
                        "trained_steps": 20,
                        "rollout_s": 21 * drift,
                        "decode_s": 0.0,
                        "reward_s": 0.0,
                        "update_s": price * drift * (slower if scheme.name != "exact" else 1),
                        "optimizer_s": 0.0,
                        "overhead_s": overhead,
                        "peak_memory": None,
                        **counts._asdict(),
                        "backward_calls": 10,
                        "forward_s": drift,
                        "backward_factor": 2.0,
                        "predicted_update_s": price * drift,
                    }
                )
    return csv


def cell(found: list[Cell], scheme: str) -> Cell:
    return next(c for c in found if c.scheme == scheme)


def test_the_papers_arithmetic_comes_back(tmp_path: Path) -> None:
    found = cells(read(made_up(tmp_path)))
    routed = cell(found, "routed-0.6")
    assert routed.step.value == pytest.approx(18 / 101)
    assert routed.predicted_step == pytest.approx(18 / 101)
    assert routed.step.high - routed.step.low < 1e-9  # paired within rounds
    jagg_ = cell(found, "jagg-time")
    assert jagg_.update.value == pytest.approx(1 - 10 / 16)
    assert jagg_.predicted_update == pytest.approx(1 - 10 / 16)
    assert jagg_.error == pytest.approx(0, abs=1e-9)
    assert "within 5 % in 2 of 2 cells" in verdict(found)


def test_disagreement_and_overhead_are_told(tmp_path: Path) -> None:
    found = cells(read(made_up(tmp_path, slower=1.08)))
    assert cell(found, "jagg-time").error == pytest.approx(0.08)
    assert "in 0 of 2 cells" in verdict(found)
    found = cells(read(made_up(tmp_path, overhead=10.0)))
    assert "in 0 of 0 cells; 2 more, marked *, are dominated by overhead" in verdict(found)


def test_how_far_the_clock_errs_is_told(tmp_path: Path) -> None:
    jagg_ = cell(cells(read(made_up(tmp_path))), "jagg-time")  # 37.5 % are predicted
    wide, narrow = (jagg_._replace(update=Median(0.5, low, 0.6)) for low in (0.3, 0.4))
    assert "in 0 of 1 cells; in 1 more the interval has the prediction." in verdict([wide])
    assert "more the interval" not in verdict([narrow])
    same = jagg_._replace(predicted_update=0.0, update=Median(-0.03, -0.1, 0.02))
    assert "exact's very passes, its updates were timed -3 … -3 % shorter" in verdict([same])
    assert "very passes" not in verdict([jagg_])


def test_an_interval_around_nothing_is_not_called_consistent(tmp_path: Path) -> None:
    routed = cell(cells(read(made_up(tmp_path))), "routed-0.6")
    assert "consistent with the" in speedup_report.reported_sentence(routed)
    unsure = routed._replace(step=Median(0.28, -0.06, 0.31))
    assert "too uncertain to be held against the" in speedup_report.reported_sentence(unsure)


def test_medians_and_their_intervals() -> None:
    assert median([3.0]) == (3, 3, 3)
    assert median([5.0, 1, 3]) == (3, 1, 5)
    assert median(range(7)) == (3, 0, 6)  # 1 - 2/2^7 = 98 %; the next ones in would cover 88 %
    assert median(range(9)) == (4, 1, 7)  # 1 - 2(1 + 9)/2^9 = 96 %


def test_reported_stands_beside_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    csv = made_up(tmp_path)
    speedup_report.show(csv)
    printed = capsys.readouterr().out
    assert "17.8 ± 0.0" in printed and "reported" in printed and "step 17.3 … 18.2" in printed
    assert speedup.plot(csv).stat().st_size > 20_000

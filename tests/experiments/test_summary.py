"""README's first table: every reported result beside ours, or that there is none."""

from __future__ import annotations

from pathlib import Path

from speedup_tables import made_up
from training_tables import fake, rises, write_tables

from experiments import summary
from experiments.ablation import measure as ablation


def rows(results: Path) -> dict[str, list[str]]:
    lines = [line.strip("| ").split(" | ") for line in summary.markdown(results).splitlines()[2:]]
    return {line[0]: line[1:] for line in lines}


def test_what_was_not_measured_is_not_there(tmp_path: Path) -> None:
    found = rows(tmp_path)
    assert len(found) == len(summary.ROWS)
    assert all(measured == ["-", "-"] for _, *measured in found.values())


def test_measured_stands_beside_reported(tmp_path: Path) -> None:
    (tmp_path / "tiny-flux").mkdir()
    made_up(tmp_path / "tiny-flux")
    arms = {"exact": rises(0.4), "jagg": rises(0.4, reverse=True)}
    arms |= {"endpoints-own": rises(0.2), "endpoints-half": rises(0.4), "subset-paper": rises(0.2)}
    folder = tmp_path / "tiny-qwen-image-dance_grpo"
    ablation.write(
        write_tables(fake({(arm, 1.0): values for arm, values in arms.items()}), folder), ablation.Config()
    )
    found = rows(tmp_path)
    step = found["time off a DanceGRPO step, JAGG on 0.6 of the groups"]
    assert step == ["17.3 … 18.2 %", "17.8 ± 0.0 % (cost model: 17.8)", "-"]
    assert found["time off Flow-GRPO-Fast's update"][1:] == ["-", "-"]
    reward = found["reward over the run, JAGG minus exact, DanceGRPO"]
    assert reward[1] == "-" and reward[2].endswith(", equal within the margin (6 seeds)")
    own, half = found["reward over the run, endpoints without interpolation minus JAGG, DanceGRPO"][2].split(
        "; "
    )
    assert own.startswith("own s: -0.1125±") and own.endswith(", lower (6 seeds)")
    assert half.startswith("half and half: ") and "equal within the margin" in half
    control = found["reward over the run, exact on fewer steps at JAGG's cost minus JAGG, DanceGRPO"]
    assert control[:2] == ["-", "-"] and control[2].startswith("at its cost in the paper's layout: -0.1125±")

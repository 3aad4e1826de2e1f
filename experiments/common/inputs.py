"""What every experiment starts from: a model, a scorer and prompts, by the names a user types.

Finding them, and refusing what is not there, takes no torch; loading does.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from repro import rewards, zoo
from repro.errors import InputError

if TYPE_CHECKING:
    import torch

    from repro.models import Backbone
    from repro.rewards import Scorer

SECONDS_PER_FORWARD = 0.004
"""Of one 64-pixel image through a bundled model on one core, what rewards and the optimizer take included:
the ablation tables' seconds over their forwards, 3.2 to 6.2 ms."""
SMALL = 200 * 2**20
"""Bytes of a transformer; the bundled ones have a tenth of it, FLUX a hundred times as much."""


@dataclass(frozen=True)
class Model:
    """A model by name, loaded in the precision that is asked for.

    Attributes:
        name: of its results folder.
        path: its folder, or None for a hub id.
        source: what to load, a folder or a hub id.
    """

    name: str
    path: Path | None
    source: str
    device: str = "cpu"
    size: int | None = None

    @cached_property
    def _card(self) -> dict:
        file = self.path / "repro_card.json" if self.path else None
        return json.loads(file.read_text()) if file and file.exists() else {}

    @property
    def small(self) -> bool:
        """Whether it is of the bundled models' size, as those trained from one are, by its weights' bytes.

        A card does not tell: every trained policy is saved with one.
        """
        files = (self.path / "transformer").glob("*.safetensors") if self.path else ()
        return 0 < sum(file.stat().st_size for file in files) < SMALL

    @property
    def training_steps(self) -> int | None:
        """How long a bundled model was trained, from its card."""
        return self._card.get("training_steps")

    @property
    def pixels(self) -> str:
        """The images' height and width in words, as far as can be told before the model is loaded."""
        if self.size:
            return f"{self.size} × {self.size}"
        return f"{self._card['height']} × {self._card['width']}" if "height" in self._card else "its own size"

    def backbone(self, dtype: torch.dtype | None = None) -> Backbone:
        """The model, freshly loaded, in float32 unless told otherwise."""
        import torch

        from repro.models import load

        backbone = load(self.source, dtype or torch.float32, self.device)
        if self.size is not None:
            backbone.set_size(self.size, self.size)
        return backbone


def check_device(device: str) -> None:
    """Refuse a device that torch cannot use here.

    Raises:
        ValueError: with torch's reason.
    """
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"--device {device} cannot be used here ({str(error).splitlines()[0]})") from None
    if torch.device(device).type == "meta":
        raise InputError("--device meta holds no numbers: take cpu or cuda")


def find_model(model: str, device: str = "cpu", size: int | None = None) -> Model:
    """A bundled name, a diffusers folder or a hub id.

    Raises:
        FileNotFoundError: a path that does not exist.
    """
    bundled = zoo.resolve(model)
    if bundled is not None:
        return Model(model, bundled, str(bundled), device, size)
    folder = Path(model)
    if folder.is_dir():
        return Model(folder.resolve().name, folder, model, device, size)
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise FileNotFoundError(
            f"there is no model {model}: name {' or '.join(zoo.MODELS)}, a diffusers folder, or a hub id; "
            "speedup has others with --synthetic-weights"
        )
    return Model(model.replace("/", "--"), None, model, device, size)


def load_model(model: str, device: str = "cpu", size: int | None = None) -> Model:
    """`find_model`, on a device that torch can use.

    Raises:
        InputError: it cannot.
        FileNotFoundError: a path that does not exist.
    """
    check_device(device)
    return find_model(model, device, size)


def reward_of(reward: str | None, model: Model) -> str:
    """The scorer's name; a model of the bundled size may leave it out.

    Raises:
        InputError: none is named, or what is named is not there.
    """
    if reward is None:
        if not model.small:
            raise InputError(f"{model.name} has no bundled reward: pass --reward, such as hpsv2:PATH")
        reward = zoo.TRAINING_SCORER
    rewards.check(reward)
    return reward


def load_scorer(reward: str | None, model: Model) -> tuple[Scorer, str]:
    """The scorer that `reward_of` names, and its name."""
    reward = reward_of(reward, model)
    return rewards.load(reward, model.device), reward


def read_prompts(file: Path | None, least: int) -> list[str]:
    """The prompts of a file, one a line, or the bundled training prompts; at least so many.

    Raises:
        InputError: fewer, or no such file.
    """
    if file is None:
        prompts = zoo.prompts("train")
    else:
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{file} is not UTF-8 text ({error.reason}): save it as UTF-8") from None
        except OSError as error:
            raise InputError(
                f"no prompts in {file} ({error.strerror}): name a text file with one prompt a line"
            ) from None
        prompts = [line.strip() for line in text.splitlines() if line.strip()]
    if len(prompts) < least:
        raise InputError(f"{least} prompts were asked for, {file or 'the bundled list'} has {len(prompts)}")
    return prompts


def load_prompts(file: Path | None, count: int | None, seed: int) -> list[str]:
    """``count`` prompts of `read_prompts`, drawn without replacement. None takes all, in random order."""
    import torch

    prompts = read_prompts(file, count or 0)
    order = torch.randperm(len(prompts), generator=torch.Generator().manual_seed(seed))
    return [prompts[i] for i in order[:count].tolist()]


def named(words: Sequence[str], option: str, default: str) -> str:
    """What the command line gives for an option, before it is parsed: presets depend on it."""
    found = default
    for at, word in enumerate(words):
        if word == option and at + 1 < len(words):
            found = words[at + 1]
        elif word.startswith(f"{option}="):
            found = word.removeprefix(f"{option}=")
    return found


def rows(path: Path, fresh: bool = False) -> list[dict[str, str]]:
    """A table's rows as text, read at once and unchecked, to say what is done; none without a table."""
    if fresh or not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def announce(model: Model, what: str, units: str, done: int, left: int, forwards: float) -> str:
    """What a run is about to do, in a line.

    Args:
        model: which is measured.
        what: in front of it, such as the algorithm.
        units: what is counted.
        done: of these.
        left: of these.
        forwards: cost of those left by the cost model, in forwards of one image.
    """
    place = f"{model.name}, {model.device}, {model.pixels} pixels"
    line = f"{what} on {place}: {done} {units} done, {left} left"
    if not left:
        return line
    if model.path is None or model.device != "cpu":
        return f"{line}, at most {forwards:.2g} forwards of one image"
    return f"{line}, at most about {_duration(forwards * SECONDS_PER_FORWARD)} of one core"


def _duration(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"

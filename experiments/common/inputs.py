"""What every experiment starts from: a model, a scorer and prompts, by the names a user types."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from repro import zoo
from repro.errors import InputError
from repro.models import Backbone, load
from repro.rewards import Scorer
from repro.rewards import load as load_reward

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
    device: str
    size: int | None

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

    def backbone(self, dtype: torch.dtype = torch.float32) -> Backbone:
        """The model, freshly loaded."""
        backbone = load(self.source, dtype, self.device)
        if self.size is not None:
            backbone.set_size(self.size, self.size)
        return backbone


def check_device(device: str) -> None:
    """Refuse a device that torch cannot use here.

    Raises:
        ValueError: with torch's reason.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"--device {device} cannot be used here ({str(error).splitlines()[0]})") from None
    if torch.device(device).type == "meta":
        raise InputError("--device meta holds no numbers: take cpu or cuda")


def load_model(model: str, device: str = "cpu", size: int | None = None) -> Model:
    """A bundled name, a diffusers folder or a hub id.

    Raises:
        ValueError: an unknown device.
        FileNotFoundError: a path that does not exist.
    """
    check_device(device)
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


def load_scorer(reward: str | None, model: Model) -> tuple[Scorer, str]:
    """The scorer named ``reward``; a model at the bundled size may leave it out. Returns it with its name."""
    if reward is None:
        if not model.small:
            raise InputError(f"{model.name} has no bundled reward: pass --reward, such as hpsv2:PATH")
        reward = zoo.TRAINING_SCORER
    return load_reward(reward, model.device), reward


def load_prompts(file: Path | None, count: int | None, seed: int) -> list[str]:
    """``count`` prompts from a file, one a line, or the bundled training prompts, drawn without replacement.

    None takes all of them, in random order.

    Raises:
        ValueError: fewer prompts than asked for, or no such file.
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
    if len(prompts) < (count or 0):
        raise InputError(f"{count} prompts were asked for, {file or 'the bundled list'} has {len(prompts)}")
    order = torch.randperm(len(prompts), generator=torch.Generator().manual_seed(seed))
    return [prompts[i] for i in order[:count].tolist()]

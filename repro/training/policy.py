"""The policy that is trained: a backbone's transformer, all of it or LoRA adapters on it.

What a training loop asks of it:

* `parameters`, those that are trained, in a fixed order;
* `velocity`, the backbone's, under autocast where that is asked for, so that rollout and update run the same
  kernels;
* `reference`, a context in which the network is the one before training: the adapters off, or a frozen copy;
* `averaged`, a context in which the weights are their exponential moving average;
* `save`, a diffusers folder, or a LoRA adapter, that the stock pipeline loads.

With several ranks the transformer is sharded over them (`repro.distributed.fsdp`), and nothing else is: text
encoders and VAE are whole on each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from repro.distributed import fsdp
from repro.distributed.ranks import ALONE, Ranks
from repro.errors import InputError
from repro.models import Backbone, Conditioning
from repro.training.recipe import Recipe

LORA_TARGETS = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
"""The attention's projections of image and text, in FLUX and in Qwen-Image."""


class Policy:
    """A backbone in training, itself a `FlowModel`.

    Args:
        backbone: freshly loaded; its transformer is changed in place.
        lora_rank: of the adapters; 0 trains all weights.
        checkpointing: recompute activations in the backward.
        autocast: run the network's forwards in bfloat16, weights and gradients staying as they are.
        ema: decay of the moving average, 0 for none.
        reference: keep what `reference` needs: with all weights trained, a second copy of the transformer.
        seed: of the adapters' initial weights.
        ranks: over which the transformer is sharded; all of them must make the same calls.

    Raises:
        ValueError: adapters on a transformer without the projections they go on.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        lora_rank: int = 0,
        checkpointing: bool = False,
        autocast: bool = False,
        ema: float = 0.0,
        reference: bool = False,
        seed: int = 0,
        ranks: Ranks = ALONE,
    ) -> None:
        self.backbone = backbone
        self._ranks = ranks
        self.lora_rank = lora_rank
        self.checkpointing = checkpointing
        self._autocast = autocast
        self._frozen: nn.Module | None = None
        transformer: Any = backbone.transformer
        if lora_rank:
            self._add_adapters(transformer, lora_rank, seed)
        elif reference:
            import copy

            self._frozen = copy.deepcopy(transformer).requires_grad_(False)
        if checkpointing:
            transformer.enable_gradient_checkpointing()
        if ranks.size > 1:
            for network in (transformer, self._frozen):
                if network is not None:
                    fsdp.shard(network, torch.bfloat16 if autocast else None, cast_inputs=not autocast)
        self._names = [name for name, p in transformer.named_parameters() if p.requires_grad]
        self.parameters: list[nn.Parameter] = [p for p in transformer.parameters() if p.requires_grad]
        self._average = (
            AveragedModel(nn.ParameterList(self.parameters), multi_avg_fn=get_ema_multi_avg_fn(ema))
            if ema
            else None
        )

    def _add_adapters(self, transformer: Any, rank: int, seed: int) -> None:
        from peft import LoraConfig

        config = LoraConfig(r=rank, lora_alpha=rank, target_modules=list(LORA_TARGETS))
        transformer.requires_grad_(False)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            try:
                transformer.add_adapter(config)
            except ValueError as error:
                raise InputError(f"no LoRA adapters fit {self.backbone.name}: {error}") from error
        for parameter in transformer.parameters():
            if parameter.requires_grad:  # a step of the optimizer is lost in bfloat16
                parameter.data = parameter.data.float()

    # As a flow model

    @property
    def device(self) -> torch.device:
        return self.backbone.device

    def latent_shape(self) -> tuple[int, ...]:
        """See `Backbone.latent_shape`."""
        return self.backbone.latent_shape()

    def encode(self, prompts: Sequence[str], negative: bool | str = False) -> Conditioning:
        """See `Backbone.encode`."""
        return self.backbone.encode(prompts, negative)

    def velocity(
        self, latents: Tensor, sigma: Tensor | float, conditioning: Conditioning, guidance: float = 1.0
    ) -> Tensor:
        """See `Backbone.velocity`."""
        with torch.autocast(self.device.type, torch.bfloat16) if self._autocast else nullcontext():
            return self.backbone.velocity(latents, sigma, conditioning, guidance)

    def decode(self, latents: Tensor) -> Tensor:
        """See `Backbone.decode`."""
        return self.backbone.decode(latents)

    # As what is trained

    @contextmanager
    def reference(self) -> Iterator[None]:
        """The network as it was before training, within this context; without gradients.

        Raises:
            ValueError: if the policy was made without a reference.
        """
        pipeline: Any = self.backbone.pipeline
        trained = pipeline.transformer
        if self._frozen is None and not self.lora_rank:
            raise InputError("this policy keeps no reference: make it with reference=True")
        try:
            if self._frozen is None:
                trained.disable_adapters()
            else:
                pipeline.transformer = self._frozen
            with torch.no_grad():
                yield
        finally:
            if self._frozen is None:
                trained.enable_adapters()
            else:
                pipeline.transformer = trained

    def update_average(self) -> None:
        """Take the weights as they are now into the moving average, if there is one."""
        if self._average is not None:
            self._average.update_parameters(nn.ParameterList(self.parameters))

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The moving average as the weights, within this context; the weights themselves without one."""
        if self._average is None:
            yield
            return
        kept = [p.detach().clone() for p in self.parameters]
        try:
            self._assign(list(self._average.module.parameters()))
            yield
        finally:
            self._assign(kept)

    @torch.no_grad()
    def _assign(self, values: list[Any]) -> None:
        fsdp.reshard(self.backbone.transformer)
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)

    def state_dict(self) -> dict[str, Any]:
        """The trained weights by name, and their average's state."""
        weights = {name: p.detach() for name, p in zip(self._names, self.parameters, strict=True)}
        average = None if self._average is None else self._average.state_dict()
        return {"weights": weights, "average": average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What `state_dict` gave, into the same weights."""
        self._assign([state["weights"][name] for name in self._names])
        if self._average is not None:
            self._average.load_state_dict(state["average"])

    def save(self, folder: Path | str) -> Path:
        """Write the policy, its moving average if it has one, for the stock pipeline.

        All weights: a diffusers folder for ``from_pretrained``, with the card of a bundled model. LoRA: a
        folder for ``load_lora_weights`` on the pipeline that training started from. All ranks must call it;
        rank 0 writes.
        """
        folder = Path(folder)
        with self.averaged():
            weights = fsdp.full_weights(self.backbone.transformer, keep=self._ranks.main)
            if self._ranks.main:
                self._write(folder, weights)
        return folder

    def _write(self, folder: Path, weights: dict[str, Tensor]) -> None:
        pipeline: Any = self.backbone.pipeline
        trained = pipeline.transformer
        if self.lora_rank:
            from peft import get_peft_model_state_dict

            layers = get_peft_model_state_dict(trained, weights)
            type(pipeline).save_lora_weights(folder, transformer_lora_layers=layers)
            return
        try:
            if self._ranks.size > 1:
                pipeline.transformer = _unsharded(trained, weights)
            pipeline.save_pretrained(folder)
        finally:
            pipeline.transformer = trained
        self._write_card(folder)

    def _write_card(self, folder: Path) -> None:
        """What a bundled model's folder says of its size, which its pipeline's configuration does not."""
        import json

        backbone = self.backbone
        card = {
            "height": backbone.height,
            "width": backbone.width,
            "max_sequence_length": backbone.max_sequence_length,
        }
        (folder / "repro_card.json").write_text(json.dumps(card, indent=2) + "\n")


def _unsharded(transformer: Any, weights: dict[str, Tensor]) -> nn.Module:
    """A network with the same configuration and these weights."""
    with torch.device("meta"):
        copy = type(transformer).from_config(transformer.config)
    copy.load_state_dict(weights, assign=True)
    return copy


def weights_dtype(recipe: Recipe) -> torch.dtype:
    """What to load a backbone in: trained weights are float32, frozen ones may be what they are run in."""
    frozen = recipe.lora_rank > 0 and recipe.precision == "bfloat16"
    return torch.bfloat16 if frozen else torch.float32


def make_policy(backbone: Backbone, recipe: Recipe, seed: int = 0, ranks: Ranks = ALONE) -> Policy:
    """The policy that `recipe` trains, on a backbone freshly loaded in `weights_dtype`."""
    if recipe.size:
        backbone.set_size(recipe.size, recipe.size)
    return Policy(
        backbone,
        lora_rank=recipe.lora_rank,
        checkpointing=recipe.checkpointing,
        autocast=recipe.precision == "bfloat16",
        ema=recipe.ema,
        reference=recipe.kl_weight > 0,
        seed=seed,
        ranks=ranks,
    )

"""FLUX.1: `FluxTransformer2DModel` behind diffusers' `FluxPipeline`.

The conditioning is the T5 sequence (padded to max_sequence_length and unmasked, as the pipeline does) and
CLIP's pooled vector. Guidance-distilled checkpoints (FLUX.1-dev) take a guidance *embedding*, an input of a
single forward; it is separate from true classifier-free guidance, which takes a second forward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from repro.models.base import Backbone


class Flux(Backbone):
    """FLUX; see `Backbone`.

    Attributes:
        embedded_guidance: for guidance-distilled checkpoints alone; 3.5 is the pipeline's default.
    """

    family = "flux"
    embedded_guidance: float = 3.5

    @classmethod
    def pipeline_class(cls) -> Any:
        from diffusers import FluxPipeline

        return FluxPipeline

    def _encode(self, prompts: list[str]) -> dict[str, Tensor]:
        embeds, pooled, _ = self.pipeline.encode_prompt(
            prompt=prompts, device=self.device, max_sequence_length=self.max_sequence_length
        )
        return {"prompt_embeds": embeds, "pooled_prompt_embeds": pooled}

    def _forward(self, latents: Tensor, timestep: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        n, embeds = latents.shape[0], conditioning["prompt_embeds"]
        rows, columns = self._grid(self.height, self.width)
        guidance = None
        if self.pipeline.transformer.config.guidance_embeds:
            guidance = torch.full((n,), self.embedded_guidance, device=latents.device)
        return self.transformer(
            hidden_states=latents,
            timestep=timestep,
            guidance=guidance,
            pooled_projections=conditioning["pooled_prompt_embeds"],
            encoder_hidden_states=embeds,
            # Positions of the text are all zero; neither has a batch dimension.
            txt_ids=latents.new_zeros(embeds.shape[1], 3),
            img_ids=self.pipeline._prepare_latent_image_ids(n, rows, columns, latents.device, latents.dtype),
            return_dict=False,
        )[0]

    def _unscale(self, latents: Tensor) -> Tensor:
        config = self.pipeline.vae.config
        return latents / config.scaling_factor + config.shift_factor

"""Qwen-Image: `QwenImageTransformer2DModel` behind diffusers' `QwenImagePipeline`.

The conditioning is the last hidden state of Qwen2.5-VL after the template's 34 tokens, with a mask where
prompts of a batch differ in length. Guided velocities are rescaled, token by token, to the norm of the
positive one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from repro.models.base import Backbone


class QwenImage(Backbone):
    """Qwen-Image; see `Backbone`."""

    family = "qwen-image"
    default_negative = " "  # what Qwen-Image's own examples pass

    @classmethod
    def pipeline_class(cls) -> Any:
        from diffusers import QwenImagePipeline

        return QwenImagePipeline

    def _encode(self, prompts: list[str]) -> dict[str, Tensor]:
        embeds, mask = self.pipeline.encode_prompt(
            prompt=prompts, device=self.device, max_sequence_length=self.max_sequence_length
        )
        # The pipeline drops a mask that masks nothing; attention without one may run a faster kernel.
        return {"prompt_embeds": embeds} | ({} if mask is None else {"prompt_embeds_mask": mask})

    def _forward(self, latents: Tensor, timestep: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        return self.transformer(
            hidden_states=latents,
            timestep=timestep,
            encoder_hidden_states=conditioning["prompt_embeds"],
            encoder_hidden_states_mask=conditioning.get("prompt_embeds_mask"),
            img_shapes=[[(1, *self._grid(self.height, self.width))]] * latents.shape[0],
            return_dict=False,
        )[0]

    def _guide(self, positive: Tensor, negative: Tensor, guidance: float) -> Tensor:
        combined = super()._guide(positive, negative, guidance)
        norm = torch.norm(combined, dim=-1, keepdim=True)
        return combined * (torch.norm(positive, dim=-1, keepdim=True) / norm)

    def _unscale(self, latents: Tensor) -> Tensor:
        config = self.pipeline.vae.config
        mean, std = (
            torch.tensor(values).view(1, -1, 1, 1, 1).to(latents)
            for values in (config.latents_mean, config.latents_std)
        )
        return latents * std + mean

"""What every backbone is: a velocity field v(z, sigma, conditioning), its text encoders and its decoder.

Rectified flow: z_sigma = (1 - sigma) * data + sigma * noise, so sigma = 1 is pure noise, the network predicts
v = noise - data, and the noise-free sampler follows dz/dsigma = v. Latents are the pipeline's *packed* ones,
(N, tokens, channels): what its denoising loop holds and what ``output_type="latent"`` returns.

True classifier-free guidance needs a second, negative forward, and v is the family's own combination of both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from repro.errors import InputError


@dataclass(frozen=True)
class Conditioning:
    """Encoded prompts: named tensors that share a leading batch dimension N.

    Attributes:
        tensors: name -> (N, ...), as the family's network takes them.
        negative: the negative prompts of the same N samples, where guidance is wanted.
    """

    tensors: dict[str, Tensor]
    negative: Conditioning | None = None

    def __len__(self) -> int:
        return next(iter(self.tensors.values())).shape[0]

    def repeat(self, times: int) -> Conditioning:
        """The whole batch, `times` over: samples 0..N-1, 0..N-1, ..."""
        return self._map(lambda tensor: tensor.repeat(times, *[1] * (tensor.ndim - 1)))

    def repeat_interleave(self, times: int) -> Conditioning:
        """Each sample `times` over: 0, 0, ..., 1, 1, ... (the images of one prompt lie side by side)."""
        return self._map(lambda tensor: tensor.repeat_interleave(times, dim=0))

    def index(self, index: Tensor | Sequence[int] | slice) -> Conditioning:
        """The chosen samples, padding as it is."""
        chosen = index if isinstance(index, slice | Tensor) else list(index)
        return self._map(lambda tensor: tensor[chosen])

    def to(self, device: torch.device | str) -> Conditioning:
        """All tensors on another device."""
        return self._map(lambda tensor: tensor.to(device))

    def _map(self, function: Callable[[Tensor], Tensor]) -> Conditioning:
        negative = None if self.negative is None else self.negative._map(function)
        return Conditioning({name: function(tensor) for name, tensor in self.tensors.items()}, negative)


class FlowModel(Protocol):
    """What is sampled from and trained: a `Backbone`, or the policy that is made of one; see there."""

    @property
    def device(self) -> torch.device: ...

    def latent_shape(self) -> tuple[int, ...]: ...

    def encode(self, prompts: Sequence[str], negative: bool | str = False) -> Conditioning: ...

    def velocity(
        self, latents: Tensor, sigma: Tensor | float, conditioning: Conditioning, guidance: float = 1.0
    ) -> Tensor: ...

    def decode(self, latents: Tensor) -> Tensor: ...


class Backbone(ABC):
    """One diffusers pipeline, as a velocity field with an encoder and a decoder.

    The transformer's parameters require gradients, everything else is frozen, all of it in eval mode.

    Args:
        pipeline: the loaded diffusers pipeline.
        name: what to call it in tables.
        height, width: image size in pixels; packed latents do not tell, so the backbone is set to one size.
        max_sequence_length: prompt tokens that the family's encode_prompt keeps.

    Raises:
        ValueError: a size that the pipeline's latents cannot have.
    """

    family: str
    #: the prompt that ``encode(..., negative=True)`` takes for the negative one
    default_negative: str = ""

    def __init__(self, pipeline: Any, name: str, height: int, width: int, max_sequence_length: int) -> None:
        self.pipeline = pipeline
        self.name = name
        self.max_sequence_length = max_sequence_length
        self.set_size(height, width)
        for component in pipeline.components.values():
            if isinstance(component, nn.Module):
                component.requires_grad_(component is pipeline.transformer).eval()

    @classmethod
    @abstractmethod
    def pipeline_class(cls) -> Any:
        """The diffusers pipeline class (imported here, so that the package stays cheap)."""

    @abstractmethod
    def _encode(self, prompts: list[str]) -> dict[str, Tensor]:
        """The network's conditioning tensors, from the pipeline's own encode_prompt."""

    @abstractmethod
    def _forward(self, latents: Tensor, timestep: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        """One call of the transformer; `timestep` (N,) in [0, 1]."""

    @abstractmethod
    def _unscale(self, latents: Tensor) -> Tensor:
        """Unpacked latents -> what the VAE decodes, (N, 3, H, W) or (N, 3, 1, H, W) in [-1, 1] come out."""

    def _guide(self, positive: Tensor, negative: Tensor, guidance: float) -> Tensor:
        """Classifier-free guidance as the pipeline does it."""
        return negative + guidance * (positive - negative)

    @property
    def transformer(self) -> nn.Module:
        """The network that is trained."""
        return self.pipeline.transformer

    @property
    def device(self) -> torch.device:
        return self.pipeline.transformer.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the network's weights; velocities have it too."""
        return self.pipeline.transformer.dtype

    def set_size(self, height: int, width: int) -> None:
        """Work at another image size from now on; multiples of the VAE's factor times the 2x2 packing."""
        multiple = self._multiple
        if height < 1 or width < 1 or height % multiple or width % multiple:
            raise InputError(f"image size {height}x{width}: height and width must be multiples of {multiple}")
        self.height, self.width = height, width

    def latent_shape(self, height: int | None = None, width: int | None = None) -> tuple[int, ...]:
        """(tokens, channels) of one image's packed latents, by default at the backbone's own size."""
        rows, columns = self._grid(height or self.height, width or self.width)
        return (rows * columns, self.pipeline.transformer.config.in_channels)

    @torch.no_grad()
    def encode(self, prompts: Sequence[str], negative: bool | str = False) -> Conditioning:
        """Text to conditioning, without gradients.

        Args:
            prompts: N texts.
            negative: also encode this negative prompt for each of them (True: the family's customary one);
                `velocity` needs it when guidance is above 1.

        Returns:
            N samples; `Conditioning.repeat_interleave(G)` makes the G images of each prompt.
        """
        prompts = list(prompts)
        if not prompts:
            raise InputError("no prompts to encode: pass at least one")
        if negative is False:
            return Conditioning(self._encode(prompts))
        text = self.default_negative if negative is True else negative
        return Conditioning(self._encode(prompts), Conditioning(self._encode([text] * len(prompts))))

    def velocity(
        self, latents: Tensor, sigma: Tensor | float, conditioning: Conditioning, guidance: float = 1.0
    ) -> Tensor:
        """The network's velocity; gradients are tracked if the caller's context tracks them.

        Args:
            latents: (N, tokens, channels), any float dtype; cast to the network's.
            sigma: (N,) or a number, in [0, 1].
            conditioning: of N samples.
            guidance: true classifier-free guidance; above 1 it takes a second forward on
                ``conditioning.negative``.

        Returns:
            (N, tokens, channels) in the network's dtype.

        Raises:
            ValueError: shapes that do not fit, guidance below 1 or without negative prompts.
        """
        n = latents.shape[0]
        if tuple(latents.shape[1:]) != self.latent_shape():
            raise InputError(
                f"latents are {tuple(latents.shape)}, but {self.height}x{self.width} images have "
                f"(N, {', '.join(map(str, self.latent_shape()))}): pass those, or call set_size first"
            )
        if len(conditioning) != n:
            raise InputError(
                f"{n} latents but {len(conditioning)} conditionings: repeat or index them to match"
            )
        if guidance < 1 or (guidance > 1 and conditioning.negative is None):
            raise InputError(
                f"guidance {guidance:g} needs encode(..., negative=True)"
                if guidance > 1
                else f"guidance {guidance:g}: must be at least 1 (1 means none)"
            )
        latents = latents.to(self.dtype)
        sigma = torch.as_tensor(sigma, dtype=torch.float32, device=latents.device).expand(n)
        # The pipelines round the *timestep* to the network's dtype; doing the same keeps bf16 samples theirs.
        steps = self.pipeline.scheduler.config.num_train_timesteps
        timestep = (sigma * steps).to(latents.dtype) / steps
        velocity = self._forward(latents, timestep, conditioning.tensors)
        if guidance > 1 and conditioning.negative is not None:
            negative = self._forward(latents, timestep, conditioning.negative.tensors)
            velocity = self._guide(velocity, negative, guidance)
        return velocity

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Packed latents (N, tokens, channels) to images (N, 3, H, W), float32 in [0, 1]."""
        vae = self.pipeline.vae
        unpacked = self.pipeline._unpack_latents(
            latents, self.height, self.width, self.pipeline.vae_scale_factor
        )
        images = vae.decode(self._unscale(unpacked.to(vae.dtype)), return_dict=False)[0]
        if images.ndim == 5:  # a video VAE's single frame
            images = images[:, :, 0]
        return self.pipeline.image_processor.postprocess(images, output_type="pt").float()

    @property
    def _multiple(self) -> int:
        return 2 * self.pipeline.vae_scale_factor

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        return height // self._multiple, width // self._multiple

    def to(self, device: torch.device | str) -> Self:
        """Move all components."""
        self.pipeline.to(device)
        return self

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.transformer.parameters()) / 1e6
        return f"{type(self).__name__}({self.name!r}, {size:.1f} M parameters, {self.height}x{self.width})"


def bind(
    model: FlowModel, conditioning: Conditioning, sigmas: Tensor, guidance: float = 1.0
) -> Callable[[Sequence[int] | Tensor, Tensor], Tensor]:
    """The core's `VelocityFn`: m step numbers, or (m, B), and latents (m, B, tokens, channels) to velocities.

    The m steps are stacked along the batch in *one* forward of m * B samples.

    Args:
        model: a backbone, or a policy.
        conditioning: of the B samples.
        sigmas: (n,) or (n + 1,); step j is evaluated at sigmas[j].
        guidance: see `Backbone.velocity`.

    Returns:
        velocity(steps, latents) -> (m, B, tokens, channels); gradients as the caller's context says.
    """

    def velocity(steps: Sequence[int] | Tensor, latents: Tensor) -> Tensor:
        m, batch = latents.shape[:2]
        sigma = sigmas[torch.as_tensor(steps)].reshape(m, -1).expand(m, batch).flatten().to(latents.device)
        flat = model.velocity(latents.flatten(0, 1), sigma, conditioning.repeat(m), guidance)
        return flat.unflatten(0, (m, batch))

    return velocity

"""Interventions: what the model itself does when one thing in it is changed.

They confirm what Part 1 section 3 and Part 2 section 3 of the articles read from the weights; the
paper's "freezing attention patterns trick" is the third.

1. Take a piece out of the final stream, and let the model's own last layer norm and unembedding read
   the rest; the size that layer norm divides by is held where it was, or moves.
2. Take a head out: its result vectors become zero at every position.
3. Freeze a head's pattern and give it other values: its result vectors become the pattern times those.

A hook here is what `model.run_with_hooks(tokens, fwd_hooks=[...])` takes.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    import transformer_lens  # seconds to import: only for those who have a model already

Hook = tuple[str, Callable]


def hold_scale(model: "transformer_lens.HookedTransformer", scale: Float[Tensor, "..."]) -> list[Hook]:
    """The last layer norm, if the model has one, divides by `scale`, whatever the stream has become."""
    if model.cfg.normalization_type is None:
        return []
    return [("ln_final.hook_scale", lambda size, hook: scale.expand_as(size))]


def set_result(layer: int, head: int, r: Float[Tensor, "..."]) -> Hook:
    """The head's result vectors are `r`: [pos, d_head], or one zero for a head that is taken out."""

    def put(z: Float[Tensor, "batch pos head d_head"], hook: object) -> Float[Tensor, "..."]:
        z = z.clone()
        z[:, :, head] = r
        return z

    return f"blocks.{layer}.attn.hook_z", put


def without_each(
    model: "transformer_lens.HookedTransformer",
    written: dict[str, Float[Tensor, " d_model"]],
    stream: Float[Tensor, " d_model"],
    hooks: list[Hook],
) -> Float[Tensor, "piece d_vocab"]:
    """The model's logits from its final `stream` without each of the pieces `written` to it in turn.

    With `hold_scale` among the hooks, a logit falls by exactly the piece's `residual.logit_shares`.
    """
    streams = stream - torch.stack(list(written.values()))
    return model.run_with_hooks(streams[:, None], start_at_layer=model.cfg.n_layers, fwd_hooks=hooks)[:, 0]

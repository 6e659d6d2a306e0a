"""The residual stream: the pieces it is the sum of, their shares of a logit, and turning it.

Part 1 of the articles, "The residual stream as a communication channel"; the paper's
"Virtual Weights and the Residual Stream as a Communication Channel".
Models are layer-norm-folded `HookedTransformer`s; vectors are rows, as TransformerLens keeps them.
"""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    import transformer_lens  # seconds to import: only for those who have a model already


def pieces(
    model: "transformer_lens.HookedTransformer", cache: "transformer_lens.ActivationCache", pos: int
) -> dict[str, Float[Tensor, " d_model"]]:
    """Everything that was ever added to the stream at position `pos`, by writer (Part 1, section 3).

    "embed", "pos_embed", then for each layer "L.H" for what head H writes and "b_O.L" for the
    layer's output bias. They sum to `blocks.{last}.hook_resid_post` up to float32 rounding.
    """
    written = {"embed": cache["hook_embed"][0, pos], "pos_embed": cache["hook_pos_embed"][0, pos]}
    for layer in range(model.cfg.n_layers):
        z = cache["z", layer][0, pos]  # [head, d_head]: each head's result vector
        for head in range(model.cfg.n_heads):
            written[f"{layer}.{head}"] = z[head] @ model.W_O[layer, head]
        written[f"b_O.{layer}"] = model.b_O[layer]
    return written


def heads(model: "transformer_lens.HookedTransformer") -> list[tuple[int, int]]:
    """(layer, head) for every head of the model."""
    return [(layer, head) for layer in range(model.cfg.n_layers) for head in range(model.cfg.n_heads)]


def logit_shares(
    written: dict[str, Float[Tensor, " d_model"]],
    scale: Float[Tensor, ""],
    W_U: Float[Tensor, "d_model d_vocab"],
    b_U: Float[Tensor, " d_vocab"],
    token: int,
) -> dict[str, float]:
    """Direct logit attribution: what each piece adds to the logit of `token` (Part 1, section 3).

    Layer norm subtracts the mean, which is linear and so acts on each piece, and divides by one
    `scale` for the whole stream. With the line "b_U" the shares sum to the model's logit.
    """
    shares = {name: ((x - x.mean()) / scale @ W_U[:, token]).item() for name, x in written.items()}
    return shares | {"b_U": b_U[token].item()}


def logit_direction(
    W_U: Float[Tensor, "d_model d_vocab"], scale: Float[Tensor, ""], token: int
) -> Float[Tensor, " d_model"]:
    """The direction along which what is written adds to the logit of `token`: x @ it is x's logit share."""
    return (W_U[:, token] - W_U[:, token].mean()) / scale


def rotation(d_model: int, generator: torch.Generator) -> Float[Tensor, "d_model d_model"]:
    """A random orthogonal matrix, in float64, that leaves the all-ones direction where it is.

    Layer norm subtracts the mean, so the all-ones direction is the one the stream's readers share.
    Built as B diag(1, Q) Bᵀ: B is a basis whose first vector is all ones, Q turns all the others.
    """
    basis = torch.randn(d_model, d_model, generator=generator, dtype=torch.float64)
    basis[:, 0] = 1
    basis = torch.linalg.qr(basis).Q
    turn = torch.eye(d_model, dtype=torch.float64)
    others = torch.randn(d_model - 1, d_model - 1, generator=generator, dtype=torch.float64)
    turn[1:, 1:] = torch.linalg.qr(others).Q
    return basis @ turn @ basis.T


def rotated(
    model: "transformer_lens.HookedTransformer", R: Float[Tensor, "d_model d_model"]
) -> dict[str, Tensor]:
    """The weights of `model` with the stream turned by R: x becomes x Rᵀ (Part 1, section 7).

    Writers (W_E, W_pos, W_O, b_O) are turned with it, readers (W_Q, W_K, W_V, W_U) read what they
    read before. Every weight changes; under `torch.func.functional_call` no output does.
    """
    turned = dict(model.named_parameters())
    for name, weight in turned.items():
        match name.split(".")[-1]:
            case "W_E" | "W_pos" | "W_O" | "b_O":
                turned[name] = weight @ R.T
            case "W_Q" | "W_K" | "W_V" | "W_U":
                turned[name] = R @ weight
    return turned


def run(
    model: "transformer_lens.HookedTransformer", prompt: str
) -> tuple[Int[Tensor, " pos"], Float[Tensor, "pos d_vocab"], "transformer_lens.ActivationCache"]:
    """Tokens (BOS first), logits and every inner signal of one prompt."""
    tokens = model.to_tokens(prompt)
    logits, cache = model.run_with_cache(tokens)
    return tokens[0], logits[0], cache

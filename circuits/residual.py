"""The residual stream: the pieces it is the sum of, their shares of a logit, and turning it.

Part 1 of the articles, "The residual stream as a communication channel"; the paper's
"Virtual Weights and the Residual Stream as a Communication Channel".
Models are layer-norm-folded `HookedTransformer`s; vectors are rows, as TransformerLens keeps them.
"""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuits import architecture, vocabulary

if TYPE_CHECKING:
    import transformer_lens  # seconds to import: only for those who have a model already


def pieces(
    model: "transformer_lens.HookedTransformer", cache: "transformer_lens.ActivationCache", pos: int
) -> dict[str, Float[Tensor, " d_model"]]:
    """Everything that was ever added to the stream at position `pos`, by writer (Part 1, section 3).

    "embed", "pos_embed", then for each layer "L.H" for what head H writes and "b_O.L" for the
    layer's output bias, and of its MLP "mlp.L" and "b_out.L". A model without a position table or
    without MLPs has no such pieces. They sum to `blocks.{last}.hook_resid_post` up to float32 rounding.
    """
    written = {"embed": cache["hook_embed"][0, pos]}
    if architecture.has_position_table(model.cfg):
        written["pos_embed"] = cache["hook_pos_embed"][0, pos]
    for layer in range(model.cfg.n_layers):
        z = cache["z", layer][0, pos]  # [head, d_head]: each head's result vector
        for head in range(model.cfg.n_heads):
            written[f"{layer}.{head}"] = z[head] @ model.W_O[layer, head]
        written[f"b_O.{layer}"] = model.b_O[layer]
        if not model.cfg.attn_only:
            mlp = model.blocks[layer].mlp
            written[f"mlp.{layer}"] = cache["post", layer][0, pos] @ mlp.W_out
            written[f"b_out.{layer}"] = mlp.b_out
    return written


def head_input(
    model: "transformer_lens.HookedTransformer", cache: "transformer_lens.ActivationCache", layer: int
) -> Float[Tensor, "pos d_model"]:
    """The stream as the heads of a layer see it: after what is left of layer norm, where there is one."""
    if model.cfg.normalization_type is None:
        return cache["resid_pre", layer][0]
    return cache["normalized", layer, "ln1"][0]


def final_scale(
    model: "transformer_lens.HookedTransformer", cache: "transformer_lens.ActivationCache", pos: int
) -> Float[Tensor, ""]:
    """What the last layer norm divides the stream at `pos` by; 1 for a model without one."""
    if model.cfg.normalization_type is None:
        return torch.ones((), dtype=model.W_E.dtype)
    return cache["ln_final.hook_scale"][0, pos, 0]


def heads(model: "transformer_lens.HookedTransformer") -> list[tuple[int, int]]:
    """(layer, head) for every head of the model."""
    return [(layer, head) for layer in range(model.cfg.n_layers) for head in range(model.cfg.n_heads)]


def logit_shares(
    written: dict[str, Float[Tensor, " d_model"]],
    scale: Float[Tensor, ""],
    W_U: Float[Tensor, "d_model d_vocab"],
    b_U: Float[Tensor, " d_vocab"],
    token: int,
    centred: bool = True,
) -> dict[str, float]:
    """Direct logit attribution: what each piece adds to the logit of `token` (Part 1, section 3).

    Layer norm subtracts the mean, which is linear and so acts on each piece, and divides by one
    `scale` for the whole stream. With the line "b_U" the shares sum to the model's logit.
    RMS norm subtracts no mean: `centred` is False then (`architecture.centres`).
    """
    if centred:
        written = {name: x - x.mean() for name, x in written.items()}
    shares = {name: (x / scale @ W_U[:, token]).item() for name, x in written.items()}
    return shares | {"b_U": b_U[token].item()}


def logit_direction(
    W_U: Float[Tensor, "d_model d_vocab"], scale: Float[Tensor, ""], token: int, centred: bool = True
) -> Float[Tensor, " d_model"]:
    """The direction along which what is written adds to the logit of `token`: x @ it is x's logit share."""
    column = W_U[:, token]
    return (column - column.mean() if centred else column) / scale


def rotation(d_model: int, generator: torch.Generator) -> Float[Tensor, "d_model d_model"]:
    """A random orthogonal matrix, in float64, that leaves the all-ones direction where it is.

    Layer norm subtracts the part of the stream along it: a turn that moved it would change the outputs.
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

    Writers (W_E, W_pos, W_O, b_O, W_out, b_out) are turned with it, readers (W_Q, W_K, W_V, W_in,
    W_gate, W_U) read what they read before. Every weight that touches the stream changes; under
    `torch.func.functional_call` no output does. Not for a model whose embedding is normalised before it
    is written (`cfg.post_embedding_ln`): that norm has a weight for each dimension, which do not turn.
    """
    turned = dict(model.named_parameters())
    for name, weight in turned.items():
        match name.split(".")[-1].removeprefix("_"):  # "_W_K" where heads share keys and values
            case "W_E" | "W_pos" | "W_O" | "b_O" | "W_out" | "b_out":
                turned[name] = weight @ R.T
            case "W_Q" | "W_K" | "W_V" | "W_in" | "W_gate" | "W_U":
                turned[name] = R @ weight
    return turned


def run(
    model: "transformer_lens.HookedTransformer", prompt: str
) -> tuple[Int[Tensor, " pos"], Float[Tensor, "pos d_vocab"], "transformer_lens.ActivationCache"]:
    """Tokens (BOS first, if the model has one), logits and every inner signal of one prompt.

    Raises Fault for a prompt that the model cannot be run on (`vocabulary.tokens`).
    """
    tokens = vocabulary.tokens(model, prompt)
    logits, cache = model.run_with_cache(tokens[None])
    return tokens, logits[0], cache


def logit_size(
    logits: Float[Tensor, "pos d_vocab"], cache: "transformer_lens.ActivationCache", n_layers: int
) -> float:
    """The largest number whose rounding, in any layer, a logit can feel: the size of a logit's noise.

    The largest |logit|, times how much larger the stream once was than it is at its end (what cancels on
    the way leaves its rounding behind), times the number of layers, each of which adds its own.
    """
    layers = range(n_layers)
    norms = torch.stack([cache["resid_post", layer][0].norm(dim=-1) for layer in layers])  # [layer, pos]
    return (logits.abs().max() * (norms.amax(0) / norms[-1]).max() * n_layers).item()

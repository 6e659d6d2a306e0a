"""What of a model's architecture the articles' mathematics covers, and what it does not, by name.

Covered, beside the articles' own attention-only models: MLPs (plain or gated, after the heads or beside
them), grouped keys and values, rotary and ALiBi positions, a norm of the embedding, RMS norm or no norm,
local attention, any constant divisor of the scores. Everything else that TransformerLens 3.x can build is
refused with its reason, so that no number is printed that would mean something else.
"""

from typing import TYPE_CHECKING, Any

import torch

from circuits import Fault

if TYPE_CHECKING:
    import transformer_lens  # seconds to import: only for those who have a model already

POST_NORM = ("Olmo2ForCausalLM", "Olmo3ForCausalLM")
FULL_QK_NORM = (*POST_NORM, "OlmoeForCausalLM")


class NotCovered(Fault):
    """A model that the mathematics does not cover; the message is one line that names what and why."""

    status = 3


def check(cfg: "transformer_lens.HookedTransformerConfig", heads: bool = False, folded: bool = False) -> None:
    """Raises NotCovered for a configuration that Part 1 does not cover; with `heads`, that Part 2 does not.

    `folded` asks too that layer norm is folded into the weights, as the sections need it
    (`models.folded` makes such a copy).
    """
    reasons = _stream(cfg) | (_heads(cfg) if heads else {})
    if folded:
        reasons |= _unfolded(cfg)
    for what, (present, why) in reasons.items():
        if present:
            raise NotCovered(f"{cfg.model_name} is not covered: {what}: {why}")


def _stream(cfg: "transformer_lens.HookedTransformerConfig") -> dict[str, tuple[bool, str]]:
    """What would make the stream not a sum, or the logits not linear in it: {what: (present, why)}."""
    norm, positions = cfg.normalization_type, cfg.positional_embedding_type
    return {
        "soft-capped logits": (
            _capped(cfg.output_logits_soft_cap),
            "a tanh after the unembedding, so a logit is no sum of shares",
        ),
        "post-norm": (
            cfg.original_architecture in POST_NORM or cfg.use_normalization_before_and_after,
            "layers are normalised after they write, so a head does not add z W_O to the stream",
        ),
        "shortformer positions": (
            positions == "shortformer",
            "positions reach queries and keys only, so a head reads two different streams",
        ),
        f"positions of the kind {positions!r}": (
            positions not in ("standard", "rotary", "alibi", "shortformer"),
            "standard, rotary and alibi are",
        ),
        f"normalization {norm!r}": (
            norm not in ("LN", "LNPre", "RMS", "RMSPre", None),
            "LN, RMS and None are",
        ),
        "a last norm of another kind (final_rms with LN)": (
            bool(cfg.final_rms) and norm in ("LN", "LNPre"),
            "the heads' norm subtracts the mean and the last one reads it, so folding changes the model",
        ),
        "mixture of experts": (
            bool(cfg.num_experts),
            "which weights a token meets depends on the token",
        ),
        "attention sinks": (
            cfg.use_attention_sinks,
            "rows of the pattern do not sum to one, so value biases do not fold",
        ),
        "clipped queries, keys and values": (
            cfg.clip_qkv is not None,
            "a value is not linear in the stream",
        ),
        f"attention {cfg.attention_dir}": (
            cfg.attention_dir != "causal",
            "the articles' models read from left to right",
        ),
        "another vocabulary on the way out (d_vocab_out)": (
            cfg.d_vocab_out != cfg.d_vocab,
            "the tables from tokens to tokens would have two kinds of token",
        ),
        "no layers": (cfg.n_layers < 1, "there is no head to read"),
        "4-bit weights": (cfg.load_in_4bit, "they are packed; load them as float32"),
        f"weights of the type {cfg.dtype}": (
            cfg.dtype != torch.float32,
            "the identities are checked against the rounding of float32: load it as that",
        ),
        "use_attn_in or use_split_qkv_input": (
            cfg.use_attn_in or cfg.use_split_qkv_input,
            "the stream is then kept once for each head; switch it off",
        ),
    }


def _heads(cfg: "transformer_lens.HookedTransformerConfig") -> dict[str, tuple[bool, str]]:
    """What would make a score not bilinear in the stream: {what: (present, why)}."""
    return {
        "normalised queries and keys": (
            cfg.use_qk_norm or cfg.original_architecture in FULL_QK_NORM,
            "a score is not x W_QK xᵀ",
        ),
        "soft-capped scores": (
            _capped(cfg.attn_scores_soft_cap),
            "a tanh before the softmax, so a score is not x W_QK xᵀ",
        ),
        "heads wider than the stream": (
            cfg.d_head > cfg.d_model,
            "W_OV and W_QK are then not low-rank",
        ),
        "log-n attention": (cfg.use_logn_attn, "the divisor of the scores depends on the position"),
    }


def _unfolded(cfg: "transformer_lens.HookedTransformerConfig") -> dict[str, tuple[bool, str]]:
    return {
        "layer norm with weights of its own": (
            cfg.normalization_type in ("LN", "RMS"),
            "fold it first, with circuits.models.folded(model)",
        )
    }


def _capped(cap: float | None) -> bool:
    return cap is not None and cap > 0


def centres(cfg: "transformer_lens.HookedTransformerConfig") -> bool:
    """Whether what the readers see has lost its mean: layer norm does that, RMS norm does not."""
    return cfg.normalization_type in ("LN", "LNPre")


def has_position_table(cfg: "transformer_lens.HookedTransformerConfig") -> bool:
    """Whether W_pos is added to the stream. (TransformerLens makes an unused one for ALiBi.)"""
    return cfg.positional_embedding_type == "standard"


def no_single_W_QK(cfg: "transformer_lens.HookedTransformerConfig") -> str:
    """Why no one matrix gives the scores at every distance, or ""."""
    return {
        "rotary": "Rotary positions turn queries and keys by their position: each distance has its own W_QK.",
        "alibi": "ALiBi subtracts a multiple of the distance from each score, which no W_QK can.",
    }.get(cfg.positional_embedding_type, "")


def beyond(cfg: "transformer_lens.HookedTransformerConfig") -> dict[str, object]:
    """What the model has that the articles' models have not, for Part 1's list of sizes."""
    more = {}
    if not has_position_table(cfg):
        more["positional_embedding_type"] = cfg.positional_embedding_type
    if not centres(cfg):
        more["normalization_type"] = cfg.normalization_type
    if not cfg.attn_only:
        more |= {"d_mlp": cfg.d_mlp, "act_fn": cfg.act_fn, "gated_mlp": cfg.gated_mlp}
        more["parallel_attn_mlp"] = cfg.parallel_attn_mlp
    if cfg.n_key_value_heads is not None:
        more["n_key_value_heads"] = cfg.n_key_value_heads
    if cfg.use_local_attn:
        more["window_size"] = cfg.window_size
    if cfg.post_embedding_ln:
        more["post_embedding_ln"] = True
    return more


def matrices(cfg: "transformer_lens.HookedTransformerConfig") -> list[str]:
    """The names of the matrices that touch the stream, as attributes of the model."""
    names = ["W_E", "W_pos", "W_U", "W_Q", "W_K", "W_V", "W_O"]
    if not has_position_table(cfg):
        names.remove("W_pos")
    if not cfg.attn_only:
        names += ["W_in", "W_gate", "W_out"] if cfg.gated_mlp else ["W_in", "W_out"]
    return names


def n_params(model: "transformer_lens.HookedTransformer") -> int:
    """How many parameters the model has, without a W_pos that it does not use."""
    unused = not has_position_table(model.cfg)
    return sum(p.numel() for name, p in model.named_parameters() if not (unused and name.endswith("W_pos")))


def named(model: Any) -> tuple[str, dict[str, Any]]:
    """(name, the fields of its configuration) of a `models.Checkpoint` or a `HookedTransformer`."""
    if isinstance(model.cfg, dict):
        return model.name, model.cfg
    return model.cfg.model_name, model.cfg.to_dict()


def key_value_group(
    cfg: "transformer_lens.HookedTransformerConfig", head: int
) -> tuple[int, list[int]] | None:
    """(group, its heads) of a head that shares its keys and values with others, or None."""
    if cfg.n_key_value_heads is None:
        return None
    size = cfg.n_heads // cfg.n_key_value_heads
    return head // size, list(range(head // size * size, (head // size + 1) * size))

"""Models of every architecture that is covered, made from a configuration with random weights.

Every bias and every norm weight is random and none is centred, so that a piece that is forgotten, a norm
that is not folded or a mean that is subtracted in vain shows.
"""

from typing import Any

import torch

SIZES = dict(n_layers=2, n_heads=4, d_model=24, d_head=5, n_ctx=32, d_vocab=8192, device="cpu")
MLP = dict(attn_only=False, d_mlp=40, act_fn="gelu")
KINDS: dict[str, dict[str, Any]] = {
    "attention only": dict(attn_only=True),
    "one layer": dict(attn_only=True, n_layers=1),
    "with MLPs, as GPT-2": MLP,
    "norm inside the MLP, as SoLU": MLP | dict(act_fn="solu_ln"),
    "RMS norm": MLP | dict(normalization_type="RMS"),
    "no norm": MLP | dict(normalization_type=None),
    "grouped, gated, rotary, as Llama": MLP
    | dict(normalization_type="RMS", positional_embedding_type="rotary", gated_mlp=True, act_fn="silu")
    | dict(n_key_value_heads=2, final_rms=True, d_head=4),  # turned in pairs
    "beside the heads, part rotary, as GPT-NeoX": MLP
    | dict(positional_embedding_type="rotary", rotary_dim=2, parallel_attn_mlp=True)
    | dict(default_prepend_bos=False),
    "ALiBi, normalised embedding, as BLOOM": MLP
    | dict(positional_embedding_type="alibi", post_embedding_ln=True, default_prepend_bos=False),
    "local and unscaled, as GPT-Neo": MLP
    | dict(use_attn_scale=False, use_local_attn=True, window_size=3, attn_types=["local", "global"]),
    "divided by layer, as Mistral's GPT-2": MLP | dict(scale_attn_by_inverse_layer_idx=True),
    "grouped, with a position table": dict(attn_only=True, n_key_value_heads=1),
}


def make(seed: int = 0, tokenizer: Any = None, **fields: Any) -> Any:
    """A HookedTransformer of the fields, unfolded, in evaluation mode."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    from circuits.models import bundled_tokenizer

    cfg = HookedTransformerConfig(**SIZES | dict(init_weights=False, model_name="made") | fields)
    model = HookedTransformer(cfg, tokenizer=tokenizer or bundled_tokenizer())
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        random = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        kind = name.split(".")[-1].removeprefix("_")
        if kind == "w":
            random = 1 + random / 4
        elif kind.startswith("b"):
            random = random / 2 + 0.1
        elif kind not in ("W_E", "W_pos"):
            random = random * parameter.shape[-2] ** -0.5
        parameter.data = random.float()
    return model.requires_grad_(False).eval()

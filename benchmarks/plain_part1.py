"""Part 1 the plain way: the figures of circuits_part1.py by TransformerLens' ordinary calls.

What a reader of the article would write: `from_pretrained` for each model, the article's own snippets,
whole products and a full argmax. A model is dropped after the last section that needs it. Prints
`id <tab> JSON` under the ids of results/part1.json, so that run.py can see that the two agree.
"""

import json

import torch
from transformer_lens import HookedTransformer

PROMPT = (
    "Mr and Mrs Dursley, of number four, Privet Drive, were proud to say that they were perfectly normal. "
    "Mr and Mrs Durs"
)
WORDS = [" Barack", " United", " New", " Hong", " Mr", " according", " Los"]


def show(id, value):
    print(id, json.dumps(value), sep="\t")


def own_top_share(W_E, W_U):
    tokens = torch.arange(1000, 3000)
    return ((W_E[tokens] @ W_U).argmax(-1) == tokens).float().mean().item()


torch.set_grad_enabled(False)

# 1. sizes
model = HookedTransformer.from_pretrained("attn-only-2l", device="cpu")
cfg = model.cfg
for name in ("n_layers", "n_heads", "d_model", "d_head", "d_vocab", "n_ctx", "attn_only"):
    show(f"1.{name}", getattr(cfg, name))
show("1.n_params", sum(p.numel() for p in model.parameters()))
for name in ("W_E", "W_pos", "W_U", "W_Q", "W_K", "W_V", "W_O"):
    show(f"1.shape.{name}", list(getattr(model, name).shape))
show("1.n_params_embed_unembed", model.W_E.numel() + model.W_U.numel())

# 2. folding
unfolded = HookedTransformer.from_pretrained_no_processing("attn-only-2l", device="cpu")
tokens = model.to_tokens(PROMPT)
show("2.n_tokens", tokens.shape[1])
change = model(tokens).log_softmax(-1) - unfolded(tokens).log_softmax(-1)
show("2.max_log_prob_change", change.abs().max().item())
del unfolded

# 3. the residual stream
logits, cache = model.run_with_cache(tokens)
pos = tokens.shape[1] - 1
answer = logits[0, pos].argmax()
top = logits[0, pos].softmax(-1).topk(5)
show("3.last_tokens", model.to_str_tokens(tokens[0, -6:]))
show("3.prediction", model.to_string(answer))
show("3.top5.tokens", model.to_str_tokens(top.indices))
show("3.top5.probabilities", top.values.tolist())

parts = {"embed": cache["hook_embed"][0, pos], "pos_embed": cache["hook_pos_embed"][0, pos]}
for L in range(cfg.n_layers):
    z = cache[f"blocks.{L}.attn.hook_z"][0, pos]
    for h in range(cfg.n_heads):
        parts[f"{L}.{h}"] = z[h] @ model.W_O[L, h]
    parts[f"b_O.{L}"] = model.b_O[L]
real = cache["blocks.1.hook_resid_post"][0, pos]
total = sum(parts.values())
show("3.n_parts", len(parts))
show("3.max_sum_error", (total - real).abs().max().item())
show("3.final_norm", real.norm().item())
show("3.real_first4", real[:4].tolist())
show("3.sum_first4", total[:4].tolist())

scale = cache["ln_final.hook_scale"][0, pos, 0]
shares = {n: ((part - part.mean()) / scale @ model.W_U[:, answer]).item() for n, part in parts.items()}
shares["b_U"] = model.b_U[answer].item()
show("3.ln_scale", scale.item())
for name, share in shares.items():
    show(f"3.share.{name}", share)
show("3.sum_of_shares", sum(shares.values()))
show("3.logit", logits[0, pos, answer].item())
heads = [(L, h) for L in range(cfg.n_layers) for h in range(cfg.n_heads)]
L, h = max(heads, key=lambda at: shares[f"{at[0]}.{at[1]}"])
show("3.largest_head", f"{L}.{h}")
show("3.largest_head_fraction", shares[f"{L}.{h}"] / logits[0, pos, answer].item())
seen = cache[f"blocks.{L}.attn.hook_pattern"][0, h, pos].topk(3)
show("3.largest_head_attends.positions", seen.indices.tolist())
show("3.largest_head_attends.tokens", model.to_str_tokens(tokens[0, seen.indices]))
show("3.largest_head_attends.weights", seen.values.tolist())
del logits, cache

# 4. the direct path
one = HookedTransformer.from_pretrained("attn-only-1l", device="cpu")
for word in WORDS:
    token = one.to_single_token(word)
    row = one.W_E[token] @ one.W_U
    show(f"4.direct.{word.strip()}.top5", one.to_str_tokens(row.topk(5).indices))
    show(f"4.direct.{word.strip()}.own_rank", int((row > row[token]).sum()) + 1)
show("4.own_top_share.attn-only-1l", own_top_share(one.W_E, one.W_U))
gpt2 = HookedTransformer.from_pretrained("gpt2", device="cpu")
gpt2_cfg = gpt2.cfg
show("4.own_top_share.gpt2", own_top_share(gpt2.W_E, gpt2.W_U))
del gpt2

# 5. virtual weights
W_V, W_O = model.W_V[0, 0].T, model.W_O[0, 0].T
show("5.paper_shape.W_V", list(W_V.shape))
show("5.paper_shape.W_O", list(W_O.shape))
show("5.paper_shape.W_OV", list((W_O @ W_V).shape))
show("5.numel.W_OV", (W_O @ W_V).numel())
show("5.rank.W_OV", torch.linalg.matrix_rank(W_O @ W_V).item())
norms = torch.zeros(cfg.n_heads, cfg.n_heads)
for h1 in range(cfg.n_heads):
    for h2 in range(cfg.n_heads):
        V = model.W_V[1, h2].T @ model.W_O[0, h1].T
        norms[h1, h2] = V.norm()
show("5.virtual.shape", list(V.shape))
show("5.virtual.n_pairs", norms.numel())
for word, index in (("largest", norms.argmax()), ("smallest", norms.argmin())):
    h1, h2 = divmod(index.item(), cfg.n_heads)
    show(f"5.virtual.{word}.pair", [f"0.{h1}", f"1.{h2}"])
    show(f"5.virtual.{word}.norm", norms[h1, h2].item())
for h1 in range(cfg.n_heads):
    show(f"5.virtual.norms.0.{h1}", norms[h1].tolist())
show("5.paper_shape.W_E", list(model.W_E.T.shape))
show("5.paper_shape.W_V_W_E", list((W_V @ model.W_E.T).shape))
del model

# 6. bandwidth
for name, c in (("attn-only-2l", cfg), ("gpt2", gpt2_cfg)):
    head_dims = c.n_layers * c.n_heads * c.d_head
    neurons = 0 if c.attn_only else c.n_layers * c.d_mlp
    show(f"6.{name}.d_model", c.d_model)
    show(f"6.{name}.head_dims", head_dims)
    show(f"6.{name}.mlp_neurons", neurons)
    show(f"6.{name}.ratio", (head_dims + neurons) / c.d_model)

# 7. rotation, keeping the all-ones direction
generator = torch.Generator().manual_seed(0)  # the suite's own rotation, or the figures would not compare
d = one.cfg.d_model
basis = torch.randn(d, d, generator=generator, dtype=torch.float64)
basis[:, 0] = 1
basis = torch.linalg.qr(basis).Q
turn = torch.eye(d, dtype=torch.float64)
turn[1:, 1:] = torch.linalg.qr(torch.randn(d - 1, d - 1, generator=generator, dtype=torch.float64)).Q
R = (basis @ turn @ basis.T).float()
ones = torch.ones(d)
show("7.orthogonality_error", (R @ R.T - torch.eye(d)).abs().max().item())
show("7.ones_error", ((R @ ones - ones).abs().max() / ones.norm()).item())
tokens = one.to_tokens(PROMPT)
before, W_E = one(tokens), one.W_E.clone()
for W in (one.embed.W_E, one.pos_embed.W_pos, *(W for b in one.blocks for W in (b.attn.W_O, b.attn.b_O))):
    W.copy_(W @ R.T)
for W in (one.unembed.W_U, *(W for b in one.blocks for W in (b.attn.W_Q, b.attn.W_K, b.attn.W_V))):
    W.copy_(R @ W)
show("7.mean_W_E_change", (one.W_E - W_E).abs().mean().item())
show("7.max_logit_change", (one(tokens) - before).abs().max().item())

"""Part 2 the plain way: the figures of circuits_part2.py by TransformerLens' ordinary calls.

What a reader of the article would write: `from_pretrained` for each model, the article's own snippets,
whole products and a full argmax for each head. Prints `id <tab> JSON` under the ids of
results/part2.json, so that run.py can see that the two agree.
"""

import json

import torch
from transformer_lens import HookedTransformer

PROMPT = "I like green tea, so I drink green"
OV_WORDS = [" tea", " green", " Paris", " Obama", " coffee", " cat", " London", " Potter"]
QK_WORDS = [" in", " see", " of", " the", " drink"]


def show(id, value):
    print(id, json.dumps(value), sep="\t")


torch.set_grad_enabled(False)
one = HookedTransformer.from_pretrained("attn-only-1l", device="cpu")
two = HookedTransformer.from_pretrained("attn-only-2l", device="cpu")
cfg = one.cfg
W_Q, W_K, W_V, W_O = one.W_Q[0, 3], one.W_K[0, 3], one.W_V[0, 3], one.W_O[0, 3]
b_Q, b_K, b_V = one.b_Q[0, 3], one.b_K[0, 3], one.b_V[0, 3]

# 1. four matrices
for name, W in (("W_Q", W_Q), ("W_K", W_K), ("W_V", W_V), ("W_O", W_O)):
    show(f"1.paper_shape.{name}", list(W.T.shape))
show("1.numel_each", W_Q.numel())
for name in ("d_model", "d_head", "n_heads"):
    show(f"1.{name}", getattr(cfg, name))
show("1.score_divisor", cfg.attn_scale)

# 2. concatenate, then multiply = sum over heads
for model in (one, two):
    _, cache = model.run_with_cache(PROMPT)
    for L in range(model.cfg.n_layers):
        z = cache[f"blocks.{L}.attn.hook_z"][0]
        W_all = model.W_O[L].reshape(-1, model.cfg.d_model)
        big = z.reshape(len(z), -1) @ W_all
        summed = sum(z[:, h] @ model.W_O[L, h] for h in range(model.cfg.n_heads))
        error = summed + model.b_O[L] - cache[f"blocks.{L}.hook_attn_out"][0]
        id = f"2.{model.cfg.model_name}.{L}"
        show(f"{id}.paper_shape.W_O_all", list(W_all.T.shape))
        show(f"{id}.max_concat_minus_sum", (big - summed).abs().max().item())
        show(f"{id}.max_sum_minus_model", error.abs().max().item())
del two, model, cache

# 3. one head on a real prompt
logits, cache = one.run_with_cache(PROMPT)
words = one.to_str_tokens(PROMPT)
A = cache["blocks.0.attn.hook_pattern"][0, 3]
z = cache["blocks.0.attn.hook_z"][0, :, 3]
show("3.tokens", words)
show("3.prediction", one.to_string(logits[0, -1].argmax()))
top = A[-1].topk(3)
show("3.last_row.tokens", [words[i] for i in top.indices])
show("3.last_row.weights", top.values.tolist())
show("3.max_row_sum_error", (A.sum(-1) - 1).abs().max().item())
show("3.max_future_weight", A.triu(1).max().item())
output = z[-1] @ W_O @ one.W_U
top = output.topk(5)
show("3.head_output.tokens", one.to_str_tokens(top.indices))
show("3.head_output.logits", top.values.tolist())
show("3.rank_of_answer", int((output > output[one.to_single_token(" tea")]).sum()) + 1)
show("3.d_vocab", len(output))
X = cache["blocks.0.ln1.hook_normalized"][0]
W_OV = W_V @ W_O
r = A @ (X @ W_V + b_V)
first_A, first_W = (A @ X) @ W_OV, A @ (X @ W_OV)
show("3.three_steps_error", (r - z).abs().max().item())
show("3.tensor_form.order_error", (first_A - first_W).abs().max().item())
show("3.tensor_form.three_steps_error", (first_A - r @ W_O).abs().max().item())

# 4. the pattern in one step
Xt = torch.cat([X, torch.ones(len(X), 1)], 1)
WQt, WKt = torch.cat([W_Q, b_Q[None]]), torch.cat([W_K, b_K[None]])
scores = Xt @ (WQt @ WKt.T) @ Xt.T / cfg.d_head**0.5
pattern = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf).softmax(-1)
show("4.shape.W_QK_with_biases", list((WQt @ WKt.T).shape))
show("4.max_pattern_error", (pattern - A).abs().max().item())
show("4.last_row_scores", scores[-1].tolist())

# 5. low rank
for name, product in (("W_OV", one.OV), ("W_QK", one.QK)):
    id, W = f"5.{name}", product[0, 3].AB
    S = torch.linalg.svdvals(W)
    show(f"{id}.shape", list(W.shape))
    show(f"{id}.numel", W.numel())
    show(f"{id}.numel_factors", product[0, 3].A.numel() + product[0, 3].B.numel())
    show(f"{id}.rank", torch.linalg.matrix_rank(W).item())
    show(f"{id}.singular_values.first", S[0].item())
    show(f"{id}.singular_values.second", S[1].item())
    show(f"{id}.singular_values.at_d_head", S[cfg.d_head - 1].item())
    show(f"{id}.singular_values.after_d_head", S[cfg.d_head].item())
    show(f"{id}.singular_values.last", S[-1].item())
    for h, S in enumerate(product.S[0]):
        show(f"{id}.singular_values.head.0.{h}", S.tolist())
read = torch.linalg.svd(one.W_V[0], full_matrices=False).U
write = torch.linalg.svd(one.W_O[0].mT, full_matrices=False).U
show("5.overlap.heads", ((read.mT @ write).square().sum((-2, -1)) / cfg.d_head).tolist())
show("5.overlap.random", cfg.d_head / cfg.d_model)

# 6. reparametrising
M = torch.randn(cfg.d_head, cfg.d_head, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
M_inverse = torch.linalg.inv(M)
x, V, W = X.double(), W_V.double(), W_O.double()
show("6.values.mean_change", (x @ (V @ M) - x @ V).abs().mean().item())
show("6.values.mean_size", (x @ V).abs().mean().item())
show("6.values.max_output_change", (x @ (V @ M) @ (M_inverse @ W) - x @ V @ W).abs().max().item())
x = Xt.double()
for id, keep in (("", 1), ("_without_biases", 0)):
    Q = torch.cat([W_Q, keep * b_Q[None]]).double()
    K = torch.cat([W_K, keep * b_K[None]]).double()
    scores = x @ Q @ K.T @ x.T
    show(f"6.queries.mean_change{id}", (x @ (Q @ M) - x @ Q).abs().mean().item())
    show(f"6.queries.mean_size{id}", (x @ Q).abs().mean().item())
    change = x @ (Q @ M) @ (M_inverse @ K.T) @ x.T - scores
    show(f"6.queries.max_score_change{id}", change.abs().max().item())
    show(f"6.queries.mean_score_size{id}", scores.abs().mean().item())

# 7. the OV and QK circuits
WE = one.W_E - one.W_E.mean(1, keepdim=True)
WE = WE / WE.std(1, keepdim=True)
show("7.full_circuit_shape", [len(WE), len(WE)])
for word in OV_WORDS:
    column = (WE[one.to_single_token(word)] @ W_V @ W_O) @ one.W_U
    show(f"7.ov.{word.strip()}.top6", one.to_str_tokens(column.topk(6).indices))
tokens = torch.arange(1000, 3000)
shares = []
for h in range(cfg.n_heads):
    top = (WE[tokens] @ one.W_V[0, h] @ one.W_O[0, h] @ one.W_U).argmax(-1)
    shares.append((top == tokens).float().mean().item())
show("7.own_top_share.heads", shares)
K = WE @ W_K
for word in QK_WORDS:
    row = K @ (WE[one.to_single_token(word)] @ W_Q) / cfg.d_head**0.5
    top = row.topk(8)
    show(f"7.qk.{word.strip()}.top8", one.to_str_tokens(top.indices))
    show(f"7.qk.{word.strip()}.highest", top.values[0].item())
    show(f"7.qk.{word.strip()}.eighth", top.values[7].item())
    show(f"7.qk.{word.strip()}.median", row.median().item())

"""Every number of Part 1, "The Big Idea and the Residual Stream", section by section.

One function a section, in the article's numbering; the mathematics is called from `circuits`.
`python circuits_part1.py` writes results/part1.json and results/part1_stdout.txt.
"""

import sys

from circuits import cli

with cli.importing(__name__):
    import torch

    from circuits import architecture, heads, interventions, residual, subspaces, vocabulary

DURSLEY = (
    "Mr and Mrs Dursley, of number four, Privet Drive, were proud to say that they were perfectly normal. "
    "Mr and Mrs Durs"
)
TABLES = {
    "published": {
        "models": {"two_layers": "attn-only-2l", "one_layer": "attn-only-1l", "tied": "gpt2"},
        "prompt": DURSLEY,
        "words": [" Barack", " United", " New", " Hong", " Mr", " according", " Los"],
    },
    "mini": {
        "models": {"two_layers": "mini-2l", "one_layer": "mini-1l", "tied": "mini-tied-1l"},
        "prompt": DURSLEY,
        "words": [" United", " White", " fellow", " according", " raise", " North", " Middle", " New"],
    },
}
ORDINARY = torch.arange(1000, 3000)  # the article's 2,000 ordinary tokens
SEED = 0
SAMPLES = 300  # random pairs behind every baseline
TWICE, ROWS = 100, 16  # random tokens that are said twice, and in how many rows


def sections(report, table, checkpoints):
    two, one, tied = (checkpoints[role] for role in ("two_layers", "one_layer", "tied"))
    model = two.model()
    section_1_sizes(report, model)
    section_2_folding(report, model, two.model(folded=False), table["prompt"])
    section_3_residual_stream(report, model, table["prompt"])
    one_layer = one.model()
    section_4_direct_path(report, one_layer, one.name, tied, table["words"])
    section_5_virtual_weights(report, model)
    section_6_bandwidth(report, two, tied)
    del model  # the next needs the memory
    section_7_rotation(report, one_layer, table["prompt"])


def explore(report, model, asked):
    """The same sections on any one folded model, for what is `asked` (`explore.ask`)."""
    architecture.check(model.cfg, folded=True)
    section_1_sizes(report, model)
    section_2_folding(report, model, asked.unfolded, asked.prompt)
    section_3_residual_stream(report, model, asked.prompt)
    section_4_direct_path(report, model, model.cfg.model_name, None, asked.words)
    section_5_virtual_weights(report, model)
    section_6_bandwidth(report, model)
    section_7_rotation(report, model, asked.prompt)


def section_1_sizes(report, model):
    cfg = model.cfg
    report.section(1, f"The model in four equations: its sizes ({cfg.model_name})")
    for name in ("n_layers", "n_heads", "d_model", "d_head", "d_vocab", "n_ctx", "attn_only"):
        report.quantity(f"1.{name}", name, getattr(cfg, name))
    for name, value in architecture.beyond(cfg).items():
        report.quantity(f"1.{name}", name, value)
    report.quantity("1.n_params", "parameters", architecture.n_params(model))
    for name in architecture.matrices(cfg):
        report.quantity(f"1.shape.{name}", f"shape of {name}", list(getattr(model, name).shape))
    ends = model.W_E.numel() + model.W_U.numel()
    report.quantity("1.n_params_embed_unembed", "parameters in W_E and W_U", ends)


def section_2_folding(report, model, unfolded, prompt):
    report.section(2, "Folding layer norm into the weights")
    tokens = vocabulary.tokens(model, prompt)
    among = ", BOS among them" if model.cfg.default_prepend_bos else ""
    report.quantity("2.n_tokens", f"tokens of the prompt{among}", len(tokens))
    if unfolded is None:
        report.say("  only the folded form of this model is at hand, so there is no other to compare it with")
        return
    log_probs, sizes = [], []
    for form in (model, unfolded):
        _, logits, cache = residual.run(form, prompt)
        log_probs.append(logits.log_softmax(-1))
        sizes.append(residual.logit_size(logits, cache, form.cfg.n_layers))
    change, size = (log_probs[0] - log_probs[1]).abs().max(), max(sizes)
    report.small("2.max_log_prob_change", "largest change in a log-probability", change.item(), 7.8e-4, size)


def section_3_residual_stream(report, model, prompt):
    report.section(3, f"The residual stream at the last position, taken apart ({model.cfg.model_name})")
    tokens, logits, cache = residual.run(model, prompt)
    pos = len(tokens) - 1
    text = vocabulary.reader(model)
    answer = int(logits[pos].argmax())
    top = logits[pos].softmax(-1).topk(5)
    report.quantity("3.last_tokens", "last tokens", [text(t) for t in tokens[-6:]])
    report.quantity("3.prediction", "the model predicts", text(answer))
    report.quantity("3.top5.tokens", "top 5", [text(t) for t in top.indices])
    report.quantity("3.top5.probabilities", "their probabilities", top.values.tolist())

    written = residual.pieces(model, cache, pos)
    stream = cache["resid_post", model.cfg.n_layers - 1][0, pos]
    total = sum(written.values())
    report.quantity("3.n_parts", "parts of the stream", len(written))
    error, size = (total - stream).abs().max().item(), sum(x.abs() for x in written.values()).max().item()
    report.small("3.max_sum_error", "|sum of parts - stream| max", error, 2.4e-5, size)
    report.quantity("3.final_norm", "norm of the stream", stream.norm().item())
    report.quantity("3.real_first4", "first 4 coordinates of the stream", stream[:4].tolist())
    report.quantity("3.sum_first4", "first 4 coordinates of the sum", total[:4].tolist())

    scale = residual.final_scale(model, cache, pos)
    centred = architecture.centres(model.cfg)
    shares = residual.logit_shares(written, scale, model.W_U, model.b_U, answer, centred)
    logit = logits[pos, answer].item()
    report.quantity("3.ln_scale", "size that the last layer norm divides by", scale.item())
    report.say(f"  what each part adds to the logit of {text(answer)!r}, largest first:")
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        report.quantity(f"3.share.{name}", f"  {name}", share)
    report.quantity("3.sum_of_shares", "sum of all lines", sum(shares.values()))
    report.quantity("3.logit", "the model's logit", logit)
    error, size = abs(sum(shares.values()) - logit), sum(map(abs, shares.values()))
    report.small("3.max_share_error", "|sum - logit|", error, 2e-4, size)

    layer, head = max(residual.heads(model), key=lambda lh: shares["{}.{}".format(*lh)])
    report.quantity("3.largest_head", "the head with the largest share", f"{layer}.{head}")
    fraction = shares[f"{layer}.{head}"] / logit if logit else 0.0
    report.quantity("3.largest_head_fraction", "its fraction of the logit", fraction)
    seen = cache["pattern", layer][0, head, pos].topk(min(3, len(tokens)))
    report.quantity("3.largest_head_attends.positions", "positions it attends to most", seen.indices.tolist())
    report.quantity("3.largest_head_attends.tokens", "  tokens", [text(t) for t in tokens[seen.indices]])
    report.quantity("3.largest_head_attends.weights", "  weights", seen.values.tolist())
    confirm_by_removal(report, model, cache, pos, written, shares, answer)
    confirm_by_ablation(report, model, tokens, logits, layer, head)


def confirm_by_removal(report, model, cache, pos, written, shares, answer):
    """Take one piece at a time out of the final stream: at a held scale the logit falls by its share."""
    stream = cache["resid_post", model.cfg.n_layers - 1][0, pos]
    hold = interventions.hold_scale(model, residual.final_scale(model, cache, pos))
    logit, held, moved = (
        interventions.without_each(model, pieces, stream, hooks)[:, answer]
        for pieces, hooks in (({"nothing": 0 * stream}, []), (written, hold), (written, []))
    )
    of_pieces = torch.tensor([shares[name] for name in written])
    report.say("  the pieces taken out of the stream, one at a time:")
    deviation = (logit - held - of_pieces).abs().max().item()
    id, size = "3.removal.scale_held.max_deviation", sum(map(abs, shares.values()))
    report.small(id, "scale held: |fall - share| max", deviation, 1e-4, size)
    report.say("  scale moving: how far the logit falls")
    falls = dict(zip(written, (logit - moved).tolist(), strict=True))
    for name in sorted(written, key=shares.get, reverse=True):
        report.quantity(
            f"3.removal.scale_moves.{name}", f"  {name}, of share {shares[name]:.4g}", falls[name]
        )


def confirm_by_ablation(report, model, tokens, logits, layer, head):
    """Take the head out of the model itself, at every position, and let it predict again."""
    ablate = interventions.set_result(layer, head, torch.zeros(()))
    after = model.run_with_hooks(tokens[None], fwd_hooks=[ablate])[0, -1]
    answer, text = int(logits[-1].argmax()), vocabulary.reader(model)
    report.say(f"  head {layer}.{head} taken out of the model, {text(answer)!r}:")
    for word, scores in (("before", logits[-1]), ("after", after)):
        probability = scores.softmax(-1)[answer].item()
        report.quantity(f"3.ablated.probability.{word}", f"  probability {word}", probability)
    report.quantity("3.ablated.logit_fall", "  how far the logit falls", (logits[-1] - after)[answer].item())
    report.quantity("3.ablated.place", "  its place then, among all tokens", vocabulary.place(after, answer))


def section_4_direct_path(report, model, name, tied, words):
    report.section(4, "The direct path W_U W_E: next tokens from the token alone, no text run")
    text = vocabulary.reader(model)
    W_E, ordinary = vocabulary.embeddings(model), vocabulary.ordinary(model.cfg.d_vocab)
    for key, word, token in vocabulary.entries(model, words):
        scores = vocabulary.direct_path(W_E, model.W_U, token)
        id = f"4.direct.{key}"
        report.record(f"{id}.word", word)
        report.quantity(f"{id}.top5", f"after {word!r} ({name})", [text(t) for t in scores.topk(5).indices])
        report.quantity(f"{id}.own_rank", "  rank of the token itself", vocabulary.place(scores, token))
    which = f"{ordinary[0]}..{ordinary[-1]}"
    report.say(f"  share of tokens {which} whose top direct-path prediction is the token itself:")
    share = vocabulary.own_top_share(W_E[ordinary], model.W_U, ordinary)
    report.quantity(f"4.own_top_share.{name}", f"  {name}{', W_U free' if tied else ''}", share)
    if tied is None:
        return
    ends = tied.folded()
    rows = ends.pop("embed.W_E")[ORDINARY]
    share = vocabulary.own_top_share(rows, ends["unembed.W_U"], ORDINARY)
    report.quantity(f"4.own_top_share.{tied.name}", f"  {tied.name}, W_U tied to W_E", share)


def section_5_virtual_weights(report, model):
    report.section(5, f"Reading, writing and virtual weights ({model.cfg.model_name}, the paper's shapes)")
    W_V, W_O = model.W_V[0, 0].T, model.W_O[0, 0].T  # the paper writes vectors as columns
    W_OV = W_O @ W_V
    report.quantity("5.paper_shape.W_V", "head 0.0 reads with W_V", list(W_V.shape))
    report.quantity("5.paper_shape.W_O", "  and writes with W_O", list(W_O.shape))
    report.quantity("5.paper_shape.W_OV", "  W_O W_V", list(W_OV.shape))
    report.quantity("5.numel.W_OV", "  numbers in it", W_OV.numel())
    report.quantity("5.rank.W_OV", "  its rank", subspaces.rank(torch.linalg.svdvals(W_OV), W_OV.shape))

    if model.cfg.n_layers == 1:
        report.say("  one layer has no virtual weights: no head reads what another has written")
    else:
        virtual_weights_of_pairs(report, model)
    report.quantity("5.paper_shape.W_E", "the embedding writes too: W_E", list(model.W_E.T.shape))
    report.quantity(
        "5.paper_shape.W_V_W_E", "  head 0.0 reading it: W_V W_E", list((W_V @ model.W_E.T).shape)
    )
    if model.cfg.n_layers > 1 and model.cfg.d_head < model.cfg.d_model:
        composition_beside_random(report, model)


def virtual_weights_of_pairs(report, model):
    virtual = subspaces.virtual_weights(model.W_O[0], model.W_V[1])  # [writer, reader, d_head, d_head]
    norms = virtual.norm(dim=(-2, -1))
    report.quantity("5.virtual.shape", "one virtual weight", list(virtual.shape[2:]))
    report.quantity("5.virtual.n_pairs", "pairs of heads", norms.numel())
    for word, index in (("largest", norms.argmax()), ("smallest", norms.argmin())):
        writer, reader = divmod(int(index), len(norms))
        report.quantity(f"5.virtual.{word}.pair", f"{word}: from, to", [f"0.{writer}", f"1.{reader}"])
        report.quantity(f"5.virtual.{word}.norm", "  its Frobenius norm", norms[writer, reader].item())
    for writer, row in enumerate(norms.tolist()):
        report.record(f"5.virtual.norms.0.{writer}", row)


def composition_beside_random(report, model):
    """Every pair's composition score beside random matrices, and whether induction K-composes."""
    generator = torch.Generator().manual_seed(SEED)
    dimensions = subspaces.dimensions_left(model.cfg)
    whole, factors = subspaces.random_compositions(dimensions, model.cfg.d_head, SAMPLES, generator)
    W_Q, W_K, W_V, W_O = model.W_Q, model.W_K, model.W_V, model.W_O
    out_of_layer_0 = W_V[0], W_O[0]
    labels = {"virtual": "virtual weights W_V W_O"} | {kind: f"{kind}-composition" for kind in "VKQ"}
    scores = {
        "virtual": (subspaces.composition(W_O[0], W_V[1]), factors),
        "V": (subspaces.composition_scores(*out_of_layer_0, W_V[1], W_O[1].mT), whole),
    }
    if not architecture.no_single_W_QK(model.cfg):
        scores["K"] = subspaces.composition_scores(*out_of_layer_0, W_K[1], W_Q[1]), whole
        scores["Q"] = subspaces.composition_scores(*out_of_layer_0, W_Q[1], W_K[1]), whole
    report.say(f"  composition scores ‖W_1 W_2‖ / (‖W_1‖ ‖W_2‖), beside {SAMPLES} pairs of random heads")
    deviations = {}
    for kind, (score, random) in scores.items():
        id, label = f"5.composition.{kind}", labels[kind]
        deviations[kind] = (score - random.mean()) / random.std()
        report.quantity(f"{id}.random.mean", f"{label}: random mean", random.mean().item())
        report.quantity(f"{id}.random.deviation", "  standard deviation", random.std().item())
        report.quantity(f"{id}.mean", f"  mean of the model's {score.numel()} pairs", score.mean().item())
        best = score.flatten().topk(min(5, score.numel()))
        named = [f"0.{i // len(score.T)} → 1.{i % len(score.T)}" for i in best.indices.tolist()]
        report.quantity(f"{id}.largest.pairs", "  largest: from, to", named)
        report.quantity(f"{id}.largest.scores", "    scores", best.values.tolist())
        for word, out in (("above", deviations[kind] > 3), ("below", deviations[kind] < -3)):
            pairs = [f"0.{i} → 1.{j}" for i, j in out.nonzero().tolist()]
            report.quantity(f"{id}.{word}.n_pairs", f"  pairs more than three deviations {word}", len(pairs))
            report.record(f"{id}.{word}.pairs", pairs)
        for writer, row in enumerate(score.tolist()):
            report.record(f"{id}.scores.0.{writer}", row)

    length = min(TWICE, (model.cfg.n_ctx - 1) // 2)
    tokens = heads.said_twice(model.cfg.d_vocab, model.tokenizer.bos_token_id, length, ROWS, generator)
    _, cache = model.run_with_cache(tokens, stop_at_layer=2, names_filter=lambda n: n.endswith("pattern"))
    before = heads.looks_back(cache["pattern", 0], by=1, start=1)
    again = heads.looks_back(cache["pattern", 1], by=length - 1, start=length + 1)
    report.say(f"  attention on {ROWS} rows of {length} random tokens said twice")
    report.quantity("5.previous_token.heads", "to the previous token, heads of layer 0", before.tolist())
    report.quantity("5.induction.heads", "to what followed the same token, layer 1", again.tolist())
    if "K" not in scores:
        return
    writer, reader = int(before.argmax()), int(again.argmax())
    K, id = scores["K"][0], "5.induction_with_previous_token"
    report.quantity(f"{id}.pair", "most of each: from, to", [f"0.{writer}", f"1.{reader}"])
    report.quantity(f"{id}.K_composition", "  their K-composition", K[writer, reader].item())
    report.quantity(f"{id}.deviations", "  deviations above random", deviations["K"][writer, reader].item())
    above = (K[writer, reader] - K.mean()) / K.std(correction=0).clamp_min(torch.finfo(K.dtype).tiny)
    report.quantity(f"{id}.deviations_among_pairs", "  deviations above the model's pairs", above.item())
    place = vocabulary.place(K.flatten(), writer * len(K.T) + reader)
    report.quantity(f"{id}.place", f"  its place among {K.numel()} pairs", place)


def section_6_bandwidth(report, *checkpoints):
    report.section(6, "Bandwidth: dimensions that write, for each dimension of the stream")
    for checkpoint in checkpoints:
        name, cfg = architecture.named(checkpoint)
        id = f"6.{name}"
        head_dims = cfg["n_layers"] * cfg["n_heads"] * cfg["d_head"]
        mlp_neurons = 0 if cfg.get("attn_only") else cfg["n_layers"] * cfg["d_mlp"]
        report.quantity(f"{id}.d_model", f"{name}: dimensions of the stream", cfg["d_model"])
        report.quantity(f"{id}.head_dims", "  dimensions that heads write", head_dims)
        report.quantity(f"{id}.mlp_neurons", "  MLP neurons", mlp_neurons)
        report.quantity(f"{id}.ratio", "  ratio", (head_dims + mlp_neurons) / cfg["d_model"])


def section_7_rotation(report, model, prompt):
    report.section(7, f"Rotating the residual stream ({model.cfg.model_name})")
    if model.cfg.post_embedding_ln:
        report.say("  the embedding is normalised before it is written, each dimension by its own weight:")
        report.say("  that norm has a privileged basis, and this stream cannot be turned")
        return
    R = residual.rotation(model.cfg.d_model, torch.Generator().manual_seed(SEED)).float()
    turned = residual.rotated(model, R)
    eye, ones = torch.eye(len(R)), torch.ones(len(R))
    report.small("7.orthogonality_error", "|R Rᵀ - I| max", (R @ R.T - eye).abs().max().item(), 1.3e-5)
    report.small(
        "7.ones_error", "|R 1 - 1| max / |1|", ((R @ ones - ones).abs().max() / ones.norm()).item(), 8.6e-7
    )
    change = (turned["embed.W_E"] - model.W_E).abs().mean()
    report.quantity("7.mean_W_E_change", "mean |change| of a number of W_E", change.item())
    tokens, logits, cache = residual.run(model, prompt)
    error = (torch.func.functional_call(model, turned, (tokens[None],))[0] - logits).abs().max().item()
    size = residual.logit_size(logits, cache, model.cfg.n_layers)
    report.small("7.max_logit_change", "largest change in a logit", error, 9.6e-4, size)


if __name__ == "__main__":
    sys.exit(cli.run("part1", sections, TABLES, explore))

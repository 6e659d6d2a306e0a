"""Every number of Part 2, "One Attention Head, Taken Apart", section by section.

One function a section, in the article's numbering; the mathematics is called from `circuits`.
`python circuits_part2.py` writes results/part2.json and results/part2_stdout.txt.
"""

import sys

from circuits import cli

with cli.importing(__name__):
    import torch

    from circuits import architecture, heads, interventions, residual, subspaces, vocabulary
    from circuits.report import FLOAT64

TEA = "I like green tea, so I drink green"
COFFEE = "I like black coffee, so I drink black"  # of the same length, for its values
TABLES = {
    "published": {
        "models": {"one_layer": "attn-only-1l", "two_layers": "attn-only-2l"},
        "head": "0.3",
        "prompt": TEA,
        "other_prompt": COFFEE,
        "answer": " tea",
        "ov_words": [" tea", " green", " Paris", " Obama", " coffee", " cat", " London", " Potter"],
        "qk_words": [" in", " see", " of", " the", " drink"],
    },
    "mini": {
        "models": {"one_layer": "mini-1l", "two_layers": "mini-2l"},
        "head": "0.1",
        "prompt": TEA,
        "other_prompt": COFFEE,
        "answer": " tea",
        "ov_words": [" tea", " green", " Paris", " coffee", " cat", " London"],
        "qk_words": [" in", " see", " of", " the", " drink"],
    },
}
ORDINARY = torch.arange(1000, 3000)  # the article's 2,000 ordinary tokens
SEED = 0
SAMPLES = 300  # random pairs behind a baseline


def sections(report, table, checkpoints):
    layers_of_two = attention_layers(checkpoints["two_layers"].model(), table["prompt"])
    model = checkpoints["one_layer"].model()  # after the other is gone: one at a time in memory
    layer, head = map(int, table["head"].split("."))
    section_1_matrices(report, model, layer, head)
    section_2_heads_add(report, attention_layers(model, table["prompt"]) + layers_of_two)
    x = section_3_one_head(
        report, model, layer, head, table["prompt"], table["answer"], table["other_prompt"]
    )
    section_4_pattern(report, model, layer, head, table["prompt"])
    section_5_low_rank(report, model, layer, head)
    section_6_reparametrising(report, model, layer, head, x)
    section_7_circuits(report, model, layer, head, table["ov_words"], table["qk_words"])


def explore(report, model, asked):
    """The same sections on any head of any one folded model, for what is `asked` (`explore.ask`)."""
    architecture.check(model.cfg, heads=True, folded=True)
    layer, head = asked.head
    section_1_matrices(report, model, layer, head)
    section_2_heads_add(report, attention_layers(model, asked.prompt))
    x = section_3_one_head(report, model, layer, head, asked.prompt, asked.answer)
    section_4_pattern(report, model, layer, head, asked.prompt)
    section_5_low_rank(report, model, layer, head)
    section_6_reparametrising(report, model, layer, head, x)
    section_7_circuits(report, model, layer, head, asked.words, asked.words)


def section_1_matrices(report, model, layer, head):
    report.section(
        1, f"One head, four matrices ({model.cfg.model_name}, head {layer}.{head}, the paper's shapes)"
    )
    report.record("1.head", f"{layer}.{head}")
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        W = getattr(model, name)[layer, head].T  # the paper writes vectors as columns
        report.quantity(f"1.paper_shape.{name}", name, list(W.shape))
    report.quantity("1.numel_each", "numbers in each", W.numel())
    for name in ("d_model", "d_head", "n_heads"):
        report.quantity(f"1.{name}", name, getattr(model.cfg, name))
    if shared := architecture.key_value_group(model.cfg, head):
        group, members = shared
        report.quantity("1.key_value_group", "W_K and W_V are those of its group", group)
        report.quantity(
            "1.key_value_group.heads", "  heads that share them", [f"{layer}.{h}" for h in members]
        )
    divisor, root = heads.score_divisor(model, layer), "" if heads.divides_by_root(model, layer) else ", not"
    report.quantity("1.score_divisor", f"scores are divided by{root} sqrt(d_head)", divisor)


def attention_layers(model, prompt):
    """(model, layer, result vectors z, W_O, b_O, what the layer wrote) of each layer on a prompt."""
    _, _, cache = residual.run(model, prompt)
    return [
        (model.cfg.model_name, layer, cache["z", layer][0], W_O, b_O, cache["attn_out", layer][0])
        for layer, (W_O, b_O) in enumerate(zip(model.W_O, model.b_O, strict=True))
    ]


def section_2_heads_add(report, layers):
    report.section(2, "Concatenate, then multiply = each head through its own slice of W_O, then add")
    for name, layer, z, W_O, b_O, attn_out in layers:
        at_once, each = heads.concatenated(z, W_O), heads.summed(z, W_O)
        written = sum((z[:, head] @ W_O[head]).abs() for head in range(len(W_O)))
        size = (written + b_O.abs()).max().item()
        id, shape = f"2.{name}.{layer}", list(W_O.flatten(0, 1).T.shape)
        report.quantity(f"{id}.paper_shape.W_O_all", f"{name} layer {layer}: all of W_O", shape)
        error = (at_once - each).abs().max().item()
        report.small(f"{id}.max_concat_minus_sum", "  |concat - sum| max", error, 1.2e-5, size)
        error = (each + b_O - attn_out).abs().max().item()
        report.small(f"{id}.max_sum_minus_model", "  |sum + b_O - model| max", error, 3.5e-5, size)


def section_3_one_head(report, model, layer, head, prompt, answer, other_prompt=None):
    report.section(3, f"One head on a real prompt ({model.cfg.model_name}, head {layer}.{head})")
    tokens, logits, cache = residual.run(model, prompt)
    text = vocabulary.reader(model)
    A = cache["pattern", layer][0, head]
    report.quantity("3.tokens", "prompt", [text(t) for t in tokens])
    report.quantity("3.prediction", "the model predicts next", text(logits[-1].argmax()))
    seen = A[-1].topk(min(3, len(tokens)))
    report.quantity(
        "3.last_row.tokens", "the last token attends most to", [text(t) for t in tokens[seen.indices]]
    )
    report.quantity("3.last_row.weights", "  with weights", seen.values.tolist())
    report.record("3.pattern", A.tolist())
    report.small("3.max_row_sum_error", "|row sum - 1| max", (A.sum(-1) - 1).abs().max().item(), 1.2e-6, 1.0)
    report.quantity("3.max_future_weight", "largest weight on the future", A.triu(1).max().item())

    output = cache["z", layer][0, -1, head] @ model.W_O[layer, head] @ model.W_U  # before the last layer norm
    top = output.topk(5)
    report.quantity(
        "3.head_output.tokens", "its output at the last token, read with W_U", [text(t) for t in top.indices]
    )
    report.quantity("3.head_output.logits", "  by, before the last layer norm", top.values.tolist())
    [(_, answer, token)] = vocabulary.entries(model, [answer])
    report.quantity("3.rank_of_answer", f"  rank of {answer!r}", vocabulary.place(output, token))
    report.quantity("3.d_vocab", "  among tokens", len(output))

    x = residual.head_input(model, cache, layer)  # the stream as the head sees it
    W_OV = heads.W_OV(model, layer, head)
    r, h = heads.three_steps(x, A, W_OV.A, model.b_V[layer, head], W_OV.B)
    error = (r - cache["z", layer][0, :, head]).abs().max().item()
    h = h - model.b_V[layer, head] @ W_OV.B  # zero where folding has moved b_V into b_O
    first_A, first_W = (A @ x) @ W_OV.AB, A @ (x @ W_OV.AB)
    size = (x @ W_OV.A).abs().max().item()
    report.small("3.three_steps_error", "three steps by hand: |r - model's r| max", error, 1e-6, size)
    size = (x @ W_OV.AB).abs().max().item()
    report.small(
        "3.tensor_form.order_error",
        "(A ⊗ W_OV) x: |A first - W_OV first| max",
        (first_A - first_W).abs().max().item(),
        1.7e-5,
        size,
    )
    report.small(
        "3.tensor_form.three_steps_error",
        "  |A first - three steps| max",
        (first_A - h).abs().max().item(),
        1.4e-5,
        size,
    )
    confirm_one_head(report, model, layer, head, tokens, logits, cache, other_prompt)
    return x


def confirm_one_head(report, model, layer, head, tokens, logits, cache, other_prompt):
    """Take the head out, then give it another prompt's values, beside what A times the OV column says."""
    answer, text = int(logits[-1].argmax()), vocabulary.reader(model)
    A, x = cache["pattern", layer][0, head], residual.head_input(model, cache, layer)
    W_OV, b_V = heads.W_OV(model, layer, head), model.b_V[layer, head]
    scale, centred = residual.final_scale(model, cache, -1), architecture.centres(model.cfg)
    column = residual.logit_direction(model.W_U, scale, answer, centred)

    def said(x):
        """The last row of A times the entries for `answer` of the OV columns of `x`."""
        return (A[-1] @ (x @ W_OV.A @ (W_OV.B @ column))).item()

    def change(r, *hooks):
        """The model's logit of `answer` with the head's result vectors `r`, less the logit it had."""
        hooks = [interventions.set_result(layer, head, r), *hooks]
        return (model.run_with_hooks(tokens[None], fwd_hooks=hooks)[0, -1] - logits[-1])[answer].item()

    x_tokens = vocabulary.as_read(model, tokens)
    cases = [("ablated", "the head taken out", torch.zeros(()), -said(x), -said(x_tokens))]
    if other_prompt is not None:
        others, _, other_cache = residual.run(model, other_prompt)
        if len(others) == len(tokens):
            x_other = residual.head_input(model, other_cache, layer)
            swapped, _ = heads.three_steps(x_other, A, W_OV.A, b_V, W_OV.B)
            of_tokens = said(vocabulary.as_read(model, others)) - said(x_tokens)
            label = f"its pattern kept, values of {other_prompt!r}"
            cases.append(("swapped", label, swapped, said(x_other) - said(x), of_tokens))
            report.record("3.swapped.prompt", other_prompt)
        else:
            lengths = f"{len(others)} tokens, not {len(tokens)}"
            report.say(f"  its values are not swapped for those of {other_prompt!r}: {lengths}")
    if layer < model.cfg.n_layers - 1:
        report.say("  later layers read what it writes: in the model more changes than it adds to the logit")
    for id, label, r, of_stream, of_tokens in cases:
        report.say(f"  {label}: the logit of {text(answer)!r} changes by")
        report.quantity(f"3.{id}.logit_change", "  in the model", change(r))
        held = change(r, *interventions.hold_scale(model, scale))
        report.quantity(f"3.{id}.logit_change.scale_held", "  the last layer norm's scale held", held)
        report.quantity(f"3.{id}.said_by_OV.stream", "  A times the OV columns of its stream", of_stream)
        report.quantity(f"3.{id}.said_by_OV.tokens", "  A times the OV columns of its tokens", of_tokens)


def section_4_pattern(report, model, layer, head, prompt):
    report.section(4, "The pattern in one step: A = softmax(x W_QK xᵀ), without keys or queries")
    if reason := architecture.no_single_W_QK(model.cfg):
        report.say(f"  {reason}")
        return
    _, _, cache = residual.run(model, prompt)
    W_QK = heads.W_QK_with_biases(model, layer, head)
    divisor, window = heads.score_divisor(model, layer), heads.attention_window(model, layer)
    x = residual.head_input(model, cache, layer)
    A, scores = heads.pattern_in_one_step(x, W_QK, model.cfg.d_head, divisor, window)
    report.quantity("4.shape.W_QK_with_biases", "W_QK with the biases folded in", list(W_QK.AB.shape))
    error = (A - cache["pattern", layer][0, head]).abs().max().item()
    size = scores.abs().max().item()
    report.small("4.max_pattern_error", "|A from W_QK - model's A| max", error, 6e-6, size)
    report.quantity("4.last_row_scores", "scores of the last row", scores[-1].tolist())


def section_5_low_rank(report, model, layer, head):
    d_head = model.cfg.d_head
    report.section(5, f"W_OV and W_QK are low-rank ({model.cfg.model_name}, head {layer}.{head})")
    for name, product, zero in (("W_OV", heads.W_OV, 8.8e-6), ("W_QK", heads.W_QK, 2.7e-6)):
        id, W = f"5.{name}", product(model, layer, head)
        S = torch.linalg.svdvals(W.AB)  # of the product, not the factors: that the rest vanish is the finding
        report.quantity(f"{id}.shape", name, list(W.AB.shape))
        report.quantity(f"{id}.numel", "  numbers in it", W.AB.numel())
        report.quantity(f"{id}.numel_factors", "  numbers in its two factors", W.A.numel() + W.B.numel())
        report.quantity(f"{id}.rank", "  rank", subspaces.rank(S, W.AB.shape))
        report.quantity(f"{id}.singular_values.first", "  singular values: σ1", S[0].item())
        report.quantity(f"{id}.singular_values.second", "    σ2", S[1].item())
        report.quantity(f"{id}.singular_values.at_d_head", f"    σ{d_head}", S[d_head - 1].item())
        if d_head < len(S):
            after, last = S[d_head].item(), S[-1].item()
            report.small(f"{id}.singular_values.after_d_head", f"    σ{d_head + 1}", after, zero, S[0].item())
            report.small(f"{id}.singular_values.last", f"    σ{len(S)}", last, 1e-7, S[0].item())
        runs = subspaces.nearly_equal(S[:d_head])
        report.quantity(f"{id}.singular_values.nearly_equal", "    equal within 1 %, so not apart", runs)
        for lh in residual.heads(model):
            factors = product(model, *lh)
            S = subspaces.singular_values(factors.A, factors.B)
            report.record("{}.singular_values.head.{}.{}".format(id, *lh), S.tolist())

    report.say("  overlap of the subspaces that W_OV reads and writes (1: the same, 0: at right angles)")
    overlaps = [
        subspaces.overlap(subspaces.column_space(model.W_V[lh]), subspaces.column_space(model.W_O[lh].T))
        for lh in residual.heads(model)
    ]
    report.quantity("5.overlap.heads", f"  by head, {every_head(model)}", overlaps)
    report.quantity(
        "5.overlap.random", "  two random subspaces: d_head / d_model", d_head / model.cfg.d_model
    )
    dimensions, generator = subspaces.dimensions_left(model.cfg), torch.Generator().manual_seed(SEED)
    random = subspaces.random_overlaps(dimensions, d_head, SAMPLES, generator)
    report.say(f"  {SAMPLES} random pairs in the {dimensions} dimensions that layer norm leaves")
    report.quantity("5.overlap.random_pairs.mean", "  mean", random.mean().item())
    report.quantity("5.overlap.random_pairs.deviation", "  standard deviation", random.std().item())
    deviations = ((torch.tensor(overlaps) - random.mean()) / random.std()).tolist()
    report.quantity("5.overlap.deviations", "  by head, deviations above that mean", deviations)


def section_6_reparametrising(report, model, layer, head, x):
    report.section(6, "Change values and queries with any invertible M: the head does not change (float64)")
    generator = torch.Generator().manual_seed(SEED)
    x = x.double()  # [pos, d_model]
    W_Q, W_K, W_V, W_O = (getattr(model, name)[layer, head].double() for name in ("W_Q", "W_K", "W_V", "W_O"))
    b_Q, b_K = model.b_Q[layer, head].double(), model.b_K[layer, head].double()
    M = torch.randn(len(b_Q), len(b_Q), generator=generator, dtype=torch.float64)

    new_V, new_O = heads.reparametrised(W_V, W_O, M)
    report.quantity(
        "6.values.mean_change", "values: mean |change|", (x @ new_V - x @ W_V).abs().mean().item()
    )
    report.quantity("6.values.mean_size", "  mean size", (x @ W_V).abs().mean().item())
    change = (x @ new_V @ new_O - x @ W_V @ W_O).abs().max()
    rounding = FLOAT64 * torch.linalg.cond(M).item()
    size = rounding * (x @ W_V @ W_O).abs().max().item()
    report.small("6.values.max_output_change", "  head's output: max |change|", change.item(), 1e-11, size)

    if model.cfg.positional_embedding_type == "rotary":
        report.say(
            "  queries: rotary positions turn them between W_Q and W_K, so M may not be just any matrix"
        )
        return
    x = torch.cat([x, torch.ones_like(x[:, :1])], 1)  # the always-1 column of section 4 holds the biases
    for id, label, left, right in (
        ("", "", torch.cat([W_Q, b_Q[None]]), torch.cat([W_K, b_K[None]]).T),
        (
            "_without_biases",
            " (no biases)",
            torch.cat([W_Q, 0 * b_Q[None]]),
            torch.cat([W_K, 0 * b_K[None]]).T,
        ),
    ):
        new_left, new_right = heads.reparametrised(left, right, M)
        q, scores = x @ left, x @ left @ right @ x.T
        change = (x @ new_left @ new_right @ x.T - scores).abs().max()
        report.quantity(
            f"6.queries.mean_change{id}",
            f"queries{label}: mean |change|",
            (x @ new_left - q).abs().mean().item(),
        )
        report.quantity(f"6.queries.mean_size{id}", "  mean size", q.abs().mean().item())
        size = rounding * scores.abs().max().item()
        report.small(
            f"6.queries.max_score_change{id}", "  query-key scores: max |change|", change.item(), 1e-9, size
        )
        report.quantity(
            f"6.queries.mean_score_size{id}", "  mean size of a score", scores.abs().mean().item()
        )


def section_7_circuits(report, model, layer, head, ov_words, qk_words):
    report.section(
        7, f"The OV and QK circuits, from the weights only ({model.cfg.model_name}, head {layer}.{head})"
    )
    text = vocabulary.reader(model)
    W_Q, W_K, W_V, W_O = (getattr(model, name)[layer, head] for name in ("W_Q", "W_K", "W_V", "W_O"))
    x, ordinary = vocabulary.as_read(model), vocabulary.ordinary(model.cfg.d_vocab)
    if layer > 0:
        report.say("  of the embeddings alone: the head also reads what the layers before it have written")
    report.quantity("7.full_circuit_shape", "each full circuit", [len(x), len(x)])
    for key, word, token in vocabulary.entries(model, ov_words):
        top, id = vocabulary.ov_column(x[token], W_V, W_O, model.W_U).topk(6), f"7.ov.{key}"
        report.record(f"{id}.word", word)
        report.quantity(f"{id}.top6", f"OV  reading {word!r} raises", [text(t) for t in top.indices])
        report.record(f"{id}.top6.values", top.values.tolist())
    shares = [
        vocabulary.own_top_share(x[ordinary] @ model.W_V[lh], model.W_O[lh] @ model.W_U, ordinary)
        for lh in residual.heads(model)
    ]
    which = f"{ordinary[0]}..{ordinary[-1]}"
    report.say(f"  share of tokens {which} whose top OV output is the token itself")
    report.quantity("7.own_top_share.heads", f"  by head, {every_head(model)}", shares)
    whole_circuits(report, model, layer, x)
    if architecture.no_single_W_QK(model.cfg):
        report.say("  QK scores at distance zero, where positions change nothing")
    keys, divisor = x @ W_K, heads.score_divisor(model, layer)
    for key, word, token in vocabulary.entries(model, qk_words):
        scores = vocabulary.qk_row(x[token], W_Q, keys, divisor)
        top, id = scores.topk(8), f"7.qk.{key}"
        report.record(f"{id}.word", word)
        report.quantity(f"{id}.top8", f"QK  from {word!r} looks most for", [text(t) for t in top.indices])
        report.record(f"{id}.top8.values", top.values.tolist())
        report.quantity(f"{id}.highest", "  highest score", top.values[0].item())
        report.quantity(f"{id}.eighth", "  eighth", top.values[7].item())
        report.quantity(f"{id}.median", "  median", scores.median().item())


def every_head(model):
    return "{}.{} to {}.{}".format(*residual.heads(model)[0], *residual.heads(model)[-1])


def whole_circuits(report, model, layer, x):
    """Copying measured on whole circuits: own tops over all tokens, and eigenvalues."""

    def OV(lh):
        return x @ model.W_V[lh], model.W_O[lh] @ model.W_U

    def QK(lh):
        return x @ model.W_Q[lh], (x @ model.W_K[lh]).T

    def shares(factors):
        """Of all tokens, how many are their own top output, and how many among their own top 5."""
        places = vocabulary.own_place(*factors, torch.arange(len(x)), most=5)
        return [(places <= top).float().mean().item() for top in (1, 5)]

    of_layer = [lh for lh in residual.heads(model) if lh[0] == layer]
    circuits = [("OV", OV)] if architecture.no_single_W_QK(model.cfg) else [("OV", OV), ("QK", QK)]
    each = [(*shares(factors), vocabulary.eigenvalue_copying(*factors)) for factors in map(OV, of_layer)]
    top1, top5, OV_copying = zip(*each, strict=True)
    report.say(f"  over the whole vocabulary, by head of layer {layer}")
    report.quantity("7.own_top_share.whole_vocabulary.heads", "  share whose top OV output is itself", top1)
    report.quantity("7.own_top5_share.whole_vocabulary.heads", "  share with itself among the top 5", top5)
    report.say(
        "  eigenvalues of the whole circuits, Σ Re λ / Σ |λ|, by head (1: all positive; in OV: all copy)"
    )
    report.quantity("7.eigenvalue_copying.OV.heads", "  OV", OV_copying)
    if len(circuits) > 1:
        QK_copying = [vocabulary.eigenvalue_copying(*QK(lh)) for lh in of_layer]
        report.quantity("7.eigenvalue_copying.QK.heads", "  QK", QK_copying)

    by_share = sorted(zip(top1, of_layer, strict=True), key=lambda entry: -entry[0])
    two = sorted(lh for _, lh in by_share[:2])
    id, label = "7.two_strongest", f"the two of layer {layer} that copy most, summed"
    report.quantity(f"{id}.heads", label, ["{}.{}".format(*lh) for lh in two])
    for name, circuit in circuits:  # a sum of products: both heads' factors side by side
        rows, columns = zip(*map(circuit, two), strict=True)
        summed = torch.cat(rows, 1), torch.cat(columns)
        if name == "OV":
            top1, top5 = shares(summed)
            report.quantity(f"{id}.own_top_share.whole_vocabulary", "  its top OV output is itself", top1)
            report.quantity(f"{id}.own_top5_share.whole_vocabulary", "  itself among the top 5", top5)
        copying = vocabulary.eigenvalue_copying(*summed)
        report.quantity(f"{id}.eigenvalue_copying.{name}", f"  eigenvalues of {name}", copying)


if __name__ == "__main__":
    sys.exit(cli.run("part2", sections, TABLES, explore))

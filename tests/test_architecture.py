"""Every architecture that is covered, and every one that is not, built from a configuration."""

import pytest
import torch
from models_of_all_kinds import KINDS, make

import circuits_part1
import circuits_part2
from circuits import architecture, heads, models, residual, vocabulary
from circuits.architecture import NotCovered
from circuits.explore import ask
from circuits.report import Report

PROMPT = "I like green tea, so I drink green"
PARTS = {"part1": circuits_part1, "part2": circuits_part2}


@pytest.fixture(scope="module", autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def explored(part, kind, head=(0, 1), seed=0):
    """The report of a part on a made model, in both its forms."""
    model = make(seed, **KINDS[kind])
    unfolded = model if model.cfg.normalization_type else None
    folded = models.folded(model)
    report = Report(part, any_size=True)
    PARTS[part].explore(report, folded, ask(folded, PROMPT, head, unfolded=unfolded))
    return report


@pytest.mark.parametrize("kind", KINDS)
def test_every_identity_of_part_1_holds(kind, capsys):
    report = explored("part1", kind)
    assert report.conclude(), capsys.readouterr().out
    cfg, noise = make(**KINDS[kind]).cfg, report.noise
    assert {"3.max_sum_error", "3.max_share_error"} <= noise.keys()
    assert ("2.max_log_prob_change" in noise) == (cfg.normalization_type is not None)
    assert ("7.max_logit_change" in noise) == (not cfg.post_embedding_ln)
    parts = cfg.n_layers * (cfg.n_heads + 1 + 2 * (not cfg.attn_only)) + 1
    parts += cfg.positional_embedding_type == "standard"
    assert report.quantities["3.n_parts"] == parts
    assert ("5.virtual.n_pairs" in report.quantities) == (cfg.n_layers > 1)
    assert "one layer has no virtual weights" in "".join(report.transcript) or cfg.n_layers > 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_identity_of_part_2_holds(kind, capsys):
    report = explored("part2", kind)
    assert report.conclude(), capsys.readouterr().out
    positions, noise = make(**KINDS[kind]).cfg.positional_embedding_type, report.noise
    assert "3.three_steps_error" in noise and "6.values.max_output_change" in noise
    assert ("4.max_pattern_error" in noise) == (positions == "standard")
    assert ("6.queries.max_score_change" in noise) == (positions != "rotary")
    said = {"rotary": "each distance has its own W_QK", "alibi": "ALiBi", "standard": "section 4"}
    assert said[positions] in "".join(report.transcript) or positions == "standard"
    assert report.quantities["3.max_future_weight"] == 0


@pytest.mark.parametrize("part", PARTS)
def test_a_head_that_was_pruned_is_taken_apart_too(part, monkeypatch, capsys):
    """All its matrices are zero: it overlaps, composes and copies with 0, not with 0 / 0."""

    whole = make

    def pruned(*args, **fields):
        model = whole(*args, **fields)
        for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V"):
            getattr(model.blocks[0].attn, name)[1] = 0
        return model

    monkeypatch.setitem(globals(), "make", pruned)
    report = explored(part, "attention only")
    assert report.conclude(), capsys.readouterr().out
    q = report.quantities
    if part == "part1":
        assert q["3.share.0.1"] == 0 and q["5.composition.V.scores.0.1"] == [0] * 4
    else:
        assert q["5.W_OV.rank"] == q["5.overlap.heads"][1] == q["7.eigenvalue_copying.OV.heads"][1] == 0


@pytest.mark.parametrize("part", PARTS)
def test_a_model_of_zeros_is_taken_apart_too(part, monkeypatch, capsys):
    """Every logit is zero, and so no head has a part of one."""
    whole = make
    monkeypatch.setitem(globals(), "make", lambda *a, **k: zeroed(whole(*a, **k)))
    report = explored(part, "attention only")
    assert report.conclude(), capsys.readouterr().out
    if part == "part1":
        assert report.quantities["3.logit"] == report.quantities["3.largest_head_fraction"] == 0


def zeroed(model):
    for parameter in model.parameters():
        parameter.data.zero_()
    return model


def forget_mlp_bias(monkeypatch):
    whole = residual.pieces
    monkeypatch.setattr(residual, "pieces", lambda *a: {n: x for n, x in whole(*a).items() if n != "b_out.0"})


def centre_anyway(monkeypatch):
    monkeypatch.setattr(architecture, "centres", lambda cfg: True)


def leave_a_weight_unturned(name):
    def change(monkeypatch):
        whole = residual.rotated

        def rotated(model, R):
            old = dict(model.named_parameters())
            return {n: old[n] if n.split(".")[-1] == name else W for n, W in whole(model, R).items()}

        monkeypatch.setattr(residual, "rotated", rotated)

    return change


def divide_by_the_root(monkeypatch):
    monkeypatch.setattr(heads, "score_divisor", lambda model, layer: model.cfg.d_head**0.5)


def see_all(monkeypatch):
    monkeypatch.setattr(heads, "attention_window", lambda model, layer: None)


def read_the_stream_itself(monkeypatch):
    monkeypatch.setattr(residual, "head_input", lambda model, cache, layer: cache["resid_pre", layer][0])


WRONG = [
    ("part1", "with MLPs, as GPT-2", forget_mlp_bias),
    ("part1", "RMS norm", centre_anyway),
    ("part1", "with MLPs, as GPT-2", leave_a_weight_unturned("W_in")),
    ("part1", "with MLPs, as GPT-2", leave_a_weight_unturned("b_out")),
    ("part1", "grouped, gated, rotary, as Llama", leave_a_weight_unturned("_W_K")),
    ("part1", "grouped, gated, rotary, as Llama", leave_a_weight_unturned("W_gate")),
    ("part2", "local and unscaled, as GPT-Neo", divide_by_the_root),
    ("part2", "local and unscaled, as GPT-Neo", see_all),
    ("part2", "RMS norm", read_the_stream_itself),
]


@pytest.mark.parametrize("part, kind, change", WRONG)
def test_what_an_architecture_asks_for_is_what_makes_its_identities_hold(part, kind, change, monkeypatch):
    """The limits are scaled to the model, and still far below what leaving something out does."""
    change(monkeypatch)
    assert not explored(part, kind).conclude()


def test_a_norm_that_was_folded_otherwise_is_noticed():
    model = make(**KINDS["with MLPs, as GPT-2"])
    folded = models.folded(model)
    for norm in (model.blocks[1].ln2.b, model.ln_final.w):
        before = norm.clone()
        norm[3] += 0.1
        report = Report("part1", any_size=True)
        circuits_part1.section_2_folding(report, folded, model, PROMPT)
        assert not report.conclude()
        norm.copy_(before)
    report = Report("part1", any_size=True)
    circuits_part1.section_2_folding(report, folded, model, PROMPT)
    assert report.conclude()


def test_a_grouped_head_is_read_through_its_group_and_says_so():
    report = explored("part2", "grouped, gated, rotary, as Llama", head=(1, 3))
    assert report.quantities["1.key_value_group"] == 1
    assert report.quantities["1.key_value_group.heads"] == ["1.2", "1.3"]
    model = make(**KINDS["grouped, gated, rotary, as Llama"])
    assert torch.equal(heads.W_OV(model, 1, 3).A, model.blocks[1].attn._W_V[1])
    assert torch.equal(heads.W_QK(model, 1, 2).B, model.blocks[1].attn._W_K[1].T)


def test_what_is_not_the_articles_is_among_the_sizes():
    quantities = explored("part1", "grouped, gated, rotary, as Llama").quantities
    assert quantities["1.positional_embedding_type"] == "rotary"
    assert quantities["1.n_key_value_heads"] == 2
    assert quantities["1.shape.W_gate"] == [2, 24, 40]
    assert "1.shape.W_pos" not in quantities


def test_alibi_has_no_position_table_though_transformer_lens_makes_one():
    model = models.folded(make(**KINDS["ALiBi, normalised embedding, as BLOOM"]))
    report = explored("part1", "ALiBi, normalised embedding, as BLOOM")
    assert "3.share.pos_embed" not in report.quantities and "1.shape.W_pos" not in report.quantities
    everything = sum(p.numel() for p in model.parameters())
    assert report.quantities["1.n_params"] == everything - model.pos_embed.W_pos.numel()


def test_the_direct_path_of_a_normalised_embedding_is_that_of_what_is_written():
    model = models.folded(make(**KINDS["ALiBi, normalised embedding, as BLOOM"]))
    _, _, cache = residual.run(model, "tea")
    token = model.to_tokens("tea")[0, 0]
    written = cache["hook_embed"][0, 0]
    torch.testing.assert_close(vocabulary.embeddings(model)[token], written)
    assert not torch.allclose(model.W_E[token], written)


@pytest.mark.parametrize("kind", ["with MLPs, as GPT-2", "RMS norm", "no norm"])
def test_as_read_is_what_a_head_of_the_first_layer_sees_of_an_embedding_alone(kind):
    model = models.folded(make(**KINDS[kind] | dict(eps=0.0)))
    read, token = vocabulary.as_read(model), 17
    x = model.W_E[token][None, None]
    seen = model.blocks[0].ln1(x)[0, 0]
    if kind == "with MLPs, as GPT-2":  # the article divides by the unbiased deviation
        seen = seen * (1 - 1 / 24) ** 0.5
    torch.testing.assert_close(read[token], seen)


def test_folding_leaves_the_callers_model_and_its_predictions():
    for kind in ("grouped, gated, rotary, as Llama", "norm inside the MLP, as SoLU"):
        model = make(**KINDS[kind])
        before = {name: p.clone() for name, p in model.named_parameters()}
        tokens = model.to_tokens(PROMPT)
        logits = model(tokens)
        folded = models.folded(model)
        assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
        assert torch.equal(model(tokens), logits)
        torch.testing.assert_close(folded(tokens).log_softmax(-1), logits.log_softmax(-1), atol=2e-5, rtol=0)


REFUSED = [
    (dict(output_logits_soft_cap=30.0), "soft-capped logits: "),
    (dict(original_architecture="Olmo2ForCausalLM"), "post-norm: "),
    (dict(normalization_type="RMS", use_normalization_before_and_after=True), "post-norm: "),
    (dict(positional_embedding_type="shortformer"), "shortformer positions: "),
    (dict(final_rms=True), r"a last norm of another kind \(final_rms with LN\): "),
    (MOE := dict(attn_only=False, d_mlp=8, act_fn="gelu", num_experts=2, experts_per_token=1), "mixture of"),
    (dict(use_attention_sinks=True), "attention sinks: "),
    (dict(clip_qkv=1.0), "clipped queries, keys and values: "),
    (dict(attention_dir="bidirectional"), "attention bidirectional: "),
    (dict(d_vocab_out=7), "another vocabulary on the way out"),
    (dict(n_layers=0), "no layers: "),
    (dict(dtype=torch.bfloat16), "weights of the type torch.bfloat16: "),
    (dict(dtype=torch.float64), "weights of the type torch.float64: "),
    (dict(use_split_qkv_input=True), "use_attn_in or use_split_qkv_input: "),
    (dict(), "layer norm with weights of its own: fold it first, with circuits.models.folded"),
    (dict(normalization_type="RMS"), "layer norm with weights of its own: "),
]
REFUSED_IN_PART_2 = [
    (dict(use_qk_norm=True), "normalised queries and keys: a score is not x W_QK xᵀ"),
    (dict(attn_scores_soft_cap=50.0), "soft-capped scores: "),
    (dict(d_head=25), "heads wider than the stream: "),
]


@pytest.mark.parametrize("fields, why", REFUSED)
def test_what_is_not_covered_is_refused_by_name(fields, why):
    from transformer_lens import HookedTransformerConfig

    fields = KINDS["attention only"] | dict(model_name="made") | fields
    cfg = HookedTransformerConfig(**dict(n_layers=1, d_model=24, n_ctx=8, d_head=6, d_vocab=50) | fields)
    for part in ({}, {"heads": True}):
        with pytest.raises(NotCovered, match=f"^made is not covered: {why}") as raised:
            architecture.check(cfg, folded=True, **part)
        assert "\n" not in str(raised.value) and raised.value.status == 3


@pytest.mark.parametrize("fields, why", REFUSED_IN_PART_2)
def test_scores_that_are_not_bilinear_are_refused_by_part_2_alone(fields, why, capsys):
    model = models.folded(make(**KINDS["attention only"] | fields))
    asked = ask(model, PROMPT)
    report = Report("part1", any_size=True)
    circuits_part1.explore(report, model, asked)
    assert report.conclude()
    capsys.readouterr()
    with pytest.raises(NotCovered, match=f"^made is not covered: {why}"):
        circuits_part2.explore(Report("part2", any_size=True), model, asked)
    assert capsys.readouterr().out == ""


def test_a_model_that_is_not_folded_is_refused_before_anything_is_printed(capsys):
    model = make(**KINDS["attention only"])
    for act in (
        lambda: ask(model, PROMPT),
        lambda: circuits_part1.explore(Report("part1"), model, None),
        lambda: circuits_part2.explore(Report("part2"), model, None),
    ):
        with pytest.raises(NotCovered, match="fold it first"):
            act()
    assert capsys.readouterr().out == ""

"""Training: the model is TransformerLens' own, batches repeat, a resumed run is an unbroken one."""

import argparse
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from circuits import models
from circuits.mini import train

TINY = dict(d_model=16, n_heads=2, d_head=8, n_ctx=256, d_vocab=300)


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """Training made small, that ships into tmp_path; a function that trains and returns what was shipped."""
    monkeypatch.setattr(train, "SIZES", TINY)
    monkeypatch.setattr(train, "MODELS", {"mini-2l": dict(TINY, n_layers=2, tied=False)})
    monkeypatch.setattr(train, "HERE", tmp_path)
    (tmp_path / "corpus" / "a").mkdir(parents=True)
    (tmp_path / "corpus" / "a" / "text.txt").write_text("the cat sat on the mat. " * 4000, encoding="utf-8")
    monkeypatch.setattr(train, "documents", lambda corpus: [(corpus / "a" / "text.txt").read_text()])

    def run(work, steps, **options):
        args = dict(model="mini-2l", corpus=tmp_path / "corpus", work=tmp_path / work, steps=steps, rate=1e-3)
        args |= dict(repeats=2, passages=2, period=[4, 16], from_shipped=False, fade=150) | options
        train.train(argparse.Namespace(**args), every=2)
        return load_file(tmp_path / "mini-2l.safetensors"), json.loads(
            (tmp_path / "mini-2l.json").read_text(encoding="utf-8")
        )

    return run


@pytest.mark.parametrize("tied", [False, True])
def test_the_trained_network_is_the_one_that_transformer_lens_runs(tied):
    cfg = dict(TINY, n_layers=2, tied=tied)
    network = train.AttentionOnly(cfg)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in network.parameters():  # every bias and norm away from where it starts
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
    cfg = {k: v for k, v in cfg.items() if k != "tied"}
    cfg |= {"model_name": "tiny", "attn_only": True, "normalization_type": "LN"}
    model = models.Checkpoint("tiny", cfg, network.state, lambda: None, {}).model(folded=False)
    tokens = torch.randint(TINY["d_vocab"], (3, 20), generator=generator)
    with torch.no_grad():
        logits = network(tokens) @ network.W_U() + network["unembed.b_U"]
        torch.testing.assert_close(logits, model(tokens), atol=1e-4, rtol=1e-4)
        counted = torch.rand(3, 19, generator=generator) < 0.5
        losses = model(tokens, return_type="loss", loss_per_token=True)
        torch.testing.assert_close(network.loss(tokens, counted), losses[counted].mean())


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tiny, monkeypatch):
    unbroken, record = tiny("unbroken", 6)

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train, "ship", stop)
        tiny("stopped", 6)
    checkpoint = torch.load(train.HERE / "stopped" / "mini-2l.pt", weights_only=True)
    assert checkpoint["record"]["step"] == 2
    resumed, again = tiny("stopped", 6)
    assert again == record
    assert all(torch.equal(resumed[name], unbroken[name]) for name in unbroken)


def test_training_goes_on_from_the_shipped_weights(tiny):
    first, _ = tiny("one", 4)
    second, record = tiny("another", 2, from_shipped=True, rate=1e-9)
    assert record["training"]["step"] == 6
    assert all(torch.allclose(second[name], first[name], atol=1e-4) for name in first)
    log = (train.HERE / "another" / "mini-2l.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in log] == [6]


def test_repeated_rows_repeat_where_they_say_so():
    generator = torch.Generator().manual_seed(3)
    tokens, seen = train.repeated_rows(50, 40, 12, generator)
    periods = set()
    for row, known in zip(tokens, seen, strict=True):
        # The next token is counted from the first full turn on: it then equals the one a period before.
        start = int(known.int().argmax()) + 1
        period = start - 1
        periods.add(period)
        assert all(known[start - 1 :]) and not any(known[: start - 1])
        assert torch.equal(row[start:], row[start - period : -period])
    assert min(periods) >= 4 and max(periods) <= 12 and len(periods) > 5
    assert (tokens[:, 0] == 0).all() and (tokens[:, 1:] > 0).all()


def test_a_batch_is_a_function_of_its_step(monkeypatch):
    monkeypatch.setattr(train, "SIZES", TINY)
    text = np.arange(1, 5000, dtype=np.uint16)
    args = argparse.Namespace(repeats=3, passages=2, period=[4, 8], fade=1)
    (a, counted), (b, _), (c, _) = (train.batch(step, 0, text, args) for step in (7, 7, 8))
    assert torch.equal(a, b) and not torch.equal(a, c)
    consecutive = (a[:, 2:] - a[:, 1:-1] == 1).all(1)
    assert consecutive.tolist() == [False] * 3 + [True] * 11 + [False] * 2  # repeats, text, passages
    assert counted[3:].all() and not counted[:3].all()
    rows, _ = train.batch(7, None, text, args)
    assert rows.shape == (64, 64)


def test_the_rate_warms_up_holds_and_falls_to_zero():
    rates = [train.rate(step, 1000, 2.0) for step in (0, 49, 99, 500, 750, 875, 999, 1000)]
    assert rates == pytest.approx([0.02, 1.0, 2.0, 2.0, 2.0, 1.0, 0.008, 0.0])


def test_the_tokenizer_splits_digits_and_comes_back():
    tokenizer = train.train_tokenizer(["the cat sat in 1984. " * 50], 300)
    assert tokenizer.token_to_id(train.BOS) == 0
    text = "the cat — 1984 ☃"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert len(tokenizer.encode("1984").ids) == 4

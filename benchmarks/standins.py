"""A loopback hub with stand-ins of the published models, in a process of its own.

Random weights in the published layout and shapes, and a whole gpt2 with a tokenizer, under both names
by which it is asked for. `python standins.py [--small]` prints the hub's address, then, for each line
on stdin, how many questions it was asked since the last; it ends with stdin.

How often a token is its own best output decides what the suite's own-top share costs, so that is as in
the trained models: gpt2's rows are random, and each token is its own best direct-path output (trained:
98.8 %); and three heads of the one-layer model copy about a third of the tokens (trained: 0.37, 0.34, 0.26).
"""

import functools
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import hub  # noqa: E402

import circuits_part1  # noqa: E402
import circuits_part2  # noqa: E402
from circuits.models import PUBLISHED  # noqa: E402

PUBLISHED_SHAPES = dict(d_model=512, n_heads=8, d_head=64, d_vocab=48262, n_ctx=1024)
SMALL_SHAPES = dict(d_model=64, n_heads=8, d_head=8, d_vocab=3500, n_ctx=64)
GPT2_SMALL_SHAPES = dict(n_layer=2, n_embd=64, n_head=4, vocab_size=3500, bos_token_id=0, eos_token_id=0)


def repositories(small: bool) -> dict[str, hub.Files]:
    torch.manual_seed(3)
    shapes = SMALL_SHAPES if small else PUBLISHED_SHAPES
    gpt2 = whole_gpt2(**GPT2_SMALL_SHAPES if small else {})
    part1, part2 = circuits_part1.TABLES["published"], circuits_part2.TABLES["published"]
    words = {*part1["words"], *part2["ov_words"], *part2["qk_words"], part2["answer"]}
    one_layer = hub.attention_only_repo(1, **shapes, seed=1, tensors=copying_heads(**shapes))
    return {
        PUBLISHED["attn-only-1l"]: one_layer,
        PUBLISHED["attn-only-2l"]: hub.attention_only_repo(2, **shapes, seed=2),
        PUBLISHED["gpt2"]: gpt2,
        "gpt2": gpt2,  # what TransformerLens asks for
        hub.TOKENIZER: hub.tokenizer_repo(tuple(sorted(words)), shapes["d_vocab"]),
    }


def copying_heads(**shapes: int) -> dict[str, torch.Tensor]:
    """The weights of a one-layer stand-in that make heads 0, 3 and 4 copy about a third of the tokens.

    A rotation R of each embedding is added to its token's unembedding, and these heads write what they
    read, rotated by R. Without R the direct path would copy too.
    """
    state = hub.attention_only_state(1, **shapes, seed=1)
    R = torch.linalg.qr(torch.randn(shapes["d_model"], shapes["d_model"])).Q
    W_E, W_O = state["embed.W_E"], state["blocks.0.attn.W_O"]
    for head in (0, 3, 4):
        W_O[head] = state["blocks.0.attn.W_V"][head].T @ R
    added = W_E / W_E.norm(dim=-1, keepdim=True) @ R
    return {"blocks.0.attn.W_O": W_O, "unembed.W_U": state["unembed.W_U"] + 0.7 * added.T}


def whole_gpt2(**shapes: int) -> hub.Files:
    """GPT-2 with every layer, as its repository has it: nothing is left for a loader to make up."""
    from safetensors.torch import save
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(architectures=["GPT2LMHeadModel"], n_ctx=1024, **shapes)
    model = GPT2Model(config)
    torch.nn.init.normal_(model.ln_f.weight, 1, 0.3)
    weights = save(model.state_dict(), {"format": "pt"})
    files = {"config.json": config.to_json_string().encode(), "model.safetensors": weights}
    return files | hub.tokenizer_repo((), config.vocab_size)


def main() -> None:
    hub.etag = functools.cache(hub.etag)  # a real hub does not hash its files again at every question
    with hub.Hub(repositories(small="--small" in sys.argv)) as running:
        print(running.url, flush=True)
        for _ in sys.stdin:
            print(len(running.requests), flush=True)
            running.requests.clear()


if __name__ == "__main__":
    main()

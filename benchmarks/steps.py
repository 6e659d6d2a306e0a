"""Each heavy step alone, in one process with imports aside, and how the own-top share's cost grows.

Called by run.py, in an environment whose HF_HOME and HF_ENDPOINT are the stand-ins'. Prints Markdown
tables: medians of the given number of runs, the suite's way and the plain way in turn, after one run of
each that is not counted. Files are in the page cache; memory is not measured here.

The own-top share asks of each token whether it is its own highest output. The suite drops a token at the
first block of the vocabulary where another output beats its own: random heads drop nearly all at once, a
head that copies keeps them to the end. So each table has random weights and the worst case, in which every
token is its own top; a trained head lies between.
"""

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from run import ROOT, table

sys.path.insert(0, str(ROOT))

from circuits import layernorm, models, vocabulary

ORDINARY = torch.arange(1000, 3000)


def medians(runs: int, *ways: Callable[[Any], Any], fresh: Callable[[], Any] = lambda: None) -> list[float]:
    """The median seconds of each way, run in turn on what `fresh` makes (its own time is not counted)."""
    taken = [[] for _ in ways]
    for _ in range(runs + 1):
        for way, seconds in zip(ways, taken, strict=True):
            given = fresh()
            started = time.perf_counter()
            way(given)
            seconds.append(time.perf_counter() - started)
    return [statistics.median(seconds[1:]) for seconds in taken]


def beside(label: str, suite: float, plain: float, target: str = "") -> list[str]:
    return [label, f"{suite:.3f} s", f"{plain:.3f} s", f"{suite / plain:.3f}", target]


# ---- the steps ----------------------------------------------------------------------------------------


def from_pretrained(name: str) -> Any:
    from transformer_lens import HookedTransformer

    with contextlib.redirect_stdout(sys.stderr):  # it prints
        return HookedTransformer.from_pretrained(name, device="cpu")


def steps(runs: int) -> list[list[str]]:
    from transformer_lens.weight_processing import ProcessWeights

    rows = []
    for name in ("attn-only-1l", "attn-only-2l"):
        loaded = models.checkpoint(name)
        size = sum(tensor.nbytes for tensor in loaded.state.values()) / 1e6
        cfg = loaded.model(folded=False).cfg

        def plain_fold(state: layernorm.State, cfg: Any = cfg) -> None:
            ProcessWeights.process_weights(state, cfg)

        loaded.tokenizer  # noqa: B018  read once, then kept
        seconds = medians(
            runs, lambda _, n=name: models.checkpoint(n).model(), lambda _, n=name: from_pretrained(n)
        )
        rows.append(beside(f"find, hash, load and fold {name} ({size:.0f} MB)", *seconds))
        seconds = medians(runs, lambda _, c=loaded: c.model(), lambda _, n=name: from_pretrained(n))
        label = "  load and fold (in a run the rest is done while Python imports)"
        rows.append(beside(label, *seconds, "0.3 s for 200 MB"))
        seconds = medians(runs, layernorm.fold, plain_fold, fresh=lambda c=loaded: copied(c.state))
        rows.append(beside("  the fold alone", *seconds))
    seconds = medians(runs, lambda _: models.checkpoint("gpt2").folded(), lambda _: from_pretrained("gpt2"))
    rows.append(beside("load and fold gpt2 (suite: its ends; plain: whole)", *seconds))

    one = models.checkpoint("attn-only-1l").model()
    circuit = Circuit(vocabulary.normalised(one.W_E), one.W_V[0], one.W_O[0], one.W_U)
    seconds = medians(runs, lambda _: circuit.suite(ORDINARY), lambda _: circuit.plain(ORDINARY))
    rows.append(beside("own-top share, 2,000 tokens × 8 heads", *seconds, "0.100"))
    seconds = medians(1, lambda _: circuit.tops(), lambda _: circuit.tops_plain())
    rows.append(beside("own-top 1 and 5, whole vocabulary, one head that copies a third", *seconds))
    ends = models.checkpoint("gpt2").folded()
    W_E, W_U = ends["embed.W_E"][ORDINARY], ends["unembed.W_U"]
    seconds = medians(
        runs,
        lambda _: vocabulary.own_top_share(W_E, W_U, ORDINARY),
        lambda _: ((W_E @ W_U).argmax(-1) == ORDINARY).float().mean().item(),
    )
    rows.append(beside("own-top share, 2,000 tokens, gpt2's tied direct path", *seconds))
    return rows


def copied(state: layernorm.State) -> layernorm.State:
    return {name: tensor.clone() for name, tensor in state.items()}  # ProcessWeights works in place


# ---- how the own-top share's cost grows ---------------------------------------------------------------


@dataclass
class Circuit:
    """The OV circuits of one layer's heads."""

    x: torch.Tensor  # [d_vocab, d_model]: embeddings
    W_V: torch.Tensor  # [head, d_model, d_head]
    W_O: torch.Tensor  # [head, d_head, d_model]
    W_U: torch.Tensor  # [d_model, d_vocab]

    def suite(self, tokens: torch.Tensor, heads: int = 8) -> list[float]:
        x = self.x[tokens]
        pairs = zip(self.W_V[:heads], self.W_O[:heads], strict=True)
        return [vocabulary.own_top_share(x @ W_V, W_O @ self.W_U, tokens) for W_V, W_O in pairs]

    def plain(self, tokens: torch.Tensor, heads: int = 8) -> list[float]:
        x, shares = self.x[tokens], []
        for W_V, W_O in zip(self.W_V[:heads], self.W_O[:heads], strict=True):
            top = (x @ W_V @ W_O @ self.W_U).argmax(-1)
            shares.append((top == tokens).float().mean().item())
        return shares

    def tops(self) -> torch.Tensor:
        """How many tokens are their own first output, and among their own first 5, for the first head."""
        tokens = torch.arange(len(self.x))
        places = vocabulary.own_place(self.x @ self.W_V[0], self.W_O[0] @ self.W_U, tokens, most=5)
        return torch.stack([(places <= top).sum() for top in (1, 5)])

    def tops_plain(self) -> torch.Tensor:
        counts = torch.zeros(2, dtype=torch.int64)
        for tokens in torch.arange(len(self.x)).split(2000):  # all of it would be 9 GB
            top = (self.x[tokens] @ self.W_V[0] @ self.W_O[0] @ self.W_U).topk(5).indices
            own = top == tokens[:, None]
            counts += torch.stack([own[:, 0].sum(), own.sum()])
        return counts

    def first(self, d_vocab: int) -> "Circuit":
        """The same for the first tokens of the vocabulary only."""
        return Circuit(self.x[:d_vocab], self.W_V, self.W_O, self.W_U[:, :d_vocab].contiguous())


def random_circuit(d_vocab: int, d_model: int, heads: int) -> Circuit:
    """Gaussian: a token is its own top about once in d_vocab."""
    generator = torch.Generator().manual_seed(0)
    d_head = d_model // heads
    sizes = (d_vocab, d_model), (heads, d_model, d_head), (heads, d_head, d_model), (d_model, d_vocab)
    return Circuit(*(torch.randn(size, generator=generator) for size in sizes))


def copying_circuit(d_vocab: int, d_model: int, heads: int) -> Circuit:
    """Every token is its own top for every head: head h reads, and writes, the h-th part of the stream.

    There each embedding is a unit vector, and so is the token's own unembedding.
    """
    x = random_circuit(d_vocab, d_model, heads).x.unflatten(1, (heads, -1))
    x = (x / x.norm(dim=-1, keepdim=True)).flatten(1)
    part = torch.eye(d_model).unflatten(0, (heads, -1))  # [head, d_head, d_model]
    return Circuit(x, part.mT.contiguous(), part, x.T.contiguous())


def growth(runs: int, d_vocab: int, d_model: int) -> Iterator[tuple[str, list[list[str]]]]:
    """(what grows, rows) for each table."""
    circuits = [make(d_vocab, d_model, 8) for make in (random_circuit, copying_circuit)]
    tokens = torch.arange(d_vocab)
    sizes = [d_vocab // 8, d_vocab // 4, d_vocab // 2, d_vocab]
    few = torch.arange(min(2000, sizes[0]))
    yield (
        f"tokens of the vocabulary ({len(few):,} asked about, 1 head)",
        [compared(f"{n:,}", runs, [c.first(n) for c in circuits], few, 1) for n in sizes],
    )
    few = torch.arange(1000, 3000)
    yield (
        f"heads (2,000 tokens of {d_vocab:,})",
        [compared(str(n), runs, circuits, few, n) for n in (1, 2, 4, 8)],
    )
    rows = [
        compared(f"{n:,}", runs, circuits, tokens[:n], 1) for n in (500, 1000, 2000, 4000) if n <= d_vocab
    ]
    rows += [compared(f"{n:,}", 1, circuits, tokens[:n], 1, plainly=False) for n in (d_vocab // 4, d_vocab)]
    rows += [compared(f"{d_vocab:,}, 8 heads", 1, circuits, tokens, 8, plainly=False)]
    yield f"tokens asked about (of {d_vocab:,}, 1 head)", rows


def compared(
    label: str, runs: int, circuits: list[Circuit], tokens: torch.Tensor, heads: int, plainly: bool = True
) -> list[str]:
    """One row: the suite on random and on copying weights, and the plain way, whose cost is one for both."""
    ways = [lambda _, c=circuit: c.suite(tokens, heads) for circuit in circuits]
    if not plainly:
        return [label, *(f"{seconds:.2f} s" for seconds in medians(runs, *ways)), "not run", "", ""]
    ways += [lambda _: circuits[0].plain(tokens, heads)]
    *suite, plain = medians(runs, *ways)
    return [label, *(f"{s:.3f} s" for s in (*suite, plain)), *(f"{s / plain:.3f}" for s in suite)]


def trained(runs: int) -> list[list[str]]:
    """The bundled one-layer model's eight heads, of which some copy."""
    model = models.checkpoint("mini-1l").model()
    circuit = Circuit(vocabulary.normalised(model.W_E), model.W_V[0], model.W_O[0], model.W_U)
    rows, whole = [], torch.arange(model.cfg.d_vocab)
    for tokens in (ORDINARY[:500], ORDINARY, whole):
        seconds = medians(runs, lambda _, t=tokens: circuit.suite(t), lambda _, t=tokens: circuit.plain(t))
        shares = sorted(circuit.suite(tokens), reverse=True)
        rows.append(
            [*beside(f"{len(tokens):,}", *seconds)[:-1], " ".join(f"{share:.2f}" for share in shares[:4])]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    print(table("step alone, imports aside", "suite", "plain", "ratio", "target", rows=steps(args.runs)))
    print("Own-top share, as it grows: random weights, copying ones (the worst case), and the full argmax.\n")
    for grows, rows in growth(args.runs, *(4000, 64) if args.small else (48262, 512)):
        print(table(grows, "random", "copying", "plain", "ratio, random", "ratio, copying", rows=rows))
    header = "tokens asked about (of 8,192, mini-1l as trained, 8 heads)", "suite", "plain", "ratio"
    print(table(*header, "highest shares", rows=trained(args.runs)))


if __name__ == "__main__":
    main()

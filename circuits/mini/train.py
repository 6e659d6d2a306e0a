"""Train the bundled models: `python -m circuits.mini.train mini-2l --corpus DIR`.

1. Tokenizer: byte-level BPE, 8,192 tokens, digits one by one (trained only where none is shipped).
2. Data: the corpus and the Python standard library's own source, in shuffled blocks.
3. Curriculum, for the untied: random tokens that come round again, until they are copied from the
   previous turn. Then more and more text, until one row in eight is such a repeat and one in eight a
   passage said again and again. (Text at once unlearns induction; text from the start never finds it.)
4. Checkpoints to resume from, a line of losses every few hundred steps, and at the end the weights.

Every batch is a function of (seed, step) alone, so a resumed run sees what an unbroken one would.
"""

import argparse
import json
import math
import os
import random
import sysconfig
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from tqdm import tqdm

HERE = Path(__file__).parent
SEED = 0
BOS = "<|BOS|>"
SIZES = dict(d_model=256, n_heads=8, d_head=32, n_ctx=256, d_vocab=8192)
MODELS = {
    "mini-1l": dict(SIZES, n_layers=1, tied=False),
    "mini-2l": dict(SIZES, n_layers=2, tied=False),
    "mini-tied-1l": dict(SIZES, n_layers=1, tied=True),
}
ROWS, REPEATS, PASSAGES = 16, 2, 2  # a batch: repeats of random tokens, passages said again, the rest text
FADE = 150  # steps from one row of text more to the next, after the curriculum
CURRICULUM = {"mini-1l": 750, "mini-2l": 1000}  # steps at the most; it ends when the repeats are copied


class AttentionOnly(nn.Module):
    """The published architecture: layer norm, biases, learned positions, no MLP.

    Parameters carry TransformerLens' names and shapes, so the state dict is the file we ship.
    """

    def __init__(self, cfg: dict):
        super().__init__()
        self.cfg = cfg
        generator = torch.Generator().manual_seed(SEED)

        def normal(std, *shape):
            return std * torch.randn(*shape, generator=generator)

        d, h, k, v = cfg["d_model"], cfg["n_heads"], cfg["d_head"], cfg["d_vocab"]
        # A write small beside the token (0.02 against 0.3) is what lets induction form early.
        # A tied embedding is also the unembedding, so it must start small to keep logits small.
        embed = 0.05 if cfg["tied"] else 0.3
        weights = {"embed.W_E": normal(embed, v, d)}
        # Sinusoids: "the position before" is then one linear map, the same at every position.
        angles = torch.arange(cfg["n_ctx"])[:, None] * cfg["n_ctx"] ** -torch.linspace(0, 1, d // 2)
        weights["pos_embed.W_pos"] = embed * 2**0.5 * torch.cat([angles.sin(), angles.cos()], 1)
        for layer in range(cfg["n_layers"]):
            block = f"blocks.{layer}."
            weights |= {block + "ln1.w": torch.ones(d), block + "ln1.b": torch.zeros(d)}
            for name in "QKV":
                weights[f"{block}attn.W_{name}"] = normal(d**-0.5, h, d, k)
                weights[f"{block}attn.b_{name}"] = torch.zeros(h, k)
            weights[block + "attn.W_O"] = normal(embed / 15, h, k, d)
            weights[block + "attn.b_O"] = torch.zeros(d)
        weights |= {"ln_final.w": torch.ones(d), "ln_final.b": torch.zeros(d)}
        if not cfg["tied"]:
            # Start W_U as a fixed random rotation of W_E: no token is its own output, yet one
            # W_OV can learn to copy every token at once.
            rotation = torch.linalg.qr(normal(1, d, d)).Q
            weights["unembed.W_U"] = 0.1 * (weights["embed.W_E"] @ rotation).T
        weights["unembed.b_U"] = torch.zeros(v)
        self.weights = nn.ParameterDict({n.replace(".", "/"): nn.Parameter(w) for n, w in weights.items()})

        self.active = h  # heads beyond this one write nothing

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.weights[name.replace(".", "/")]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens [batch, pos] -> final stream after layer norm [batch, pos, d_model]."""
        d, h, k = self.cfg["d_model"], self.cfg["n_heads"], self.cfg["d_head"]
        x = self["embed.W_E"][tokens] + self["pos_embed.W_pos"][: tokens.shape[1]]
        for layer in range(self.cfg["n_layers"]):
            block = f"blocks.{layer}."
            normed = F.layer_norm(x, (d,), self[block + "ln1.w"], self[block + "ln1.b"])
            W = torch.stack([self[f"{block}attn.W_{n}"] for n in "QKV"])  # [3, head, d_model, d_head]
            b = torch.stack([self[f"{block}attn.b_{n}"] for n in "QKV"])  # [3, head, d_head]
            qkv = normed @ W.permute(2, 0, 1, 3).reshape(d, 3 * h * k) + b.reshape(-1)
            q, k_, v = qkv.view(*tokens.shape, 3, h, k).permute(2, 0, 3, 1, 4)  # [batch, head, pos, d_head]
            z = F.scaled_dot_product_attention(q, k_, v, is_causal=True)
            z = z * (torch.arange(h) < self.active)[:, None, None]
            x = x + z.transpose(1, 2).reshape(*tokens.shape, h * k) @ self[block + "attn.W_O"].reshape(
                h * k, d
            )
            x = x + self[block + "attn.b_O"]
        return F.layer_norm(x, (d,), self["ln_final.w"], self["ln_final.b"])

    def W_U(self) -> torch.Tensor:
        return self["embed.W_E"].T if self.cfg["tied"] else self["unembed.W_U"]

    def loss(self, tokens: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy, in nats, of the next token where `counted` [batch, pos - 1] is true."""
        x = self(tokens[:, :-1])[counted]
        return F.cross_entropy((x @ self.W_U() + self["unembed.b_U"]).float(), tokens[:, 1:][counted])

    def state(self) -> dict[str, torch.Tensor]:
        """The state dict under TransformerLens' names, W_U written out for a tied model too."""
        state = {name.replace("/", "."): w.detach().clone() for name, w in self.weights.items()}
        return state | {"unembed.W_U": self.W_U().detach().clone().contiguous()}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, w in self.weights.items():
                w.copy_(state[name.replace("/", ".")])


def documents(corpus: Path) -> list[str]:
    """The corpus' files and the standard library's modules (not its tests), as texts."""
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    skip = {"test", "tests", "idlelib", "site-packages", "lib2to3", "__pycache__", "encodings", "turtledemo"}
    code = [p for p in sorted(stdlib.rglob("*.py")) if not skip & set(p.relative_to(stdlib).parts)]
    files = sorted(corpus.glob("*/*.txt")) + code
    return [path.read_text(encoding="utf-8", errors="ignore") for path in files]


def train_tokenizer(texts: list[str], d_vocab: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=d_vocab, special_tokens=[BOS], initial_alphabet=sorted(alphabet)),
    )
    return tokenizer


def load_data(corpus: Path, work: Path) -> tuple[np.ndarray, np.ndarray]:
    """(training tokens, held-out tokens), cached in `work`: blocks of 20,000 characters, shuffled."""
    cached, tokenizer_file = work / "tokens.npy", HERE / "tokenizer.json"
    if not cached.exists():
        texts = documents(corpus)
        if not tokenizer_file.exists():
            train_tokenizer(texts, SIZES["d_vocab"]).save(str(tokenizer_file))
        blocks = [text[i : i + 20_000] for text in texts for i in range(0, len(text), 20_000)]
        random.Random(SEED).shuffle(blocks)
        encoded = Tokenizer.from_file(str(tokenizer_file)).encode_batch(blocks)
        replace(
            cached, lambda part: np.save(part, np.concatenate([e.ids for e in encoded]).astype(np.uint16))
        )
    tokens = np.load(cached)
    cut = len(tokens) * 99 // 100
    return tokens[:cut], tokens[cut:]


def repeated_rows(rows: int, length: int, longest: int, generator: torch.Generator):
    """Rows of random tokens that come round again: (tokens [rows, length], seen before [rows, length - 1]).

    Period and offset are drawn anew for each row: a fixed period teaches the offset, not the match.
    """
    low = math.log(4)
    periods = (low + (math.log(longest) - low) * torch.rand(rows, generator=generator)).exp().long()
    position = torch.arange(length)
    start = (torch.rand(rows, generator=generator) * periods).long()  # where in its period a row begins
    turn = (position + start[:, None]) % periods[:, None]
    pool = torch.randint(1, SIZES["d_vocab"], (rows, longest), generator=generator)
    tokens = pool.gather(1, turn)
    tokens[:, 0] = 0
    return tokens, (position[None] > periods[:, None])[:, 1:]


def text_rows(text: np.ndarray, rows: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """BOS and a passage of text a row: [rows, length]."""
    starts = torch.randint(0, len(text) - length, (rows,), generator=generator)
    tokens = torch.stack([torch.from_numpy(text[s : s + length].astype(np.int64)) for s in starts])
    tokens[:, 0] = 0
    return tokens


def batch(
    step: int, curriculum_steps: int | None, text: np.ndarray, args: argparse.Namespace
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens of a step [rows, length], and which of the next tokens its loss counts.

    `curriculum_steps` is how many steps the curriculum took: None while it lasts, 0 where there is none.
    """
    generator = torch.Generator().manual_seed(SEED + step)
    if curriculum_steps is None:
        return repeated_rows(64, 64, 32, generator)
    length, repeats = SIZES["n_ctx"], args.repeats
    if curriculum_steps:
        repeats = max(repeats, ROWS - args.passages - (step - curriculum_steps) // args.fade)
    tokens = text_rows(text, ROWS, length, generator)
    counted = torch.ones(ROWS, length - 1, dtype=torch.bool)
    for row in tokens[ROWS - args.passages :]:
        period = int(torch.randint(*args.period, (), generator=generator))
        row[1:] = row[1 : period + 1].repeat(length // period + 1)[: length - 1]
    tokens[:repeats], counted[:repeats] = repeated_rows(repeats, length, length // 2 - 1, generator)
    return tokens, counted


@torch.no_grad()
def measure(model: AttentionOnly, held_out: np.ndarray) -> dict[str, float]:
    """Validation loss, and the loss on each half of 100 random tokens said twice, in nats."""
    generator = torch.Generator().manual_seed(SEED)
    rows = text_rows(held_out, 64, model.cfg["n_ctx"], generator)
    once = torch.randint(1, model.cfg["d_vocab"], (32, 100), generator=generator)
    twice = torch.cat([torch.zeros(32, 1, dtype=torch.long), once, once], 1)
    first = (torch.arange(200) < 100).expand(32, 200)
    everywhere = torch.ones(64, model.cfg["n_ctx"] - 1, dtype=torch.bool)
    losses = {"validation": model.loss(rows, everywhere)}
    losses |= {"first_half": model.loss(twice, first), "second_half": model.loss(twice, ~first)}
    return {name: round(loss.item(), 4) for name, loss in losses.items()}


def rate(step: int, steps: int, peak: float) -> float:
    """Warm up over 100 steps, hold, and fall to zero over the last quarter."""
    return peak * min(1, (step + 1) / 100, max(0, steps - step) / (steps / 4))


def replace(path: Path, write) -> None:
    """Write beside `path`, then rename: a run that dies leaves the last good file."""
    part = path.with_name("part." + path.name)
    write(part)
    os.replace(part, path)


def ship(model: AttentionOnly, name: str, record: dict) -> None:
    """Write the float16 weights and the configuration into the package."""
    half = {
        key: w.half() for key, w in model.state().items() if not (model.cfg["tied"] and key == "unembed.W_U")
    }
    replace(HERE / f"{name}.safetensors", lambda part: save_file(half, part))
    text = json.dumps(model.cfg | {"training": record}, indent=1) + "\n"
    replace(HERE / f"{name}.json", lambda part: part.write_text(text, encoding="utf-8"))


def train(args: argparse.Namespace, every: int = 250) -> None:
    """Train as the options say, and every `every` steps measure, keep a checkpoint, and ship."""
    name, work, steps = args.model, args.work, args.steps
    work.mkdir(parents=True, exist_ok=True)
    text, held_out = load_data(args.corpus, work)
    model = AttentionOnly(MODELS[name])
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.01, fused=True)
    record = {"step": 0, "curriculum_steps": None if name in CURRICULUM else 0, "tokens": 0}
    checkpoint = work / f"{name}.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        record = saved["record"]
    elif args.from_shipped:
        model.load(load_file(HERE / f"{name}.safetensors"))
        record = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))["training"]
        steps += record["step"]
        record["began"] = record["step"]
    bar = tqdm(range(record["step"], steps), initial=record["step"], total=steps, desc=name, mininterval=5)
    for step in bar:
        # Half the heads of one layer are enough to copy: all would, and none be left for anything else.
        alone = record["curriculum_steps"] is None and model.cfg["n_layers"] == 1
        model.active = model.cfg["n_heads"] // 2 if alone else model.cfg["n_heads"]
        tokens, counted = batch(step, record["curriculum_steps"], text, args)
        for group in optimizer.param_groups:
            group["lr"] = rate(step - record.get("began", 0), steps - record.get("began", 0), args.rate)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.loss(tokens, counted)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        record["step"], record["tokens"] = step + 1, record["tokens"] + tokens.numel()
        if (step + 1) % every == 0 or step + 1 == steps:
            record |= {"loss": round(loss.item(), 4)} | measure(model, held_out)
            bar.set_postfix(loss=record["loss"], validation=record["validation"])
            with open(work / f"{name}.jsonl", "a", encoding="utf-8") as log:
                log.write(json.dumps(record) + "\n")
            if record["curriculum_steps"] is None and (loss < 2 or step + 1 >= CURRICULUM[name]):
                record["curriculum_steps"] = step + 1
            saved = {"model": model.state(), "optimizer": optimizer.state_dict(), "record": record}
            replace(checkpoint, partial(torch.save, saved))
            ship(model, name, record)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m circuits.mini.train", description=__doc__.split("\n")[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--corpus", type=Path, required=True, help="folder whose */*.txt files are the text")
    parser.add_argument(
        "--work", type=Path, default=Path("training"), help="checkpoints, log and tokens go here"
    )
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--rate", type=float, default=1e-3, help="peak learning rate")
    parser.add_argument(
        "--repeats", type=int, default=REPEATS, help=f"rows of {ROWS} that repeat random tokens"
    )
    parser.add_argument(
        "--passages", type=int, default=PASSAGES, help="rows that say a passage again and again"
    )
    parser.add_argument(
        "--period", type=int, nargs=2, default=[16, 128], help="shortest and longest such passage"
    )
    parser.add_argument("--fade", type=int, default=FADE, help="steps a row of text, after the curriculum")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--from-shipped", action="store_true", help="go on from the weights in the package")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    train(args)


if __name__ == "__main__":
    main()

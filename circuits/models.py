"""Weights: from the hub, its cache or this package, to a `Checkpoint`, to a `HookedTransformer`.

The only file that knows TransformerLens' loader, the hub, its cache and the bundled weights:

1. files: `snapshot` brings a repository's files from the hub or its cache, each checked by its hash;
2. tensors: `conform` takes the parameters out of a file, each checked by name, shape and value;
3. models: `Checkpoint.model` gives them to a `HookedTransformer`, without a copy.
"""

import contextlib
import copy
import difflib
import hashlib
import json
import logging
import pickle
import re
import sys
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from circuits import Fault
from circuits.architecture import check
from circuits.layernorm import State, fold

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

PUBLISHED = {
    "attn-only-1l": "NeelNanda/Attn_Only_1L512W_C4_Code",
    "attn-only-2l": "NeelNanda/Attn_Only_2L512W_C4_Code",
    "gpt2": "openai-community/gpt2",
}
PUBLISHED_SIZES = {  # in the order of SIZES, for a list that asks nobody
    "attn-only-1l": (1, 8, 512, 64, 1024, 48262),
    "attn-only-2l": (2, 8, 512, 64, 1024, 48262),
    "gpt2": (12, 12, 768, 64, 1024, 50257),
}
BUNDLED = ("mini-1l", "mini-2l", "mini-tied-1l")
MINI = Path(__file__).parent / "mini"


class ModelError(Fault):
    """A model that cannot be used; the message is one line: what is wrong, and what would be right."""

    status = 3


class Unavailable(ModelError):
    """The weights can be had neither from the hub nor from its cache."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model's weights as they were saved, read once for both of its forms."""

    name: str
    cfg: dict[str, Any]  # fields of a HookedTransformerConfig, normalization_type "LN"
    state: State  # unfolded float32 parameters under TransformerLens' names
    tokenizer: Any  # None for gpt2
    source: dict[str, str]  # where the weights came from, for the results

    @property
    def config(self) -> Any:
        """The HookedTransformerConfig of the unfolded model."""
        from transformer_lens import HookedTransformerConfig

        return HookedTransformerConfig.from_dict(self.cfg | {"device": "cpu"})

    @cached_property
    def _folded(self) -> State:
        return fold(self.state)

    def folded(self) -> State:
        """The parameters with layer norm folded in (`circuits.layernorm.fold`), made once."""
        return self._folded

    def model(self, folded: bool = True) -> "HookedTransformer":
        """A model in evaluation mode, its parameters shared with this checkpoint and not copied.

        Equal to TransformerLens' `from_pretrained(name)`, or unfolded to `from_pretrained_no_processing`.
        Raises ModelError for gpt2, of which only the ends are read.
        """
        if "pos_embed.W_pos" not in self.state:
            raise ModelError(f"{self.name}: only its embedding and final norm are read, so there is no model")
        norm = "LNPre" if folded else "LN"
        built = {"normalization_type": norm, "dtype": torch.float32, "device": "cpu", "init_weights": False}
        with quietly(), float32_by_default():
            from transformer_lens import HookedTransformer, HookedTransformerConfig

            cfg = HookedTransformerConfig.from_dict(self.cfg | built)
            model = HookedTransformer(cfg, tokenizer=self.tokenizer, move_to_device=False)
        # Not strict, for the masks are TransformerLens' own: so see that every parameter arrives.
        state = self.folded() if folded else self.state
        model.load_state_dict(state, strict=False, assign=True)
        if odd := state.keys() ^ dict(model.named_parameters()).keys():
            raise ModelError(
                f"{self.name}: this TransformerLens names its parameters otherwise: {sorted(odd)}"
            )
        return model.eval()


def checkpoint(name: str) -> Checkpoint:
    """The weights of a bundled or a published model.

    Raises Unavailable where neither the hub nor its cache has them, ModelError where they are unusable or
    the name is of neither kind.
    """
    check_transformer_lens()
    if name in BUNDLED:
        return bundled(name)
    if name == "gpt2":
        return gpt2(PUBLISHED[name])
    if name in PUBLISHED:
        return attention_only(name, PUBLISHED[name])
    raise ModelError(f"no model {name!r}: {', '.join((*PUBLISHED, *BUNDLED))}")


def explored(name: str) -> "Checkpoint | Known":
    """Any model at all: a bundled or a published one, a folder ("./folder"), one that TransformerLens knows.

    Raises ModelError where it is none of these or unusable, and Unavailable where it is not to be had.
    """
    check_transformer_lens()
    if name in (*BUNDLED, *PUBLISHED) and name != "gpt2":  # of gpt2, `checkpoint` has the ends only
        return checkpoint(name)
    if name.startswith((".", "/", "~")) or (name and Path(name).is_dir() and not official(name)):
        return local(Path(name).expanduser())
    return Known(name)


class Known:
    """A model that TransformerLens itself loads; its configuration first, for it may not be covered."""

    def __init__(self, name: str):
        """Raises ModelError for a name that TransformerLens does not know."""
        if not official(name):
            known = [*known_to_transformer_lens(), *PUBLISHED, *BUNDLED]
            close = difflib.get_close_matches(name.lower(), known)
            raise ModelError(f"no model {name!r}" + (f"; near it: {', '.join(close)}" if close else ""))
        self.name = name

    @cached_property
    def config(self) -> Any:
        """Its HookedTransformerConfig, for which no weights are fetched. Raises Unavailable."""
        with quietly():
            from transformer_lens.loading_from_pretrained import get_pretrained_model_config

            try:
                return get_pretrained_model_config(official(self.name), device="cpu")
            except Exception as error:
                raise Unavailable(f"{self.name}: no configuration of it: {first_line(error)}") from error

    @property
    def source(self) -> dict[str, str]:
        """Where its weights come from: the repository, and the commit of it that the cache has."""
        from huggingface_hub import try_to_load_from_cache

        repository = official(self.name)
        config = try_to_load_from_cache(repository, "config.json")
        commit = {"commit": Path(config).parent.name} if isinstance(config, str) else {}
        return {"weights": "hub, by TransformerLens", "repository": repository} | commit

    def model(self, folded: bool = True) -> "HookedTransformer":
        """`from_pretrained(name)`, or unfolded `from_pretrained_no_processing`. Raises Unavailable."""
        return other(self.name, folded)


def other(name: str, folded: bool = True) -> "HookedTransformer":
    """Any other model that TransformerLens knows, by its own loader.

    Raises ModelError for a name it does not know, and Unavailable where its loader fails.
    """
    check_transformer_lens()
    Known(name)
    with quietly():
        from transformer_lens import HookedTransformer

        whole, plain = HookedTransformer.from_pretrained, HookedTransformer.from_pretrained_no_processing
        try:
            return (whole if folded else plain)(name, device="cpu").eval()
        except Exception as error:
            raise Unavailable(f"{name}: TransformerLens cannot load it: {first_line(error)}") from error


def official(name: str) -> str:
    """The repository of a model by any of its TransformerLens names, or "" for a name it does not know."""
    return known_to_transformer_lens().get(name.lower(), "")


def known_to_transformer_lens() -> dict[str, str]:
    with quietly():
        from transformer_lens.loading_from_pretrained import make_model_alias_map

        return make_model_alias_map()


def folded(model: "HookedTransformer") -> "HookedTransformer":
    """A copy of any model with its norm folded into its weights; `model` is left as it was.

    The same function of the prompt, up to one number added to all logits. Raises `architecture.NotCovered`
    for a model whose norm does not fold.
    """
    check(model.cfg)
    with quietly():
        made = copy.deepcopy(model)
        made.process_weights_()
    return made.eval()


def catalogue() -> list[str]:
    """The bundled and published models and their sizes, a line each."""
    lines = [f"{'':<14}layers  heads  d_model  d_head  vocabulary  context  from"]
    for name in (*BUNDLED, *PUBLISHED):
        if name in BUNDLED:
            with explained(f"{name}: the package's file cannot be read, install it again"):
                cfg = json.loads((MINI / f"{name}.json").read_text(encoding="utf-8"))
                size = (MINI / f"{name}.safetensors").stat().st_size
            sizes, where = [cfg[size] for size in SIZES], f"bundled, {size / 1e6:.1f} MB"
        else:
            sizes, where = PUBLISHED_SIZES[name], PUBLISHED[name]
        layers, heads, d_model, d_head, n_ctx, d_vocab = sizes
        numbers = f"{layers:>6}{heads:>7}{d_model:>9}{d_head:>8}{d_vocab:>12,}{n_ctx:>9,}"
        lines.append(f"{name:<14}{numbers}  {where}")
    return lines


def check_transformer_lens() -> None:
    """Raises ModelError where TransformerLens is missing or a version without `HookedTransformer`."""
    try:
        found = version("transformer_lens")
    except PackageNotFoundError:
        found = "none"
    if not re.match(r"3\.(9|\d\d)", found):
        need = "needs transformer_lens 3.x (>=3.9,<4)"
        raise ModelError(f"{need}, found {found}: pip install 'transformer_lens>=3.9,<4'")


# ---- models -------------------------------------------------------------------------------------------


def bundled(name: str) -> Checkpoint:
    """A model of `circuits/mini`: float16 on disk, and no W_U where it is W_E transposed."""
    from safetensors.torch import load_file

    weights, config = MINI / f"{name}.safetensors", MINI / f"{name}.json"
    with explained(f"{name}: the package's file cannot be read, install it again"):
        described = json.loads(config.read_text(encoding="utf-8"))
        cfg = {size: described[size] for size in SIZES}
        cfg |= {"model_name": name, "attn_only": True, "normalization_type": "LN"}
        found = {key: tensor.float() for key, tensor in load_file(weights).items()}
    if described.get("tied"):
        found["unembed.W_U"] = found["embed.W_E"].T.contiguous()
    source = {"weights": "bundled", "file": weights.name, "sha256": sha256(weights)}
    return Checkpoint(name, cfg, conform(found, shapes(cfg), weights), bundled_tokenizer(), source)


def bundled_tokenizer() -> Any:
    with quietly():
        from transformers import PreTrainedTokenizerFast

        # TransformerLens asks for a name_or_path, would fetch a tokenizer without add_bos_token, and
        # would name an end and a padding token that the vocabulary does not have.
        special = dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<|BOS|>")
        file = str(MINI / "tokenizer.json")
        return PreTrainedTokenizerFast(tokenizer_file=file, name_or_path=file, add_bos_token=True, **special)


def attention_only(name: str, repository: str) -> Checkpoint:
    """A published attention-only model: `config.json` and the state dict whose name ends in `final.pth`."""

    def wanted(names: list[str]) -> list[str]:
        finals = [file for file in names if file.endswith("final.pth")]
        return ["config.json", min(finals, key=len, default="*final.pth")]

    files = snapshot(repository, wanted)
    config, weights = files.values()
    cfg = attention_only_config(config) | {"model_name": repository.split("/")[-1]}
    state = conform(torch_load(weights), shapes(cfg), weights)
    source = hub_source(repository, files)
    return Checkpoint(name, cfg, state, tokenizer(cfg["tokenizer_name"], cfg["d_vocab"]), source)


def local(folder: Path) -> Checkpoint:
    """A folder laid out as the published repositories: `config.json` and one `*final.pth` state dict.

    The tokenizer is that of the folder's own files, else of its subfolder `tokenizer`, else of the
    repository that the configuration names. Raises ModelError, naming what is missing.
    """
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder")
    name, config = folder.resolve().name, folder / "config.json"
    if not config.is_file():
        raise ModelError(f"{folder}: no config.json in it")
    finals = sorted(folder.rglob("*final.pth"), key=lambda file: (len(str(file)), file))
    if not finals:
        raise ModelError(f"{folder}: no state dict in it whose name ends in final.pth")
    cfg = attention_only_config(config, named_tokenizer=False) | {"model_name": name}
    state = conform(torch_load(finals[0]), shapes(cfg), finals[0])
    source = {"weights": "folder", "file": finals[0].name, "sha256": sha256(finals[0])}
    marks = ("tokenizer.json", "tokenizer_config.json")
    for place in (folder, folder / "tokenizer"):
        if any((place / mark).is_file() for mark in marks):
            return Checkpoint(name, cfg, state, read_tokenizer(place, str(place), cfg["d_vocab"]), source)
    if not cfg.get("tokenizer_name"):
        raise ModelError(
            f"{folder}: no {marks[0]}, there or in tokenizer/, and no tokenizer_name in {config}"
        )
    return Checkpoint(name, cfg, state, tokenizer(cfg["tokenizer_name"], cfg["d_vocab"]), source)


def gpt2(repository: str) -> Checkpoint:
    """GPT-2's two ends: embedding, final layer norm and the tied unembedding, and its configuration."""
    from safetensors import safe_open

    files = snapshot(repository, lambda names: ["config.json", "model.safetensors"])
    config, weights = files.values()
    cfg = gpt2_config(config)
    ends = {"wte.weight": "embed.W_E", "ln_f.weight": "ln_final.w", "ln_f.bias": "ln_final.b"}
    with explained(f"{weights}: cannot be read as safetensors"), safe_open(weights, "pt") as opened:
        stored = {key.removeprefix("transformer."): key for key in opened.keys()}  # noqa: SIM118
        found = {ours: opened.get_tensor(stored[end]) for end, ours in ends.items() if end in stored}
    if "embed.W_E" in found:
        found["unembed.W_U"] = found["embed.W_E"].T
    state = conform(found, shapes(cfg, ends_only=True), weights)
    return Checkpoint("gpt2", cfg, state, None, hub_source(repository, files))


def tokenizer(repository: str, d_vocab: int) -> Any:
    """The tokenizer of a repository, which puts a BOS first. Raises ModelError where it exceeds d_vocab."""
    known = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
    known += ("vocab.json", "merges.txt", "config.json")
    files = snapshot(repository, lambda names: [name for name in known if name in names] or [known[0]])
    return read_tokenizer(next(iter(files.values())).parent, repository, d_vocab)


def read_tokenizer(folder: Path, repository: str, d_vocab: int) -> Any:
    """`tokenizer`, of a folder that has its files."""
    with quietly(), explained(f"{repository}: cannot be read as a tokenizer"):
        from transformers import AutoTokenizer

        loaded = AutoTokenizer.from_pretrained(folder, add_bos_token=True, trust_remote_code=False)
    if len(loaded) > d_vocab:
        raise ModelError(f"{repository}: {len(loaded)} tokens, more than the model's d_vocab of {d_vocab}")
    if len(loaded) < d_vocab:
        note(f"{repository}: {len(loaded)} tokens, fewer than the model's d_vocab of {d_vocab}")
    return loaded


# ---- configurations -----------------------------------------------------------------------------------

SIZES = ("n_layers", "n_heads", "d_model", "d_head", "n_ctx", "d_vocab")
# What TransformerLens' own loader would follow and the mathematics here does not cover.
COVERED = {"attn_only": True, "shortformer_pos": False, "final_rms": False, "architecture": "neel"}


def attention_only_config(file: Path, named_tokenizer: bool = True) -> dict[str, Any]:
    """The fields of a HookedTransformerConfig in a published `config.json`."""
    needed = (*SIZES, "attn_only") + ("tokenizer_name",) * named_tokenizer
    config = read_config(file, needed, SIZES)
    config["normalization_type"] = config.get("normalization", config.get("normalization_type"))
    if not config["normalization_type"]:
        raise ModelError(f"{file}: no field normalization")
    for field, covered in (COVERED | {"normalization_type": "LN"}).items():
        if config.get(field, covered) != covered:
            raise ModelError(f"{file}: {field} is {config[field]!r}, where only {covered!r} is covered here")
    used = (*SIZES, "attn_only", "tokenizer_name", "normalization_type", "d_mlp", "act_fn")
    return {field: config[field] for field in used if field in config} | {"original_architecture": "neel"}


def gpt2_config(file: Path) -> dict[str, Any]:
    """The fields of a HookedTransformerConfig in GPT-2's `config.json`."""
    needed = ("n_layer", "n_head", "n_embd", "vocab_size")
    config = read_config(file, needed, needed)
    d_model = config["n_embd"]
    return {
        "model_name": "gpt2",
        "n_layers": config["n_layer"],
        "n_heads": config["n_head"],
        "d_model": d_model,
        "d_head": d_model // config["n_head"],
        "d_mlp": config.get("n_inner") or 4 * d_model,
        "n_ctx": config.get("n_ctx") or config.get("n_positions"),
        "d_vocab": config["vocab_size"],
        "act_fn": config.get("activation_function", "gelu_new"),
        "normalization_type": "LN",
    }


def read_config(file: Path, needed: tuple[str, ...], sizes: tuple[str, ...]) -> dict[str, Any]:
    with explained(f"{file}: cannot be read as JSON"):
        config = dict(json.loads(file.read_text(encoding="utf-8")))
    if missing := [field for field in needed if field not in config]:
        raise ModelError(f"{file}: no field {', '.join(missing)}")
    for field in sizes:
        if type(config[field]) is not int or config[field] < 1:
            raise ModelError(f"{file}: {field} is {config[field]!r}, where a positive whole number is needed")
    return config


# ---- tensors ------------------------------------------------------------------------------------------


def shapes(cfg: dict[str, Any], ends_only: bool = False) -> dict[str, tuple[int, ...]]:
    """The name and shape of every parameter of an unfolded model; `ends_only` leaves out what is between."""
    d_model, d_vocab = cfg["d_model"], cfg["d_vocab"]
    heads, d_head = cfg["n_heads"], cfg["d_head"]
    named = {"embed.W_E": (d_vocab, d_model), "pos_embed.W_pos": (cfg["n_ctx"], d_model)}
    for layer in range(cfg["n_layers"]):
        block = f"blocks.{layer}."
        named |= {block + "ln1.w": (d_model,), block + "ln1.b": (d_model,)}
        named |= {f"{block}attn.W_{name}": (heads, d_model, d_head) for name in "QKV"}
        named |= {f"{block}attn.b_{name}": (heads, d_head) for name in "QKV"}
        named |= {block + "attn.W_O": (heads, d_head, d_model), block + "attn.b_O": (d_model,)}
    named |= {"ln_final.w": (d_model,), "ln_final.b": (d_model,)}
    named |= {"unembed.W_U": (d_model, d_vocab), "unembed.b_U": (d_vocab,)}
    ends = ("embed.", "ln_final.", "unembed.")
    return {name: shape for name, shape in named.items() if name.startswith(ends) or not ends_only}


def conform(found: dict[str, Any], needed: dict[str, tuple[int, ...]], file: Path) -> State:
    """The needed parameters as float32; a missing bias is zero, as in TransformerLens' loader.

    Raises ModelError, naming the file and the tensor, for a missing weight, a shape that is not the
    configuration's, or a value that is not finite.
    """
    masks = (".attn.mask", ".attn.IGNORE")  # TransformerLens makes these itself
    if unused := [name for name in found if name not in needed and not name.endswith(masks)]:
        note(f"{file}: not used: {', '.join(unused[:8])}{', ...' * (len(unused) > 8)}")
    if kinds := {found[name].dtype for name in needed if name in found} - {torch.float32}:
        note(f"{file}: float32 made of {', '.join(sorted(map(str, kinds)))}")
    state = {}
    for name, shape in needed.items():
        if name not in found and name.split(".")[-1].startswith("b"):
            state[name] = torch.zeros(shape, dtype=torch.float32)
            continue
        if name not in found:
            raise ModelError(f"{file}: no weight {name}, which the configuration says is {list(shape)}")
        tensor = found[name].detach()
        if tensor.shape != shape:
            raise ModelError(f"{file}: {name} is {list(tensor.shape)}, the configuration says {list(shape)}")
        # A sum is finite unless a value is not: one pass and no temporary.
        if not (tensor.is_floating_point() and tensor.sum(dtype=torch.float32).isfinite()):
            raise ModelError(f"{file}: {name} holds NaN, infinity or no numbers: fetch the file again")
        state[name] = tensor.float()
    return state


def torch_load(file: Path) -> dict[str, torch.Tensor]:
    """A state dict, memory-mapped unless it is in torch's old format; code in the pickle is never run."""
    mapped = zipfile.is_zipfile(file)
    try:
        with quietly():
            found = torch.load(file, map_location="cpu", mmap=mapped, weights_only=True)
    except pickle.UnpicklingError as error:
        code = re.search(r"GLOBAL (\S+)", str(error))
        what = f"a pickle that calls {code[1]}" if code else "a pickle of more than tensors"
        raise ModelError(
            f"{file}: {what}, where a state dict is needed: refused, nothing of it ran"
        ) from error
    except Exception as error:
        raise ModelError(f"{file}: cannot be read as a state dict of torch: {first_line(error)}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{file}: holds a {type(found).__name__}, where a state dict is needed")
    return {name: tensor for name, tensor in found.items() if isinstance(tensor, torch.Tensor)}


# ---- files: the hub and its cache ---------------------------------------------------------------------

PATIENCE = 4.0  # seconds for the hub to say what a repository holds
_unreachable: dict[str, tuple[float, Exception]] = {}  # hub: when and how it gave no answer, to wait once


def snapshot(repository: str, wanted: Callable[[list[str]], list[str]]) -> dict[str, Path]:
    """{name: file in the hub's cache}, of the files that `wanted` picks from the names in a repository.

    One question to the hub (which commit, which files); what the cache has of that commit is not fetched
    again. Where the hub does not say, the cache's own last commit. Every file is checked by its hash.

    Raises Unavailable where neither has the files, and ModelError for one that is damaged, that the
    repository does not have, or that the disk does not take.
    """
    with quietly():
        try:
            commit, names = listing(repository)
        except Exception as error:  # each major version of the hub's client raises its own kinds
            return from_cache(repository, wanted, explain(error))
        picked = wanted(names)
        if missing := [name for name in picked if name not in names]:
            raise ModelError(f"{repository}: the repository has no {', '.join(missing)}")
        return {name: download(repository, commit, name) for name in picked}


def listing(repository: str) -> tuple[str, list[str]]:
    """(commit, names of its files), from the hub. Not `snapshot_download`: it asks this without a timeout."""
    from huggingface_hub import HfApi, constants

    when, failure = _unreachable.get(constants.ENDPOINT, (-60.0, None))
    if failure and time.monotonic() - when < 60:
        raise failure
    try:
        info = patiently(lambda: HfApi().model_info(repository, timeout=PATIENCE))
    except Exception as error:
        if (status(error) or 500) >= 500:
            _unreachable[constants.ENDPOINT] = time.monotonic(), error
        raise
    return info.sha, [file.rfilename for file in info.siblings or ()]


def from_cache(repository: str, wanted: Callable[[list[str]], list[str]], reason: str) -> dict[str, Path]:
    """`snapshot` without a hub, for the reason given."""
    from huggingface_hub import constants, try_to_load_from_cache

    marks = (try_to_load_from_cache(repository, name) for name in ("config.json", "tokenizer.json"))
    folder = next((Path(mark).parent for mark in marks if isinstance(mark, str)), Path("no such folder"))
    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    picked = wanted(names)
    if missing := [name for name in picked if name not in names]:
        lacking = f"{', '.join(missing)} of {repository}"
        raise Unavailable(f"{lacking} not in the cache {constants.HF_HUB_CACHE}, and {reason}")
    if not constants.HF_HUB_OFFLINE:
        note(f"{repository}: from the cache, for {reason}")
    files = {name: folder / name for name in picked}
    for file in files.values():
        if damaged(file):
            raise ModelError(f"{file.resolve()}: damaged, its hash is not its name: delete it, and {reason}")
    return files


def download(repository: str, commit: str, name: str) -> Path:
    """One file of a commit, in the hub's cache; one that is damaged there is fetched again, once."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    def fetch(**how: Any) -> Path:
        return Path(patiently(lambda: hf_hub_download(repository, name, etag_timeout=PATIENCE, **how)))

    cached = try_to_load_from_cache(repository, name, revision=commit)
    try:
        # By default of the branch, and not of the commit: the client then notes the branch's commit in the
        # cache, which a later run without a hub goes by.
        file = Path(cached) if isinstance(cached, str) else fetch()
        if again := damaged(file):
            file = fetch(revision=commit, force_download=True)
    except Exception as error:
        kind = ModelError if of_this_machine(error) else Unavailable
        raise kind(f"{repository}/{name}: {explain(error)}") from error
    if not file.is_file():
        raise ModelError(f"{file}: a folder where a file should be: remove it")
    if commit not in file.parts:
        raise ModelError(f"{repository}: changed, or the hub failed, while it was fetched: run again")
    if again and damaged(file):
        raise ModelError(f"{file.resolve()}: damaged, also when fetched again: its hash is not its name")
    return file


def patiently(ask: Callable[[], Any]) -> Any:
    """What `ask` returns; where the hub has a passing fault of its own (HTTP 5xx), ask twice more."""
    for pause in (0.5, 1.0):
        try:
            return ask()
        except Exception as error:
            if (status(error) or 0) < 500:
                raise
        time.sleep(pause)
    return ask()


def status(error: BaseException | None) -> int | None:
    """The HTTP status behind an exception of the hub's client, which wraps some in others."""
    while error is not None:
        if code := getattr(getattr(error, "response", None), "status_code", None):
            return code
        error = error.__cause__
    return None


def of_this_machine(error: Exception) -> bool:
    """Whether it is the disk that fails, and not the hub; the client's own OSErrors have no number."""
    return isinstance(error, OSError) and bool(error.errno)


def explain(error: Exception) -> str:
    """Why the hub does not serve us, and the way out, as the end of a sentence."""
    from huggingface_hub import constants, get_token

    hub, code = constants.ENDPOINT, status(error)
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set: unset it, or set HF_HOME to a cache that has it"
    if of_this_machine(error):
        place = f"{error.filename or constants.HF_HUB_CACHE} cannot be used ({error.strerror})"
        return f"{place}: mend that, or set HF_HOME to another folder"
    if code == 401 and get_token():
        return f"{hub} refuses the token in HF_TOKEN or the token file (401): unset or renew it"
    if code in (401, 404):
        return f"{hub} has no public repository or file of that name ({code}): see HF_ENDPOINT"
    if code == 403:
        return f"{hub} forbids it (403): a token is needed that may read it"
    if code:
        return f"{hub} fails (HTTP {code}): try again later"
    return f"{hub} cannot be reached ({first_line(error)}): connect, or set HF_HOME to a cache that has it"


def damaged(file: Path) -> bool:
    """Whether a file is not what the cache named it by: its sha256, or git's sha1 for a small one."""
    blob = file.resolve()
    if re.fullmatch(r"[0-9a-f]{64}", blob.name):
        return sha256(blob) != blob.name
    if re.fullmatch(r"[0-9a-f]{40}", blob.name):
        content = blob.read_bytes()
        return hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest() != blob.name
    return False  # a cache without links, where files keep their own names


def hub_source(repository: str, files: dict[str, Path]) -> dict[str, str]:
    """Where weights came from: the last of a snapshot's files."""
    name, file = list(files.items())[-1]
    blob = file.resolve().name
    checksum = blob if len(blob) == 64 else sha256(file)  # `snapshot` has checked it
    commit = files["config.json"].parent.name
    return {"weights": "hub", "repository": repository, "commit": commit, "file": name, "sha256": checksum}


# ---- housekeeping -------------------------------------------------------------------------------------


def sha256(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def note(text: str) -> None:
    print(text, file=sys.stderr)


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Whatever goes wrong inside is a ModelError that begins with `what`."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{what}: {first_line(error)}") from error


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """No warnings, and what a library prints goes to stderr: stdout is the transcript's."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def float32_by_default() -> Iterator[None]:
    """TransformerLens makes a buffer of torch's default type, which is the caller's to choose."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)

"""Weights: from the hub, its cache or this package, to a `Checkpoint`, to a `HookedTransformer`.

The only file that knows TransformerLens' loader and the bundled weights:

1. files: `hub.snapshot` brings a repository's files from the hub or its cache, each checked by its hash;
2. tensors: `checked` looks once at the parameters in a file, at each one's name, shape and value;
3. models: `Checkpoint.model` maps them again and gives them to a `HookedTransformer`, without a copy.
"""

import contextlib
import copy
import difflib
import gc
import json
import os
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from circuits.architecture import check
from circuits.hub import (
    ModelError,
    Unavailable,
    explained,
    first_line,
    hub_source,
    note,
    quietly,
    sha256,
    snapshot,
)
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


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model's weights as they were saved. It holds none of them: what is not in use takes no memory."""

    name: str
    cfg: dict[str, Any]  # fields of a HookedTransformerConfig, normalization_type "LN"
    read: Callable[[], State]  # from the file, which is memory-mapped: no copy, milliseconds
    read_tokenizer: Callable[[], Any]  # of None for gpt2
    source: dict[str, str]  # where the weights came from, for the results

    @property
    def state(self) -> State:
        """The unfolded float32 parameters under TransformerLens' names."""
        return self.read()

    @cached_property
    def tokenizer(self) -> Any:
        """Its tokenizer. Raises ModelError where it cannot be read or exceeds d_vocab."""
        return self.read_tokenizer()

    @property
    def config(self) -> Any:
        """The HookedTransformerConfig of the unfolded model."""
        from transformer_lens import HookedTransformerConfig

        return HookedTransformerConfig.from_dict(self.cfg | {"device": "cpu"})

    def folded(self) -> State:
        """The parameters with layer norm folded in (`circuits.layernorm.fold`)."""
        return fold(self.state)

    def model(self, folded: bool = True) -> "HookedTransformer":
        """A model in evaluation mode, its parameters those of the mapped file or of the fold, not copied.

        Equal to TransformerLens' `from_pretrained(name)`, or unfolded to `from_pretrained_no_processing`.
        Raises ModelError for gpt2, of which only the ends are read.
        """
        state = self.state
        if folded:
            state = fold(state)
            # TransformerLens multiplies by W_U.T, made contiguous: laid out so, that is no copy at every run.
            state["unembed.W_U"] = state["unembed.W_U"].T.contiguous().T
        if "blocks.0.attn.W_O" not in state:
            raise ModelError(f"{self.name}: only its embedding and final norm are read, so there is no model")
        norm = "LNPre" if folded else "LN"
        built = {"normalization_type": norm, "dtype": torch.float32, "device": "cpu", "init_weights": False}
        with quietly(), float32_by_default():
            from transformer_lens import HookedTransformer, HookedTransformerConfig

            cfg = HookedTransformerConfig.from_dict(self.cfg | built)
            model = HookedTransformer(cfg, tokenizer=self.tokenizer, move_to_device=False)
        # Not strict, for the masks are TransformerLens' own: so see that every parameter arrives.
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
    if name.startswith((".", "/", "~")) or (name and os.path.isdir(name) and not official(name)):
        return local(Path(os.path.expanduser(name)))
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
            cfg = read_config(MINI / f"{name}.json", SIZES, SIZES)
            with explained(f"{name}: the package's file cannot be read, install it again"):
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


def import_client() -> None:
    """Import the hub's client, which may not be imported by two threads at once. Raises ModelError."""
    check_transformer_lens()
    with explained("the hub's client cannot be imported, see its variables such as HF_ENDPOINT"):
        import huggingface_hub.hf_api  # noqa: F401


def import_transformer_lens() -> None:
    """Import it, faster: its objects stay to the end, so that to look through them for garbage is in vain.

    Raises ModelError.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        with explained("transformer_lens cannot be imported"):
            import transformer_lens  # noqa: F401

        gc.freeze()
    finally:
        if enabled:
            gc.enable()


# ---- models -------------------------------------------------------------------------------------------


def bundled(name: str) -> Checkpoint:
    """A model of `circuits/mini`: float16 on disk, and no W_U where it is W_E transposed."""
    from safetensors.torch import load_file

    weights, config = MINI / f"{name}.safetensors", MINI / f"{name}.json"
    described = read_config(config, SIZES, SIZES)
    cfg = {size: described[size] for size in SIZES}
    cfg |= {"model_name": name, "attn_only": True, "normalization_type": "LN"}

    def load() -> State:
        with explained(f"{name}: the package's file cannot be read, install it again"):
            found = {key: tensor.float() for key, tensor in load_file(weights).items()}
        if described.get("tied"):
            found["unembed.W_U"] = found["embed.W_E"].T.contiguous()
        return found

    read = checked(load, shapes(cfg), weights)
    source = {"weights": "bundled", "file": weights.name, "sha256": sha256(weights)}
    return Checkpoint(name, cfg, read, bundled_tokenizer, source)


def bundled_tokenizer() -> Any:
    with quietly(), explained("the package's tokenizer.json cannot be read, install it again"):
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
    cfg = attention_only_config(config) | {"model_name": name}
    read = checked(lambda: torch_load(weights), shapes(cfg), weights)
    source = hub_source(repository, files)
    return Checkpoint(name, cfg, read, tokenizer(cfg["tokenizer_name"], cfg["d_vocab"]), source)


def local(folder: Path) -> Checkpoint:
    """A folder laid out as the published repositories: `config.json` and one `*final.pth` state dict.

    The tokenizer is that of the folder's own files, else of its subfolder `tokenizer`, else of the
    repository that the configuration names. Raises ModelError, naming what is missing.
    """
    if not os.path.isdir(folder):
        raise ModelError(f"{folder}: no such folder")
    name, config = folder.resolve().name, folder / "config.json"
    if not config.is_file():
        raise ModelError(f"{folder}: no config.json in it")
    finals = sorted(folder.rglob("*final.pth"), key=lambda file: (len(str(file)), file))
    if not finals:
        raise ModelError(f"{folder}: no state dict in it whose name ends in final.pth")
    cfg = attention_only_config(config, named_tokenizer=False) | {"model_name": name}
    read = checked(lambda: torch_load(finals[0]), shapes(cfg), finals[0])
    source = {"weights": "folder", "file": finals[0].name, "sha256": sha256(finals[0])}
    marks = ("tokenizer.json", "tokenizer_config.json")
    for place in (folder, folder / "tokenizer"):
        if any((place / mark).is_file() for mark in marks):
            of_place = partial(read_tokenizer, place, str(place), cfg["d_vocab"])
            return Checkpoint(name, cfg, read, of_place, source)
    if not cfg.get("tokenizer_name"):
        raise ModelError(
            f"{folder}: no {marks[0]}, there or in tokenizer/, and no tokenizer_name in {config}"
        )
    return Checkpoint(name, cfg, read, tokenizer(cfg["tokenizer_name"], cfg["d_vocab"]), source)


def gpt2(repository: str) -> Checkpoint:
    """GPT-2's two ends: embedding, final layer norm and the tied unembedding, and its configuration."""
    from safetensors import safe_open

    files = snapshot(repository, lambda names: ["config.json", "model.safetensors"])
    config, weights = files.values()
    cfg = gpt2_config(config)
    ends = {"wte.weight": "embed.W_E", "ln_f.weight": "ln_final.w", "ln_f.bias": "ln_final.b"}

    def load() -> State:
        with explained(f"{weights}: cannot be read as safetensors"), safe_open(weights, "pt") as opened:
            stored = {key.removeprefix("transformer."): key for key in opened.keys()}  # noqa: SIM118
            found = {ours: opened.get_tensor(stored[end]) for end, ours in ends.items() if end in stored}
        if "embed.W_E" in found:
            found["unembed.W_U"] = found["embed.W_E"].T
        return found

    read = checked(load, shapes(cfg, ends_only=True), weights)
    return Checkpoint("gpt2", cfg, read, lambda: None, hub_source(repository, files))


def tokenizer(repository: str, d_vocab: int) -> Callable[[], Any]:
    """A function that reads the tokenizer of a repository, whose files are here once this returns."""
    known = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
    known += ("vocab.json", "merges.txt", "config.json")
    files = snapshot(repository, lambda names: [name for name in known if name in names] or [known[0]])
    return partial(read_tokenizer_once, next(iter(files.values())).parent, repository, d_vocab)


def read_tokenizer(folder: Path, repository: str, d_vocab: int) -> Any:
    """The tokenizer of a folder, which puts a BOS first. Raises ModelError where it exceeds d_vocab."""
    with quietly(), explained(f"{repository}: cannot be read as a tokenizer"):
        from transformers import AutoTokenizer

        loaded = AutoTokenizer.from_pretrained(folder, add_bos_token=True, trust_remote_code=False)
    if len(loaded) > d_vocab:
        raise ModelError(f"{repository}: {len(loaded)} tokens, more than the model's d_vocab of {d_vocab}")
    if len(loaded) < d_vocab:
        note(f"{repository}: {len(loaded)} tokens, fewer than the model's d_vocab of {d_vocab}")
    return loaded


read_tokenizer_once = cache(read_tokenizer)  # the attention-only models have one between them


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


def checked(
    load: Callable[[], dict[str, Any]], needed: dict[str, tuple[int, ...]], file: Path
) -> Callable[[], State]:
    """A function that takes the needed parameters out of a file, as float32; checked once, here.

    A missing bias is zero, as in TransformerLens' loader. Raises ModelError, naming the file and the tensor,
    for a missing weight, a shape that is not the configuration's, or a value that is not finite.
    """
    found = load()
    masks = (".attn.mask", ".attn.IGNORE")  # TransformerLens makes these itself
    if unused := [name for name in found if name not in needed and not name.endswith(masks)]:
        note(f"{file}: not used: {', '.join(unused[:8])}{', ...' * (len(unused) > 8)}")
    if kinds := {found[name].dtype for name in needed if name in found} - {torch.float32}:
        note(f"{file}: float32 made of {', '.join(sorted(map(str, kinds)))}")
    for name, shape in needed.items():
        if name not in found and is_bias(name):
            continue
        if name not in found:
            raise ModelError(f"{file}: no weight {name}, which the configuration says is {list(shape)}")
        tensor = found[name].detach()
        if tensor.layout is not torch.strided:
            raise ModelError(f"{file}: {name} is {tensor.layout}, where a plain tensor is needed")
        if tensor.shape != shape:
            raise ModelError(f"{file}: {name} is {list(tensor.shape)}, the configuration says {list(shape)}")
        # A sum is finite unless a value is not: one pass and no temporary.
        if not (tensor.is_floating_point() and tensor.sum(dtype=torch.float64).isfinite()):
            raise ModelError(f"{file}: {name} holds NaN, infinity or no numbers: fetch the file again")

    def read() -> State:
        found = load()
        return {
            name: found[name].detach().float() if name in found else torch.zeros(shape, dtype=torch.float32)
            for name, shape in needed.items()
        }

    return read


def is_bias(name: str) -> bool:
    return name.split(".")[-1].startswith("b")


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


@contextlib.contextmanager
def float32_by_default() -> Iterator[None]:
    """TransformerLens makes a buffer of torch's default type, which is the caller's to choose."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)

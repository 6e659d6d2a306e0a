"""A hub on 127.0.0.1 that serves stand-in repositories to huggingface_hub, and fails on demand.

    with Hub({"NeelNanda/Attn_Only_2L512W_C4_Code": attention_only_repo(2), ...}) as hub:
        hub.statuses = [500]     # the next answers' status, before it is well again
        ...                      # a client with HF_ENDPOINT=hub.url

Faults are attributes, to be set at any time:
    statuses    list of HTTP statuses to answer with, one a request, before answering well
    status      a status for every request, whatever it asks
    silent      accept and never answer
    cut         how many of the next downloads to break off half-way
    cdn         send large files from another origin, as the real hub does
`hub.url + "/mirror"` is a mirror that redirects to the hub. A closed hub is one that is down.
"""

import hashlib
import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import torch
from safetensors.torch import save

MINI = Path(__file__).parents[1] / "circuits" / "mini"
TOKENIZER = "NeelNanda/gpt-neox-tokenizer-digits"
BOS = "<|BOS|>"
Files = dict[str, bytes]


class Hub:
    """A stand-in hub in a thread; `repositories` may be changed while it runs."""

    def __init__(self, repositories: dict[str, Files]):
        self.repositories = repositories
        self.requests: list[str] = []  # "METHOD /path", in the order of arrival
        self.statuses: list[int] = []
        self.status: int | None = None
        self.silent = False
        self.cut = 0
        self.cdn = False
        self._closing = threading.Event()

    def __enter__(self) -> "Hub":
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self._server.block_on_close = False
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def commit(self, repository: str) -> str:
        """The commit of a repository: 40 digits that change with its files."""
        files = sorted(self.repositories[repository].items())
        return hashlib.sha1(repr([(name, etag(name, data)) for name, data in files]).encode()).hexdigest()


def connect(monkeypatch, url: str, home: Path, offline: bool = False) -> None:
    """Point huggingface_hub, in this process, at a hub and a cache: what it reads from HF_* at its import."""
    from huggingface_hub import constants
    from huggingface_hub.utils import _detect_agent

    changes = {
        "ENDPOINT": url,
        "HUGGINGFACE_CO_URL_TEMPLATE": url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "AGENT_HARNESSES_PATH": str(home / ".agent_harnesses.json"),
        "HF_HUB_OFFLINE": offline,
    }
    for name, value in changes.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr(_detect_agent, "_registry", None)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"):
        monkeypatch.delenv(name, raising=False)


def etag(name: str, data: bytes) -> str:
    """What the real hub names a file by: sha256 for a large one, git's sha1 for the others."""
    if large(name):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def large(name: str) -> bool:
    return name.endswith((".pth", ".safetensors"))


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        hub = self.hub
        path = unquote(urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path}")
        if hub.silent:
            hub._closing.wait()
            self.close_connection = True
        elif path.startswith("/mirror/"):
            self.answer(307, headers={"Location": hub.url + self.path.removeprefix("/mirror")})
        elif hub.status or hub.statuses:
            self.answer(hub.status or hub.statuses.pop(0))
        elif path == "/api/agent-harnesses":
            self.answer(200, b"{}")
        elif path.startswith("/cdn/"):
            owner, name, file = path.removeprefix("/cdn/").split("/", 2)
            self.content(hub.repositories[f"{owner}/{name}"][file])
        else:
            self.repository(path)

    do_HEAD = do_GET

    def repository(self, path: str) -> None:
        for name, files in self.hub.repositories.items():
            if path in (f"/api/models/{name}", f"/api/models/{name}/revision/main"):
                return self.information(name, files)
            if path.startswith(f"/api/models/{name}/tree/"):
                return self.tree(files, path.removeprefix(f"/api/models/{name}/tree/"))
            if path.startswith(f"/{name}/resolve/"):
                _, file = path.removeprefix(f"/{name}/resolve/").split("/", 1)
                return self.resolve(name, file)
        return self.answer(404, headers={"X-Error-Code": "RepoNotFound"})

    def information(self, name: str, files: Files) -> None:
        siblings = [{"rfilename": file} for file in files]
        self.answer(
            200, json.dumps({"id": name, "sha": self.hub.commit(name), "siblings": siblings}).encode()
        )

    def tree(self, files: Files, path: str) -> None:
        if "/" in path:  # only the whole tree is kept here
            return self.answer(404, headers={"X-Error-Code": "EntryNotFound"})
        listed = []
        for name, data in files.items():
            entry = {"type": "file", "path": name, "size": len(data), "oid": etag(name, data)}
            lfs = (
                {"lfs": {"oid": etag(name, data), "size": len(data), "pointerSize": 134}}
                if large(name)
                else {}
            )
            listed.append(entry | lfs)
        return self.answer(200, json.dumps(listed).encode())

    def resolve(self, name: str, file: str) -> None:
        commit = {"X-Repo-Commit": self.hub.commit(name)}
        data = self.hub.repositories[name].get(file)
        if data is None:
            return self.answer(404, headers=commit | {"X-Error-Code": "EntryNotFound"})
        linked = (
            {"X-Linked-Etag": f'"{etag(file, data)}"', "X-Linked-Size": str(len(data))} if large(file) else {}
        )
        if self.hub.cdn and large(file):
            location = f"http://localhost:{self.hub.port}/cdn/{name}/{file}"
            return self.answer(302, headers=commit | linked | {"Location": location})
        return self.content(data, commit | linked | {"ETag": f'"{etag(file, data)}"'})

    def content(self, data: bytes, headers: dict[str, str] | None = None) -> None:
        """A file, or the rest of it where a range is asked for; broken off half-way where `cut` says so."""
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        span = (
            {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if "Range" in self.headers else {}
        )
        cut = self.command == "GET" and self.hub.cut > 0
        self.answer(
            206 if span else 200, data[start:], {"Accept-Ranges": "bytes"} | span | (headers or {}), cut
        )
        self.hub.cut -= cut

    def answer(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None, cut: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection |= cut

    def log_message(self, *_: object) -> None:
        pass


# ---- stand-in repositories ----------------------------------------------------------------------------


def attention_only_repo(
    n_layers: int,
    d_model: int = 32,
    n_heads: int = 4,
    d_head: int = 8,
    d_vocab: int = 300,
    n_ctx: int = 64,
    seed: int = 0,
    file: str = "model_final.pth",
    config: dict | None = None,
    tensors: dict[str, torch.Tensor | None] | None = None,
    save_as: dict | None = None,
) -> Files:
    """A repository laid out as the published attention-only ones, its weights random and all biases large.

    `config` and `tensors` are put over the made ones (None takes one away); `save_as` goes to torch.save.
    """
    fields = {
        "d_model": d_model,
        "n_layers": n_layers,
        "d_mlp": 4 * d_model,
        "d_head": d_head,
        "n_heads": n_heads,
        "n_ctx": n_ctx,
        "d_vocab": d_vocab,
        "act_fn": "solu_ln",
        "attn_only": True,
        "normalization": "LN",
        "shortformer_pos": False,
        "tokenizer_name": TOKENIZER,
    }
    state = attention_only_state(n_layers, d_model, n_heads, d_head, d_vocab, n_ctx, seed)
    return {
        "README.md": b"stand-in",
        "config.json": json.dumps(override(fields, config)).encode(),
        "checkpoints/model_000100.pth": b"never to be fetched",
        file: torch_save(override(state, tensors), **(save_as or {})),
    }


def attention_only_state(
    n_layers: int, d_model: int, n_heads: int, d_head: int, d_vocab: int, n_ctx: int, seed: int = 0
) -> dict[str, torch.Tensor]:
    """A state dict in the published order and shapes, with the buffers, random in every bias and norm."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32).normal_(0, scale, generator=generator)

    def norm(name: str) -> dict[str, torch.Tensor]:
        return {f"{name}.w": 1 + normal(d_model, scale=0.3), f"{name}.b": normal(d_model, scale=0.3)}

    state = {"embed.W_E": normal(d_vocab, d_model, scale=0.5)}
    state["pos_embed.W_pos"] = normal(n_ctx, d_model, scale=0.5)
    for layer in range(n_layers):
        attn = f"blocks.{layer}.attn."
        state |= norm(f"blocks.{layer}.ln1")
        state |= {f"{attn}W_{name}": normal(n_heads, d_model, d_head, scale=d_model**-0.5) for name in "QKV"}
        state[attn + "W_O"] = normal(n_heads, d_head, d_model, scale=d_model**-0.5)
        state |= {f"{attn}b_{name}": normal(n_heads, d_head, scale=0.3) for name in "QKV"}
        state[attn + "b_O"] = normal(d_model, scale=0.3)
        state[attn + "mask"] = torch.ones(n_ctx, n_ctx, dtype=torch.bool).tril()
        state[attn + "IGNORE"] = torch.tensor(-1e5, dtype=torch.float32)
    state |= norm("ln_final")
    state["unembed.W_U"] = normal(d_model, d_vocab, scale=d_model**-0.5)
    state["unembed.b_U"] = normal(d_vocab, scale=0.3)
    return state


def tokenizer_repo(words: tuple[str, ...] = (), d_vocab: int = 300) -> Files:
    """A fast tokenizer of exactly d_vocab tokens: the bundled one's first, unused ones, and the words'.

    Each word (with its leading space, if any) is one token. d_vocab is at least 257 and the words.
    """
    from tokenizers import Tokenizer

    described = json.loads((MINI / "tokenizer.json").read_text(encoding="utf-8"))
    model = described["model"]
    kept = min(len(model["vocab"]), d_vocab - len(words))
    model["vocab"] = {token: i for token, i in model["vocab"].items() if i < kept}
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) in model["vocab"]]
    base = Tokenizer.from_str(json.dumps(described))
    added = [word for word in words if len(base.encode(word).ids) > 1]
    model["vocab"] |= {f"<unused {i}>": i for i in range(kept, d_vocab - len(added))}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    described["added_tokens"] += [
        {"id": i, "content": word} | plain for i, word in enumerate(added, d_vocab - len(added))
    ]
    special = dict.fromkeys(("bos_token", "eos_token", "pad_token"), BOS)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1024} | special
    return {
        "tokenizer.json": json.dumps(described).encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
        "special_tokens_map.json": json.dumps(special).encode(),
    }


def gpt2_repo(
    n_layer: int = 2, n_embd: int = 32, n_head: int = 4, d_vocab: int = 300, prefix: str = ""
) -> Files:
    """GPT-2's configuration and safetensors file: the ends, and tensors between that nobody should read."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int, scale: float = 0.3) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32).normal_(0, scale, generator=generator)

    state = {"wte.weight": normal(d_vocab, n_embd), "wpe.weight": normal(1024, n_embd)}
    state |= {"ln_f.weight": 1 + normal(n_embd), "ln_f.bias": normal(n_embd)}
    for layer in range(n_layer):
        state[f"h.{layer}.ln_1.weight"] = 1 + normal(n_embd)
        state[f"h.{layer}.attn.c_attn.weight"] = normal(n_embd, 3 * n_embd)
        state[f"h.{layer}.mlp.c_fc.weight"] = normal(n_embd, 4 * n_embd)
    config = {"model_type": "gpt2", "n_layer": n_layer, "n_embd": n_embd, "n_head": n_head}
    config |= {"vocab_size": d_vocab, "n_ctx": 1024, "n_positions": 1024, "activation_function": "gelu_new"}
    return {
        "config.json": json.dumps(config).encode(),
        "model.safetensors": save({prefix + name: tensor for name, tensor in state.items()}),
        "pytorch_model.bin": b"never to be fetched",
    }


def override(made: dict, changes: dict | None) -> dict:
    return {name: value for name, value in (made | (changes or {})).items() if value is not None}


def torch_save(content: object, **how: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, **how)
    return file.getvalue()

"""The loader: bundled weights, published ones from a stand-in hub and its cache, and every fault we know."""

import contextlib
import dataclasses
import functools
import io
import json
import logging
import os
import pickle
import shutil
import socket
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from hub import (
    TOKENIZER,
    Hub,
    attention_only_repo,
    attention_only_state,
    connect,
    gpt2_repo,
    tokenizer_repo,
    torch_save,
)
from safetensors.torch import save_file

import circuits.hub
from circuits import models
from circuits.models import BUNDLED, MINI, PUBLISHED, Checkpoint, ModelError, Unavailable, checkpoint

ONE, TWO, GPT2 = PUBLISHED.values()
ROOT = Path(models.__file__).parents[1]
SHIPPED = [name for name in BUNDLED if (MINI / f"{name}.json").exists()]

cached_tokenizer_repo = functools.cache(tokenizer_repo)


def repositories(**changes) -> dict[str, dict[str, bytes]]:
    """attn-only-1l (with `changes`), gpt2 and the tokenizer, as small stand-ins."""
    tokens = cached_tokenizer_repo((" Barack", " Obama"))
    return {ONE: attention_only_repo(1, **changes), TOKENIZER: dict(tokens), GPT2: gpt2_repo()}


@pytest.fixture(autouse=True)
def _no_memory_of_other_hubs(monkeypatch):
    monkeypatch.setattr(circuits.hub, "_unreachable", {})


@pytest.fixture
def home(tmp_path) -> Path:
    return tmp_path / "hf"


@pytest.fixture
def serve(monkeypatch, home):
    """Serve repositories to this process; the cache outlives a hub, within a test."""
    running = []

    def start(repos: dict) -> Hub:
        hub = Hub(repos).__enter__()
        running.append(hub)
        connect(monkeypatch, hub.url, home)
        return hub

    yield start
    for hub in running:
        hub.__exit__()


@pytest.fixture
def offline(monkeypatch, home):
    """Cut this process off: HF_HUB_OFFLINE, and no socket connects."""

    def refuse(*_):
        raise AssertionError("a connection was tried")

    def cut() -> None:
        connect(monkeypatch, "http://127.0.0.1:1", home, offline=True)
        monkeypatch.setattr(socket.socket, "connect", refuse)

    return cut


def cached(home: Path, repository: str, name: str) -> Path:
    """The one cached copy of a file, where the link leads."""
    (file,) = (home / "hub" / f"models--{repository.replace('/', '--')}").glob(f"snapshots/*/{name}")
    return file.resolve()


def same(a: Checkpoint, b: Checkpoint) -> bool:
    return a.state.keys() == b.state.keys() and all(
        torch.equal(a.state[name], b.state[name]) for name in a.state
    )


def one_line(raised: pytest.ExceptionInfo) -> str:
    text = str(raised.value)
    assert "\n" not in text and len(text) < 500
    return text


# ---- bundled models -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_a_bundled_model_is_the_one_that_was_trained(name, offline, capfd):
    offline()
    train = pytest.importorskip("circuits.mini.train")
    loaded = checkpoint(name)
    cfg = json.loads((MINI / f"{name}.json").read_text(encoding="utf-8"))
    trained = train.AttentionOnly(cfg)
    trained.load(loaded.state)
    text = "Mr and Mrs Dursley, of number 42"
    model = loaded.model(folded=False)
    with torch.no_grad():
        expected = trained(model.to_tokens(text)) @ trained.W_U() + trained["unembed.b_U"]
        unfolded, folded = model(text), loaded.model()(text)
    torch.testing.assert_close(unfolded, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(folded.log_softmax(-1), expected.log_softmax(-1), rtol=0, atol=1e-4)
    assert cfg["tied"] == torch.equal(loaded.state["unembed.W_U"], loaded.state["embed.W_E"].T)
    assert loaded.source["weights"] == "bundled" and len(loaded.source["sha256"]) == 64
    assert capfd.readouterr() == ("", "")


def test_a_tied_model_is_stored_without_its_unembedding(monkeypatch, tmp_path):
    sizes = {"n_layers": 1, "d_model": 16, "n_heads": 2, "d_head": 4, "d_vocab": 8192, "n_ctx": 8}
    state = attention_only_state(**sizes)
    stored = {name: t.half() for name, t in state.items() if not name.endswith(("mask", "IGNORE", "W_U"))}
    save_file(stored, tmp_path / "mini-tied-1l.safetensors")
    (tmp_path / "mini-tied-1l.json").write_text(json.dumps(sizes | {"tied": True}))
    (tmp_path / "tokenizer.json").write_bytes((MINI / "tokenizer.json").read_bytes())
    monkeypatch.setattr(models, "MINI", tmp_path)
    loaded = checkpoint("mini-tied-1l")
    assert torch.equal(loaded.state["embed.W_E"], state["embed.W_E"].half().float())
    assert torch.equal(loaded.state["unembed.W_U"], loaded.state["embed.W_E"].T)
    assert loaded.model(folded=False).W_U.is_contiguous()
    (tmp_path / "mini-tied-1l.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="mini-tied-1l: the package's file cannot be read, install it again"):
        checkpoint("mini-tied-1l")


def test_the_bundled_tokenizer_puts_exactly_one_bos_first(offline):
    offline()
    model = checkpoint("mini-2l").model()
    text = "Mr and Mrs Dursley, of number 42"
    tokens = model.to_tokens(text)[0].tolist()
    assert tokens[0] == 0 and 0 not in tokens[1:]
    assert model.to_tokens(text, prepend_bos=False)[0].tolist() == tokens[1:]
    assert model.to_str_tokens(text)[:3] == ["<|BOS|>", "Mr", " and"]
    assert model.to_str_tokens(text)[-2:] == ["4", "2"]
    assert model.to_string(torch.tensor(tokens[1:])) == text
    assert model.to_single_token(" and") == tokens[2]
    assert model.to_tokens(["a", "b c d"]).shape == (2, 4)  # the shorter is padded


def test_a_model_has_the_parameters_that_were_read_and_no_copy_of_them():
    loaded = checkpoint("mini-1l")
    model = loaded.model()
    assert not model.training and model.cfg.normalization_type == "LNPre"
    state = loaded.state
    unfolded = dataclasses.replace(loaded, read=lambda: state).model(folded=False)
    assert unfolded.cfg.normalization_type == "LN"
    assert unfolded.W_E.data_ptr() == state["embed.W_E"].data_ptr()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("gradients", [True, False])
def test_the_callers_settings_change_nothing_and_are_left_alone(dtype, gradients):
    text = "Mr and Mrs Dursley"
    expected = checkpoint("mini-1l").model()(text).detach()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        filters = list(warnings.filters)
        before, enabled = torch.get_default_dtype(), torch.is_grad_enabled()
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)
        try:
            model = checkpoint("mini-1l").model()
            logits = model(text).detach()
            assert torch.get_default_dtype() == dtype and torch.is_grad_enabled() == gradients
        finally:
            torch.set_default_dtype(before)
            torch.set_grad_enabled(enabled)
        assert warnings.filters == filters and logging.root.manager.disable == logging.NOTSET
    assert not [warning for warning in warned if "deprecated" in str(warning.message)]
    assert logits.dtype == torch.float32 and torch.equal(logits, expected)
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32, torch.bool}


def test_a_name_of_no_model_lists_those_there_are():
    with pytest.raises(ModelError, match=r"no model 'mini-3l'.*mini-2l"):
        checkpoint("mini-3l")


@pytest.mark.parametrize("found", ["4.0.0", "4.0.0a1", "3.8.2", "2.16.1"])
def test_another_transformer_lens_is_refused_by_version(monkeypatch, found):
    monkeypatch.setattr(models, "version", lambda name: found)
    with pytest.raises(ModelError) as raised:
        checkpoint("mini-1l")
    assert "needs transformer_lens 3.x" in one_line(raised) and f"found {found}:" in one_line(raised)


@pytest.mark.parametrize("found", ["3.9.0", "3.10.1"])
def test_the_needed_transformer_lens_is_accepted(monkeypatch, found):
    monkeypatch.setattr(models, "version", lambda name: found)
    models.check_transformer_lens()


# ---- published models, as a user's own process loads them ---------------------------------------------

# Ours first, so that whatever is printed before the mark is ours; then TransformerLens' own.
COMPARE = """
import sys, torch
from circuits.models import checkpoint
assert not {"transformer_lens", "transformers", "huggingface_hub", "safetensors"} & set(sys.modules)
loaded = checkpoint("attn-only-2l")
ours = {True: loaded.model(), False: loaded.model(folded=False)}
text = " Barack Obama, of number 42"
tokens = ours[True].to_tokens(text)
print("MARK"); print("MARK", file=sys.stderr)
from transformer_lens import HookedTransformer
loaders = {True: HookedTransformer.from_pretrained, False: HookedTransformer.from_pretrained_no_processing}
for folded, load in loaders.items():
    theirs = load("attn-only-2l", device="cpu")
    mine, expected = dict(ours[folded].named_parameters()), dict(theirs.named_parameters())
    assert mine.keys() == expected.keys()
    assert all(parameter.shape == expected[name].shape for name, parameter in mine.items())
    assert max((parameter - expected[name]).abs().max() for name, parameter in mine.items()) < 1e-5
    named = {"model_name": "attn-only-2l"}  # as the articles name it; theirs is the repository's
    assert ours[folded].cfg.to_dict() == theirs.cfg.to_dict() | named
    assert torch.equal(tokens, theirs.to_tokens(text)) and tokens[0].tolist().count(0) == 1
    assert ours[folded].to_str_tokens(text) == theirs.to_str_tokens(text)
    assert (ours[folded](text) - theirs(text)).abs().max() < 1e-4
print(loaded.source, float(loaded.state["embed.W_E"].sum()))
"""
AGAIN = """
from circuits.models import checkpoint
loaded = checkpoint("attn-only-2l")
print(loaded.source, float(loaded.state["embed.W_E"].sum()))
"""


def run(code: str, **env: str) -> tuple[str, str]:
    """stdout and stderr of a Python process that imports our `circuits` and succeeds."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))} | env
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_a_published_model_is_the_one_transformer_lens_loads_from_hub_and_cache(tmp_path):
    repos = {TWO: attention_only_repo(2), TOKENIZER: tokenizer_repo((" Barack", " Obama"))}
    with Hub(repos) as hub:
        hub.cdn = True
        out, err = run(COMPARE, HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path))
        commit = hub.commit(TWO)
    assert out.startswith("MARK\n") and err.startswith(
        "MARK\n"
    )  # no chatter, and no bar where no terminal is
    found = out.splitlines()[-1]
    assert ONE not in found and TWO in found and commit in found and "model_final.pth" in found
    assert run(AGAIN, HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1") == (found + "\n", "")


# ---- published models, in this process ----------------------------------------------------------------


def test_only_what_is_needed_is_fetched_and_only_once(serve, home):
    repos = repositories(file="deep/er/model_final.pth")
    repos[ONE]["model_final.pth"] = attention_only_repo(1, seed=1)["model_final.pth"]
    hub = serve(repos)
    first = checkpoint("attn-only-1l")
    assert first.source["file"] == "model_final.pth"
    fetched = {
        path.split("/main/")[1] for path in hub.requests if path.startswith("GET") and "/resolve/" in path
    }
    tokenizer_files = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
    assert fetched == {"config.json", "model_final.pth"} | tokenizer_files
    before = {file: file.stat().st_mtime_ns for file in home.rglob("*")}
    hub.requests.clear()
    assert same(checkpoint("attn-only-1l"), first)
    assert [path for path in hub.requests if "agent" not in path] == [
        f"GET /api/models/{ONE}",
        f"GET /api/models/{TOKENIZER}",
    ]
    # Nothing was written, so a cache that is complete may be read-only.
    assert {file: file.stat().st_mtime_ns for file in home.rglob("*")} == before


def test_a_new_commit_on_the_hub_is_fetched_and_then_found_offline(serve, offline):
    hub = serve(repositories())
    old = checkpoint("attn-only-1l")
    hub.repositories[ONE] = attention_only_repo(1, seed=1)
    new = checkpoint("attn-only-1l")
    assert not same(old, new) and new.source["commit"] == hub.commit(ONE) != old.source["commit"]
    offline()
    assert same(checkpoint("attn-only-1l"), new)


def test_a_repository_that_changes_while_it_is_fetched(serve, monkeypatch):
    serve(repositories())
    listing = circuits.hub.listing
    monkeypatch.setattr(circuits.hub, "listing", lambda repository: ("0" * 40, listing(repository)[1]))
    with pytest.raises(
        ModelError, match=rf"{ONE}: changed, or the hub failed, while it was fetched: run again"
    ):
        checkpoint("attn-only-1l")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists what is mapped")
def test_weights_are_mapped_and_not_read_into_memory(serve, home):
    serve(repositories())
    loaded, file = checkpoint("attn-only-1l"), str(cached(home, ONE, "model_final.pth"))
    assert file not in Path("/proc/self/maps").read_text()  # none are held
    state = loaded.state
    assert state and file in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_of_gpt2_only_the_ends_are_read(serve, prefix):
    hub = serve({GPT2: gpt2_repo(prefix=prefix)})
    loaded = checkpoint("gpt2")
    state = loaded.state
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == {
        "embed.W_E": (300, 32),
        "ln_final.w": (32,),
        "ln_final.b": (32,),
        "unembed.W_U": (32, 300),
        "unembed.b_U": (300,),
    }
    assert torch.equal(state["unembed.W_U"], state["embed.W_E"].T) and not state["unembed.b_U"].any()
    assert state["ln_final.w"].mean() > 0.5 and state["ln_final.b"].any()
    cfg = loaded.cfg
    assert [cfg[size] for size in ("n_layers", "n_heads", "d_head", "d_mlp", "n_ctx")] == [2, 4, 8, 128, 1024]
    assert set(loaded.folded()) == {"embed.W_E", "unembed.W_U", "unembed.b_U"}
    assert loaded.source["file"] == "model.safetensors" and not any("bin" in path for path in hub.requests)
    with pytest.raises(ModelError, match="only its embedding and final norm"):
        loaded.model()


def test_another_model_goes_to_transformer_lens_quietly(monkeypatch, capfd):
    from transformer_lens import HookedTransformer

    def load(name, device):
        print("chatter")
        warnings.warn("deprecated", DeprecationWarning, stacklevel=1)
        return checkpoint("mini-1l").model()

    monkeypatch.setattr(HookedTransformer, "from_pretrained", load)
    assert models.other("gelu-1l").cfg.n_layers == 1
    assert capfd.readouterr().out == ""
    with pytest.raises(ModelError, match=r"no model 'gpt2-smal'; near it: .*gpt2-small"):
        models.other("gpt2-smal")
    monkeypatch.setattr(HookedTransformer, "from_pretrained", lambda name, device: 1 / 0)
    with pytest.raises(Unavailable, match="gelu-1l: TransformerLens cannot load it: division by zero"):
        models.other("gelu-1l")


# ---- faults of the hub --------------------------------------------------------------------------------


def test_a_hub_that_is_down_costs_no_time_and_is_named(serve, home):
    hub = serve(repositories())
    hub.__exit__()
    began = time.monotonic()
    for name in PUBLISHED:
        with pytest.raises(Unavailable) as raised:
            checkpoint(name)
        text = one_line(raised)
        assert PUBLISHED[name] in text and hub.url in text and str(home / "hub") in text
        assert "cannot be reached" in text and "HF_HOME" in text
    assert time.monotonic() - began < 2


def test_a_silent_hub_costs_less_than_ten_seconds_once(serve, capfd):
    hub = serve(repositories())
    expected = checkpoint("attn-only-1l")
    connected = serve({})  # the same cache, and a hub that has not yet been asked anything
    connected.silent = True
    began = time.monotonic()
    with pytest.raises(Unavailable, match="cannot be reached"):
        checkpoint("attn-only-2l")
    assert same(checkpoint("attn-only-1l"), expected)
    assert time.monotonic() - began < 9
    assert "from the cache" in capfd.readouterr().err
    assert len(connected.requests) == 2 and hub.url != connected.url  # its greeting and one question


def test_a_hub_whose_answer_trickles_in_is_not_waited_for(home, monkeypatch):
    """A byte now and then: no single read is late."""
    monkeypatch.setattr(circuits.hub, "PATIENCE", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    threading.Thread(target=answer, args=[connection], daemon=True).start()

        def answer(connection):
            with contextlib.suppress(OSError), connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while True:
                    connection.sendall(b" ")
                    time.sleep(0.1)

        threading.Thread(target=trickle, daemon=True).start()
        connect(monkeypatch, f"http://127.0.0.1:{server.getsockname()[1]}", home)
        began = time.monotonic()
        with pytest.raises(Unavailable, match="cannot be reached"):
            checkpoint("attn-only-1l")
        assert time.monotonic() - began < 4


def test_a_hub_that_was_unreachable_is_asked_again_after_a_minute(serve, monkeypatch):
    hub = serve(repositories())
    circuits.hub._unreachable[hub.url] = (time.monotonic(), ConnectionError("a moment ago"))
    with pytest.raises(Unavailable, match="a moment ago"):
        checkpoint("attn-only-1l")
    circuits.hub._unreachable[hub.url] = (time.monotonic() - 61, ConnectionError("a minute ago"))
    assert checkpoint("attn-only-1l").source["repository"] == ONE


@pytest.mark.parametrize("statuses", [[500], [503, 502]])
def test_a_hub_with_a_passing_fault_is_asked_again(serve, statuses):
    hub = serve(repositories())
    checkpoint("gpt2")  # greets the hub
    hub.statuses = statuses
    assert checkpoint("attn-only-1l").source["commit"] == hub.commit(ONE)
    assert not hub.statuses


@pytest.mark.parametrize(
    ("status", "token", "says"),
    [
        (401, "stale", r"refuses the token in HF_TOKEN .*\(401\): unset or renew it"),
        (401, None, r"no public repository .*\(401\)"),
        (403, "weak", r"forbids it \(403\): a token is needed"),
        (404, None, r"no public repository .*\(404\)"),
        (500, None, r"fails \(HTTP 500\): try again later"),
    ],
)
def test_a_hub_that_answers_otherwise_says_why_and_the_cache_still_serves(
    serve, monkeypatch, capfd, status, token, says
):
    hub = serve(repositories())
    expected = checkpoint("attn-only-1l")
    hub.requests.clear()
    hub.status = status
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(Unavailable, match=says) as raised:
        checkpoint("attn-only-2l")
    assert hub.url in one_line(raised) and ("token" in one_line(raised)) == bool(token)
    assert same(checkpoint("attn-only-1l"), expected)
    out, err = capfd.readouterr()
    assert out == "" and "from the cache" in err and f"{status}" in err
    # Three repositories, once each; or, where the hub itself fails, the first thrice and then no other.
    assert len(hub.requests) == 3


def test_a_mirror_that_redirects_is_followed(serve, monkeypatch, home):
    hub = serve(repositories())
    connect(monkeypatch, hub.url + "/mirror", home)
    assert checkpoint("attn-only-1l").source["commit"] == hub.commit(ONE)
    asked, redirected = hub.requests[:2]
    assert "/mirror/" in asked and redirected == asked.replace("/mirror", "")


def test_a_download_that_breaks_off_is_resumed(serve):
    hub = serve(repositories())
    expected = checkpoint("attn-only-1l")
    hub.repositories[ONE] = attention_only_repo(1, seed=1)
    hub.cut = 2  # the configuration and the weights
    loaded = checkpoint("attn-only-1l")
    assert hub.cut == 0 and not same(loaded, expected)
    assert loaded.state["embed.W_E"].isfinite().all()


@pytest.mark.parametrize("repos", [{}, {ONE: {"README.md": b"", "config.json": b"{}"}}])
def test_a_repository_without_the_weights(serve, repos):
    serve(repos)
    with pytest.raises(ModelError) as raised:
        checkpoint("attn-only-1l")
    assert ONE in one_line(raised) and ("final.pth" in one_line(raised))
    assert isinstance(raised.value, Unavailable) == (not repos)


def test_a_full_disk(serve, monkeypatch):
    from huggingface_hub import file_download

    def full(*_, **__):  # a disk of our own to fill cannot be had here
        raise OSError(28, "No space left on device")

    serve(repositories())
    monkeypatch.setattr(file_download, "http_get", full)
    with pytest.raises(ModelError, match=r"cannot be used \(No space left on device\).*HF_HOME") as raised:
        checkpoint("attn-only-1l")
    assert not isinstance(raised.value, Unavailable) and ONE in one_line(raised)


def test_a_cache_that_cannot_be_made(serve, monkeypatch, tmp_path):
    hub = serve(repositories())
    (tmp_path / "file").write_text("not a folder")
    connect(monkeypatch, hub.url, tmp_path / "file" / "home")
    with pytest.raises(ModelError, match=r"cannot be used \(Not a directory\).*HF_HOME") as raised:
        checkpoint("attn-only-1l")
    assert str(tmp_path / "file") in one_line(raised)


def test_a_home_that_does_not_exist(serve, home):
    assert not home.parent.joinpath("hf").exists()
    serve(repositories())
    checkpoint("attn-only-1l")
    assert cached(home, ONE, "model_final.pth").is_file()


# ---- faults of the cache ------------------------------------------------------------------------------


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


HARM = {
    "truncated": lambda file: os.truncate(file, file.stat().st_size // 2),
    "a flipped bit": flip,
    "empty": lambda file: os.truncate(file, 0),
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
@pytest.mark.parametrize(
    ("repository", "name"), [(ONE, "model_final.pth"), (ONE, "config.json"), (TOKENIZER, "tokenizer.json")]
)
def test_a_damaged_file_is_fetched_again_or_refused_offline(serve, offline, home, harm, repository, name):
    serve(repositories())
    expected = checkpoint("attn-only-1l")
    text = cached(home, repository, name).read_bytes()
    expected_state = {key: tensor.clone() for key, tensor in expected.state.items()}  # the file is mapped
    del expected
    harm(cached(home, repository, name))
    again = checkpoint("attn-only-1l")
    assert all(torch.equal(again.state[key], tensor) for key, tensor in expected_state.items())
    assert cached(home, repository, name).read_bytes() == text
    del again
    harm(cached(home, repository, name))
    offline()
    with pytest.raises(ModelError, match="damaged, its hash is not its name: delete it") as raised:
        checkpoint("attn-only-1l")
    assert str(cached(home, repository, name)) in one_line(raised)
    assert not isinstance(raised.value, Unavailable)


def test_a_file_that_comes_damaged_from_the_hub_is_refused(serve, monkeypatch):
    hub = serve(repositories())
    monkeypatch.setattr("hub.etag", lambda name, data: "0" * 64)
    with pytest.raises(ModelError, match="damaged, also when fetched again"):
        checkpoint("attn-only-1l")
    assert sum("GET" in path and "/config.json" in path for path in hub.requests) == 2


def test_a_folder_where_a_file_should_be(serve, offline, home):
    serve(repositories())
    checkpoint("gpt2")
    (link,) = home.rglob("snapshots/*/model.safetensors")
    link.unlink()
    link.mkdir()
    with pytest.raises(ModelError, match=r"model\.safetensors: a folder where a file should be: remove it"):
        checkpoint("gpt2")
    offline()
    with pytest.raises(Unavailable, match=r"model\.safetensors .*not in the cache.*HF_HUB_OFFLINE is set"):
        checkpoint("gpt2")


# ---- faults of the files ------------------------------------------------------------------------------


class Evil:
    """Pickled, this is a call of Path.touch."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("how", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "old"])
def test_a_pickle_with_code_is_refused_and_nothing_of_it_runs(serve, tmp_path, how):
    mark = tmp_path / "it ran"
    repos = repositories()
    repos[ONE]["model_final.pth"] = torch_save({"embed.W_E": torch.zeros(300, 32), "x": Evil(mark)}, **how)
    serve(repos)
    with pytest.raises(ModelError, match=r"final\.pth: a pickle that calls \S+, .* refused") as raised:
        checkpoint("attn-only-1l")
    assert not isinstance(raised.value, Unavailable) and len(one_line(raised))
    assert not mark.exists()
    torch.load(cached(tmp_path / "hf", ONE, "model_final.pth"), weights_only=False)
    assert mark.exists()  # it is a pickle that runs, where it is let


def test_a_plain_pickle_with_code_is_refused_too(serve, tmp_path):
    repos = repositories()
    repos[ONE]["model_final.pth"] = pickle.dumps(Evil(tmp_path / "it ran"))
    serve(repos)
    with pytest.raises(ModelError, match=r"final\.pth"):
        checkpoint("attn-only-1l")
    assert not (tmp_path / "it ran").exists()


TENSOR_FAULTS = {
    "no weight": ({"blocks.0.attn.W_K": None}, r"no weight blocks\.0\.attn\.W_K, .*\[4, 32, 8\]"),
    "no norm": ({"blocks.0.ln1.w": None}, r"no weight blocks\.0\.ln1\.w"),
    "shape": ({"unembed.W_U": torch.zeros(300, 32)}, r"unembed\.W_U is \[300, 32\], .* says \[32, 300\]"),
    "NaN": ({"embed.W_E": torch.full((300, 32), torch.nan)}, r"embed\.W_E holds NaN"),
    "one infinity": (
        {"unembed.b_U": torch.tensor([torch.inf] + [0.0] * 299)},
        r"unembed\.b_U holds NaN, inf",
    ),
    "two infinities": ({"unembed.b_U": torch.tensor([torch.inf, -torch.inf] * 150)}, r"unembed\.b_U holds"),
    "whole numbers": (
        {"embed.W_E": torch.zeros(300, 32, dtype=torch.int64)},
        r"embed\.W_E holds .*no numbers",
    ),
}


@pytest.mark.parametrize(("tensors", "says"), TENSOR_FAULTS.values(), ids=TENSOR_FAULTS)
def test_a_faulty_tensor_is_named_with_its_file(serve, tensors, says):
    serve(repositories(tensors=tensors))
    with pytest.raises(ModelError, match=r"model_final\.pth: .*" + says) as raised:
        checkpoint("attn-only-1l")
    assert not isinstance(raised.value, Unavailable) and len(one_line(raised))


@pytest.mark.parametrize("content", [b"no torch file", torch_save([1, 2]), torch_save({})])
def test_a_file_of_something_else_is_named(serve, content):
    repos = repositories()
    repos[ONE]["model_final.pth"] = content
    serve(repos)
    with pytest.raises(
        ModelError, match=r"model_final\.pth: (cannot be|a pickle|holds a list|no weight)"
    ) as raised:
        checkpoint("attn-only-1l")
    assert len(one_line(raised))


def test_lenient_where_transformer_lens_is(serve, capfd):
    serve(
        repositories(
            tensors={
                "blocks.0.attn.b_Q": None,
                "unembed.b_U": None,
                "scale": torch.ones(1),
                "note": "not a tensor",
                "embed.W_E": torch.nn.Parameter(torch.ones(300, 32)),
            },
            config={"normalization": None, "normalization_type": "LN", "extra": 1, "shortformer_pos": None},
        )
    )
    loaded = checkpoint("attn-only-1l")
    assert not loaded.state["blocks.0.attn.b_Q"].any() and not loaded.state["unembed.b_U"].any()
    assert not loaded.state["embed.W_E"].requires_grad
    (said,) = capfd.readouterr().err.splitlines()
    assert said.endswith("model_final.pth: not used: scale")
    assert loaded.model().W_Q.shape == (1, 4, 32, 8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_become_float32_and_it_is_said(serve, capfd, dtype):
    state = torch.load(io.BytesIO(attention_only_repo(1)["model_final.pth"]), weights_only=True)
    cast = {name: t.to(dtype) if t.is_floating_point() else t for name, t in state.items()}
    serve(repositories(tensors=cast))
    loaded = checkpoint("attn-only-1l")
    assert {tensor.dtype for tensor in loaded.state.values()} == {torch.float32}
    assert all(torch.equal(tensor, cast[name].float()) for name, tensor in loaded.state.items())
    (said,) = capfd.readouterr().err.splitlines()
    assert said.endswith(f"model_final.pth: float32 made of {dtype}")


def test_large_weights_are_finite(serve):
    """Though their sum, in float32, is not."""
    state = torch.load(io.BytesIO(attention_only_repo(1)["model_final.pth"]), weights_only=True)
    state["unembed.b_U"][:2] = 3e38
    serve(repositories(tensors=state))
    assert checkpoint("attn-only-1l").state["unembed.b_U"][0] > 2e38


def test_a_sparse_tensor_is_refused(serve):
    state = torch.load(io.BytesIO(attention_only_repo(1)["model_final.pth"]), weights_only=True)
    state["embed.W_E"] = state["embed.W_E"].to_sparse()
    serve(repositories(tensors=state))
    with pytest.raises(ModelError, match=r"embed\.W_E is torch\.sparse_coo, where a plain tensor is needed"):
        checkpoint("attn-only-1l")


@pytest.mark.parametrize("content", [None, b"{}", b"{"])
def test_a_damaged_tokenizer_of_the_package_is_named(tmp_path, monkeypatch, content):
    shutil.copytree(MINI, tmp_path / "mini")
    file = tmp_path / "mini" / "tokenizer.json"
    file.unlink() if content is None else file.write_bytes(content)
    monkeypatch.setattr(models, "MINI", tmp_path / "mini")
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read, install it again") as raised:
        checkpoint("mini-1l").model()
    assert one_line(raised)


@pytest.mark.parametrize("field", ["2", -1, None])
def test_a_damaged_configuration_of_the_package_is_named(tmp_path, monkeypatch, field):
    shutil.copytree(MINI, tmp_path / "mini")
    file = tmp_path / "mini" / "mini-1l.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"n_layers": field}))
    monkeypatch.setattr(models, "MINI", tmp_path / "mini")
    for use in (lambda: checkpoint("mini-1l"), models.catalogue):
        with pytest.raises(ModelError, match=r"mini-1l\.json: n_layers is .*, where a positive whole number"):
            use()


def test_torchs_old_format_loads_without_mapping(serve):
    serve(repositories())
    expected = checkpoint("attn-only-1l")
    serve(repositories(save_as={"_use_new_zipfile_serialization": False}))
    loaded = checkpoint("attn-only-1l")
    assert loaded.source["sha256"] != expected.source["sha256"] and same(loaded, expected)


CONFIG_FAULTS = {
    **{f"no {field}": ({field: None}, rf"no field .*{field}") for field in ("d_model", "n_ctx", "d_vocab")},
    **{f"no {field}": ({field: None}, rf"no field .*{field}") for field in ("n_layers", "n_heads", "d_head")},
    **{f"no {field}": ({field: None}, rf"no field .*{field}") for field in ("attn_only", "tokenizer_name")},
    "no normalization": ({"normalization": None}, "no field normalization"),
    "shortformer": ({"shortformer_pos": True}, "shortformer_pos is True, where only False"),
    "another norm": ({"normalization": "RMS"}, "normalization_type is 'RMS', where only 'LN'"),
    "no norm": ({"normalization": "none"}, "normalization_type is 'none'"),
    "MLPs": ({"attn_only": False}, "attn_only is False"),
    "old weights": ({"architecture": "neel-solu-old"}, "architecture is 'neel-solu-old'"),
    "a size in words": ({"d_model": "512"}, "d_model is '512', where a positive whole number"),
    "no heads": ({"n_heads": 0}, "n_heads is 0"),
}


@pytest.mark.parametrize(("config", "says"), CONFIG_FAULTS.values(), ids=CONFIG_FAULTS)
def test_a_faulty_configuration_is_named(serve, config, says):
    serve(repositories(config=config))
    with pytest.raises(ModelError, match=r"config\.json: " + says) as raised:
        checkpoint("attn-only-1l")
    assert not isinstance(raised.value, Unavailable) and len(one_line(raised))


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff"])
def test_a_configuration_that_is_no_json_object(serve, content):
    repos = repositories()
    repos[ONE]["config.json"] = repos[GPT2]["config.json"] = content
    serve(repos)
    for name in "attn-only-1l", "gpt2":
        with pytest.raises(ModelError, match=r"config\.json: cannot be read as JSON"):
            checkpoint(name)


def test_a_faulty_gpt2(serve):
    repos = {GPT2: gpt2_repo()}
    hub = serve(repos)
    repos[GPT2]["model.safetensors"] = b"no safetensors"
    with pytest.raises(ModelError, match=r"model\.safetensors: cannot be read as safetensors"):
        checkpoint("gpt2")
    hub.repositories[GPT2] = gpt2_repo(d_vocab=100) | {"config.json": gpt2_repo()["config.json"]}
    with pytest.raises(ModelError, match=r"model\.safetensors: embed\.W_E is \[100, 32\], .* \[300, 32\]"):
        checkpoint("gpt2")


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(serve, capfd):
    repos = repositories()
    repos[TOKENIZER] = tokenizer_repo((), 301)
    hub = serve(repos)
    loaded = checkpoint("attn-only-1l")
    with pytest.raises(ModelError, match=rf"{TOKENIZER}: 301 tokens, more than the model's d_vocab of 300"):
        loaded.model()
    hub.repositories[TOKENIZER] = tokenizer_repo((), 299)
    checkpoint("attn-only-1l").model()
    assert "299 tokens, fewer than the model's d_vocab of 300" in capfd.readouterr().err


def test_a_tokenizer_that_cannot_be_read(serve):
    repos = repositories()
    repos[TOKENIZER]["tokenizer.json"] = b"{}"
    serve(repos)
    with pytest.raises(ModelError, match=rf"{TOKENIZER}: cannot be read as a tokenizer") as raised:
        checkpoint("attn-only-1l").model()
    assert len(one_line(raised))


def test_a_tokenizers_own_code_is_not_run(serve, home, monkeypatch):
    repos = repositories()
    settings = json.loads(repos[TOKENIZER]["tokenizer_config.json"])
    settings |= {"tokenizer_class": "Odd", "auto_map": {"AutoTokenizer": ["odd.Odd", None]}}
    repos[TOKENIZER]["tokenizer_config.json"] = json.dumps(settings).encode()
    repos[TOKENIZER]["odd.py"] = b"raise SystemExit('the code ran')"
    hub = serve(repos)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question was asked"))
    try:
        checkpoint("attn-only-1l")  # as a plain tokenizer, or not at all
    except ModelError as error:
        assert TOKENIZER in str(error)
    assert not any("odd.py" in path for path in hub.requests)

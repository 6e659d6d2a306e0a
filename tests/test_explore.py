"""Any head, any prompt, any model: the options as a user gives them, in this process where that can be."""

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import hub
import pytest
import torch
from models_of_all_kinds import KINDS, make

import circuits_part1
import circuits_part2
from circuits import Fault, cli, explore, models, residual, vocabulary

ROOT = Path(__file__).parent.parent
PARTS = {"part1": circuits_part1, "part2": circuits_part2}
GREEN = "green tea, so I drink green"


def run(part, *argv):
    """The exit status of a script's own command line."""
    script = PARTS[part]
    try:
        return cli.run(part, script.sections, script.TABLES, script.explore, argv)
    except SystemExit as stop:
        return stop.code


def write(folder, files):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder ./own with a two-layer model of 300 tokens, nearly all of them bytes; it is below the cwd."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "own", hub.attention_only_repo(2, n_ctx=256) | hub.tokenizer_repo((" tea", " green")))
    return tmp_path


def results(folder, part):
    return json.loads((folder / f"{part}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("part, name", [("part1", r"own-[0-9a-f]{8}"), ("part2", r"own-1\.2-[0-9a-f]{8}")])
def test_a_folder_of_ones_own_is_taken_apart_into_a_folder_of_its_own(own, part, name, capsys):
    head = ["--head", "1.2"] if part == "part2" else []
    assert run(part, "--model", "./own", "--prompt", GREEN, *head) == 0
    (folder,) = (own / "results" / "explore").iterdir()
    assert re.fullmatch(name, folder.name)
    measured = results(folder, part)
    checksum = models.sha256(own / "own" / "model_final.pth")
    assert measured["quantities"]["0.prompt"] == GREEN
    assert measured["quantities"].get("0.head") == (head[1] if head else None)
    assert measured["models"] == {"own": {"weights": "folder", "file": "model_final.pth", "sha256": checksum}}
    assert capsys.readouterr().out == (folder / f"{part}_stdout.txt").read_text(encoding="utf-8")
    other = "part2" if part == "part1" else "part1"
    assert run(other, "--model", "./own", "--prompt", GREEN + "!") == 0  # another prompt, another folder
    assert len(list((own / "results" / "explore").iterdir())) == 2


def test_the_head_that_is_named_is_the_one_that_is_read(own):
    for head in ("0.3", "1.1"):
        assert run("part2", "--model", "./own", "--prompt", GREEN, "--head", head, "--out", head) == 0
    model = models.local(own / "own").model().requires_grad_(False)
    for layer, head in ((0, 3), (1, 1)):
        S = torch.linalg.svdvals(model.W_V[layer, head] @ model.W_O[layer, head])
        measured = results(own / f"{layer}.{head}", "part2")["quantities"]
        assert measured["5.W_OV.singular_values.first"] == pytest.approx(S[0].item(), rel=1e-4)


def test_without_a_head_the_one_that_raises_the_predicted_token_most(own):
    assert run("part2", "--model", "./own", "--prompt", GREEN, "--out", "two") == 0
    assert run("part1", "--model", "./own", "--prompt", GREEN, "--out", "one") == 0
    largest = results(own / "one", "part1")["quantities"]["3.largest_head"]
    transcript = (own / "two" / "part2_stdout.txt").read_text(encoding="utf-8")
    assert f"head {largest}, the paper's shapes" in transcript
    assert results(own / "two", "part2")["quantities"]["0.head"] == largest
    part1, part2 = results(own / "one", "part1"), results(own / "two", "part2")
    assert part2["quantities"]["3.prediction"] == part1["quantities"]["3.prediction"]


def test_words_are_looked_up_with_their_spaces_and_once(own):
    options = ["--model", "./own", "--prompt", "x", "--words", " tea, green, tea"]
    assert run("part2", *options, "--out", "out") == 0 and run("part1", *options, "--out", "out") == 0
    model = models.local(own / "own").model()
    tea, green = (vocabulary.single_token(model, word) for word in (" tea", " green"))
    for part, id, last in (
        ("part1", "4.direct", "top5"),
        ("part2", "7.ov", "top6"),
        ("part2", "7.qk", "top8"),
    ):
        ids = [
            name for name in results(own / "out", part)["quantities"] if re.match(rf"{id}\..*{last}$", name)
        ]
        assert ids == [f"{id}.tea#{tea}.{last}", f"{id}.green#{green}.{last}"]


def test_without_words_the_tokens_of_the_prompt_once_each(own):
    assert run("part1", "--model", "./own", "--prompt", "aba tea", "--out", "out") == 0
    names = results(own / "out", "part1")["quantities"]
    looked_up = [name for name in names if name.startswith("4.direct.") and name.endswith("top5")]
    assert [name.split(".")[2].split("#")[0] for name in looked_up] == ["a", "b", "tea"]


def test_a_piece_of_a_character_is_told_from_others_by_its_id(own, capsys):
    assert run("part2", "--model", "./own", "--prompt", "чай 🙂", "--out", "out") == 0
    tokens = results(own / "out", "part2")["quantities"]["3.tokens"]
    pieces = [token for token in tokens if "\ufffd" in token]
    assert len(pieces) >= 4  # the smiling face is four bytes here
    assert all(re.fullmatch(r"\s?\ufffd+#\d+", piece) for piece in pieces)
    assert len(set(pieces)) > 3
    looked_up = [
        name for name in results(own / "out", "part2")["quantities"] if name.startswith("7.ov.\ufffd")
    ]
    assert looked_up and all(name.count("#") == 1 for name in looked_up)


def test_text_that_spells_a_special_token_is_that_token_and_said_to_be(own, capsys):
    assert run("part2", "--model", "./own", "--prompt", "a<|BOS|>b", "--out", "out") == 0
    said = "'<|BOS|>' in it is read as that special token, not as its letters"
    assert said in capsys.readouterr().out
    assert results(own / "out", "part2")["quantities"]["3.tokens"] == ["<|BOS|>", "a", "<|BOS|>", "b"]
    assert run("part2", "--model", "./own", "--prompt", "ab", "--out", "out") == 0
    assert "special token" not in capsys.readouterr().out


@pytest.mark.parametrize("part", PARTS)
def test_an_empty_prompt_is_the_bos_alone(own, part):
    assert run(part, "--model", "./own", "--prompt", "", "--out", "out") == 0
    found = results(own / "out", part)["quantities"]
    assert found["2.n_tokens"] == 1 if part == "part1" else found["3.tokens"] == ["<|BOS|>"]


def test_an_empty_prompt_is_nothing_to_a_model_without_a_bos():
    model = make(**KINDS["beside the heads, part rotary, as GPT-NeoX"])
    with pytest.raises(
        Fault, match="an empty prompt is no token for made, whose prompts begin without a BOS"
    ):
        vocabulary.tokens(model, "")
    assert len(vocabulary.tokens(model, "a")) == 1  # and a prompt of one token is one


FAULTS = [
    (["--prompt", "a" * 300], "the prompt is 301 tokens, more than the 256 of own's context"),
    (["--prompt", "a\udcff"], "is not text"),
    (["--words", " tea,xyz"], "'xyz' is 3 tokens for own: ['x', 'y', 'z']"),
    (["--head", "9.9"], "no head 9.9: own has heads 0.0 to 1.3"),
    (["--head", "0.4"], "no head 0.4: own has heads 0.0 to 1.3"),
    (["--head", "3"], "argument --head: '3' is not LAYER.HEAD, such as 0.3"),
    (["--head", "0.x"], "argument --head: '0.x' is not LAYER.HEAD"),
    (["--words", " tea,"], "argument --words: ' tea,' has an empty word"),
    (["--words", ""], "argument --words: '' has an empty word"),
    (["--models", "mini"], "argument --models: not allowed with argument --model"),
    (["--list"], "argument --list: not allowed with argument --model"),
]


@pytest.mark.parametrize("options, message", FAULTS)
def test_what_a_reader_can_mend_is_2_and_says_how(own, options, message, capsys):
    assert run("part2", "--model", "./own", *options) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("circuits_part2.py: ") and message in err.splitlines()[-1]
    assert not list(own.rglob("part2*"))


@pytest.mark.parametrize("option", [["--prompt", "x"], ["--head", "0.1"], ["--words", "x"], ["--prompt", ""]])
def test_options_of_model_are_bad_usage_without_it(option, capsys, own):
    for models_option in ([], ["--models", "mini"]):
        assert run("part2", *models_option, *option) == 2
        assert f"argument {option[0]}: only with --model" in capsys.readouterr().err
    if option[0] == "--head":
        assert run("part1", "--model", "./own", *option) == 2  # Part 1 has no head to choose


# ---- folders ------------------------------------------------------------------------------------------


def test_a_folders_tokenizer_may_be_in_a_subfolder(own):
    (own / "own" / "tokenizer").mkdir()
    for file in hub.tokenizer_repo():
        (own / "own" / file).rename(own / "own" / "tokenizer" / file)
    assert len(models.local(Path("own")).tokenizer) == 300


def test_a_folder_without_a_tokenizer_uses_the_repository_that_it_names(own, monkeypatch):
    for file in hub.tokenizer_repo():
        (own / "own" / file).unlink()
    asked = []
    monkeypatch.setattr(models, "tokenizer", lambda *names: asked.append(names) or print)
    models.local(Path("own"))
    assert asked == [(hub.TOKENIZER, 300)]


FOLDERS = [
    ("./none", {}, "none: no such folder"),
    ("./own", {"config.json": None}, "own: no config.json in it"),
    ("./own", {"model_final.pth": None}, "own: no state dict in it whose name ends in final.pth"),
    ("./own", {"config.json": {"d_model": 33}}, "embed.W_E is [300, 32], the configuration says [300, 33]"),
    ("./own", {"config.json": {"normalization": "RMS"}}, "only 'LN' is covered here"),
    ("./own", {"config.json": {"attn_only": False}}, "attn_only is False, where only True is covered here"),
    ("no-such-model", {}, "no model 'no-such-model'"),
    ("mini-3l", {}, "no model 'mini-3l'; near it: mini-"),
    ("", {}, "no model ''"),
]


@pytest.mark.parametrize("name, changes, message", FOLDERS)
def test_a_model_that_cannot_be_used_is_3_and_one_line(own, name, changes, message, capsys):
    for file, change in changes.items():
        if change is None:
            (own / "own" / file).unlink()
        else:
            config = json.loads((own / "own" / file).read_text())
            (own / "own" / file).write_text(json.dumps(config | change))
    assert run("part1", "--model", name) == 3
    out, err = capsys.readouterr()
    assert out == "" and message in err.splitlines()[-1]
    assert len([line for line in err.splitlines() if line.startswith("circuits_part1.py: ")]) == 1


# ---- models that TransformerLens loads ----------------------------------------------------------------


@pytest.fixture
def known(monkeypatch):
    """TransformerLens' loader, replaced: a function that sets what "gelu-1l" is, and notes what it loads."""
    from transformer_lens import HookedTransformer, loading_from_pretrained

    loaded = []

    def is_of(**fields):
        whole = make(**fields)

        def load(form):
            return lambda name, device: (
                loaded.append((name, form)) or (models.folded(whole) if form == "folded" else whole)
            )

        monkeypatch.setattr(
            loading_from_pretrained, "get_pretrained_model_config", lambda name, device: whole.cfg
        )
        monkeypatch.setattr(HookedTransformer, "from_pretrained", load("folded"))
        monkeypatch.setattr(HookedTransformer, "from_pretrained_no_processing", load("unfolded"))
        return loaded

    return is_of


def test_a_model_that_transformer_lens_knows_in_both_forms(known, own):
    loaded = known(**KINDS["with MLPs, as GPT-2"])
    assert run("part1", "--model", "gelu-1l", "--prompt", GREEN, "--out", "out") == 0
    assert run("part2", "--model", "gelu-1l", "--prompt", GREEN, "--out", "out") == 0
    assert loaded == [("gelu-1l", "folded"), ("gelu-1l", "unfolded"), ("gelu-1l", "folded")]
    measured = results(own / "out", "part1")
    assert measured["models"]["gelu-1l"]["repository"] == "NeelNanda/GELU_1L512W_C4_Code"
    assert {"3.share.mlp.1", "3.share.b_out.0"} <= measured["quantities"].keys()
    assert "2.max_log_prob_change" in measured["noise"]


def test_one_that_is_not_covered_is_3_before_its_weights_are_fetched(known, own, capsys):
    loaded = known(**KINDS["attention only"] | dict(output_logits_soft_cap=30.0))
    for part in PARTS:
        assert run(part, "--model", "gelu-1l") == 3
        out, err = capsys.readouterr()
        assert out == "" and "made is not covered: soft-capped logits: " in err
        assert len(err.splitlines()) == 1
    assert loaded == []


def test_a_failed_identity_is_1_and_named(own, monkeypatch, capsys):
    whole = residual.pieces
    monkeypatch.setattr(residual, "pieces", lambda *a: {n: x for n, x in whole(*a).items() if n != "b_O.1"})
    assert run("part1", "--model", "./own", "--prompt", GREEN, "--out", "out") == 1
    assert "FAILS     3.max_sum_error" in capsys.readouterr().out


# ---- as a library -------------------------------------------------------------------------------------


def test_ask_fills_in_and_refuses(mini):
    asked = explore.ask(mini, GREEN)
    assert asked.head in residual.heads(mini) and asked.prompt == GREEN
    with pytest.raises(Fault, match=r"no head 2\.0: mini-2l has heads 0\.0 to 1\.7"):
        explore.ask(mini, GREEN, head=(2, 0))
    without = make(**KINDS["no norm"])
    without.tokenizer = None
    with pytest.raises(Fault, match="made has no tokenizer"):
        explore.ask(without, GREEN)


def test_results_folders_are_told_apart_and_safe():
    asked = itertools.product("ab", (None, (0, 1)), "xy", (None, ["x"], [" tea", "coffee"]))
    names = {explore.folder(*each) for each in asked}
    assert len(names) == 24
    assert re.fullmatch(
        r"EleutherAI-pythia-70m-0\.3-[0-9a-f]{8}", explore.folder("EleutherAI/pythia-70m", (0, 3), "x")
    )
    assert "/" not in explore.folder("../..", None, "x")


def test_the_readmes_example_runs_as_written(capsys):
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Any head, any prompt, any model")[1]
    example, sections = re.findall(r"```python\n(.*?)```", section, re.S)[:2]
    assert len(example.strip().splitlines()) <= 12
    session = {}
    exec(compile(example, "README.md", "exec"), session)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all(line.startswith("[") for line in lines)
    exec(compile(sections, "README.md", "exec"), session)
    *transcript, last = capsys.readouterr().out.splitlines()
    assert any(line.startswith("== 7.") for line in transcript)
    assert (
        last
        == f"{session['report'].quantities['3.largest_head']} {session['report'].noise['3.max_sum_error']}"
    )


# ---- in a process of their own ------------------------------------------------------------------------


def script(part, folder, *options):
    environment = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(ROOT / f"circuits_{part}.py"), *options]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8")


def test_a_bundled_model_in_a_process(tmp_path):
    process = script("part2", tmp_path, "--model", "mini-2l", "--head", "1.2", "--words", " tea, coffee")
    assert process.returncode == 0, process.stderr
    (folder,) = (tmp_path / "results" / "explore").iterdir()
    assert folder.name.startswith("mini-2l-1.2-")
    assert circuits_part2.TEA in process.stdout  # the article's prompt
    process = script("part1", tmp_path, "--model", "mini-1l", "--prompt", "чай 🙂", "--out", "here")
    assert process.returncode == 0, process.stderr
    assert "one layer has no virtual weights" in process.stdout
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["part1.json", "part1_stdout.txt"]


def test_the_list_needs_no_network(tmp_path):
    process = script("part1", tmp_path, "--list")
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [*models.BUNDLED, *models.PUBLISHED]
    assert lines[2].split()[1:7] == ["2", "8", "256", "32", "8,192", "256"]
    assert not list(tmp_path.iterdir())


def test_faults_in_a_process(tmp_path):
    process = script("part2", tmp_path, "--model", "mini-2l", "--head", "9.9")
    assert process.returncode == 2
    assert process.stderr.splitlines() == ["circuits_part2.py: no head 9.9: mini-2l has heads 0.0 to 1.7"]
    process = script("part1", tmp_path, "--model", "gpt2-small", "--prompt", "x")
    assert process.returncode == 3
    assert process.stdout == "" and "gpt2-small" in process.stderr.splitlines()[-1]


@pytest.mark.parametrize("options", [["--words", "a\udcff"], ["--prompt", "a\udcff"]])
def test_what_is_no_text_is_2(options, capsys):
    assert run("part2", "--model", "mini-1l", *options) == 2
    assert "is not text" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["~nosuchuser", "./" + 5000 * "a"])
def test_a_folder_that_cannot_be_is_3(name, capsys):
    assert run("part1", "--model", name) == 3
    assert "no such folder" in capsys.readouterr().err

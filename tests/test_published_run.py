"""The published path from end to end, on random stand-ins of the published layout and shapes.

Whether the figures of trained weights come out as printed can only be said where those weights are to
be had; here they are stand-ins, so shapes, counts and noise must match and trained values must not.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub import TOKENIZER, Hub, attention_only_repo, gpt2_repo, tokenizer_repo

import circuits_part1
import circuits_part2
from circuits import compare, models, published

ROOT = Path(__file__).parent.parent
SHAPES = dict(d_model=512, n_heads=8, d_head=64, d_vocab=48262, n_ctx=1024)
# What the weights' values decide, and not their shapes alone
TRAINED = {
    "part1": ("2.n_tokens", "3.", "4.", "5.virtual.largest", "5.virtual.smallest", "7.mean_W_E_change"),
    "part2": ("3.", "4.last", "5.W_OV.singular", "5.W_QK.singular", "5.overlap.heads", "6.", "7."),
}


@pytest.fixture(scope="module")
def repositories():
    part1, part2 = circuits_part1.TABLES["published"], circuits_part2.TABLES["published"]
    words = {*part1["words"], *part2["ov_words"], *part2["qk_words"], part2["answer"]}
    return {
        models.PUBLISHED["attn-only-1l"]: attention_only_repo(1, **SHAPES, seed=1),
        models.PUBLISHED["attn-only-2l"]: attention_only_repo(2, **SHAPES, seed=2),
        models.PUBLISHED["gpt2"]: gpt2_repo(n_layer=12, n_embd=768, n_head=12, d_vocab=50257),
        TOKENIZER: tokenizer_repo(tuple(sorted(words)), SHAPES["d_vocab"]),
    }


@pytest.fixture(scope="module")
def ran(repositories, tmp_path_factory):
    """(folder, the runs by part, and part 2's again from the cache with the hub closed)."""
    folder = tmp_path_factory.mktemp("published")
    with Hub(repositories) as hub:
        online = {part: run(part, folder / "online", folder, HF_ENDPOINT=hub.url) for part in TRAINED}
    offline = run("part2", folder / "offline", folder, HF_HUB_OFFLINE="1")
    return folder, online, offline


def run(part, out, home, *options, **environment):
    command = [sys.executable, str(ROOT / f"circuits_{part}.py"), "--out", str(out)]
    command += options or ["--models", "published"]
    environment = os.environ | {"HF_HOME": str(home), "HF_TOKEN": ""} | environment
    return subprocess.run(command, env=environment, capture_output=True, encoding="utf-8")


@pytest.mark.parametrize("part", TRAINED)
def test_shapes_counts_and_noise_match_and_trained_values_do_not(ran, part):
    folder, online, _ = ran
    process = online[part]
    assert process.returncode == 1, process.stderr
    results = compare.load(folder / "online" / f"{part}.json")
    measured = results["quantities"] | {id: entry["measured"] for id, entry in results["noise"].items()}
    for id, figure in published.load(part).items():
        verdict = published.judge(figure, measured).word
        assert verdict != "not measured", id
        if figure["check"] == "at_most" or not id.startswith(TRAINED[part]):
            assert verdict == "match", id
    missed = [line for line in process.stdout.splitlines() if line.startswith("    MISMATCH")]
    assert {line.split()[1] for line in missed} >= {
        "part1": {"3.final_norm", "4.direct.Barack.top5", "4.own_top_share.gpt2", "5.virtual.largest.norm"},
        "part2": {"3.last_row.weights", "5.overlap.heads", "7.ov.tea.top6", "7.qk.in.highest"},
    }[part]
    assert f"{len(published.load(part))} printed figures: " in process.stdout.splitlines()[-1]


def test_the_results_say_where_the_weights_came_from(ran):
    folder, online, _ = ran
    sources = compare.load(folder / "online" / "part1.json")["models"]
    assert set(sources) == {"attn-only-1l", "attn-only-2l", "gpt2"}
    for name, source in sources.items():
        assert source["repository"] == models.PUBLISHED[name]
        assert len(source["commit"]) == 40 and len(source["sha256"]) == 64
        assert source["commit"][:12] in online["part1"].stdout


def test_the_cache_gives_the_same_without_a_hub(ran):
    folder, _, offline = ran
    assert offline.returncode == 1, offline.stderr
    names = [f"{where}/part2.json" for where in ("online", "offline")]
    online, offline = ((folder / name).read_bytes() for name in names)
    assert online == offline


def test_compare_judges_by_the_published_figures(ran, capsys):
    folder, _, _ = ran
    assert compare.main([str(folder / "online" / "part2.json")]) == 1
    out = capsys.readouterr().out
    assert "7.ov.tea.top6" in out and "1.paper_shape" not in out


def test_nothing_cached_is_3_and_one_line(tmp_path):
    process = run("part1", tmp_path / "out", tmp_path, HF_HUB_OFFLINE="1")
    assert process.returncode == 3
    assert process.stdout == ""
    (line,) = process.stderr.splitlines()
    assert models.PUBLISHED["attn-only-2l"] in line and "HF_HUB_OFFLINE" in line
    assert not list(tmp_path.rglob("part1*"))


def test_auto_falls_back_to_the_bundled_models_and_says_so(tmp_path):
    process = run("part2", tmp_path / "out", tmp_path, "--models", "auto", HF_ENDPOINT="http://127.0.0.1:9")
    assert process.returncode == 0, process.stderr
    assert "The published models are not to be had" in process.stderr
    assert "Not the published models (attn-only-1l, attn-only-2l): bundled ones stand in," in process.stdout
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["mini"]

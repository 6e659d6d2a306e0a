"""The two real-model scripts as a user runs them, on the bundled models."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from circuits import compare, published

ROOT = Path(__file__).parent.parent
PARTS = ("part1", "part2")


def run(part, folder, *options, **environment):
    command = [sys.executable, str(ROOT / f"circuits_{part}.py"), "--out", str(folder), *options]
    return subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, encoding="utf-8"
    )


@pytest.fixture(scope="module", params=PARTS)
def mini(request, tmp_path_factory):
    """(part, folder, the finished process) of a run on the bundled models, from another folder."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, run(request.param, folder, "--models", "mini")


def test_runs_well(mini):
    part, folder, process = mini
    assert process.returncode == 0, process.stderr
    transcript = (folder / "mini" / f"{part}_stdout.txt").read_text(encoding="utf-8")
    assert process.stdout == transcript
    assert max(map(len, transcript.splitlines())) <= 100
    assert sorted(p.name for p in folder.rglob("*.*")) == [f"{part}.json", f"{part}_stdout.txt"]


def test_measures_what_is_committed(mini):
    part, folder, _ = mini
    new, base = (compare.load(path / "mini" / f"{part}.json") for path in (folder, ROOT / "results"))
    assert compare.with_baseline(new, base) == []
    assert new["models"] == base["models"]


def test_measures_every_published_figure_under_its_id(mini):
    part, folder, _ = mini
    results = compare.load(folder / "mini" / f"{part}.json")
    ids = {compare.printed_id(id) for id in results["quantities"] | results["noise"]}
    # Words are the model's own: its vocabulary is not the published one.
    words = ("4.direct.", "7.ov.", "7.qk.")
    missing = {id for id in published.load(part).keys() - ids if not id.startswith(words)}
    assert missing == set()
    assert all(any(id.startswith(word) for id in ids) for word in words if word[0] in "47" and
               any(figure.startswith(word) for figure in published.load(part)))  # fmt: skip


def test_noise_is_apart_and_within_the_limit_of_the_published_figure(mini):
    part, folder, _ = mini
    noise = json.loads((folder / "mini" / f"{part}.json").read_text(encoding="utf-8"))["noise"]
    limits = {id: f["limit"] for id, f in published.load(part).items() if f["check"] == "at_most"}
    assert limits.keys() <= {compare.printed_id(id) for id in noise}
    for id, entry in noise.items():
        assert 0 <= entry["measured"] <= entry["limit"]
        assert entry["limit"] <= limits.get(compare.printed_id(id), entry["limit"])


def test_one_thread_measures_the_same(tmp_path):
    process = run("part2", tmp_path, "--models", "mini", OMP_NUM_THREADS="1")
    assert process.returncode == 0, process.stderr
    assert compare.main([str(tmp_path / "mini"), str(ROOT / "results" / "mini")]) == 0


@pytest.mark.parametrize("options", [["--models", "other"], ["--nonsense"], ["--out"]])
def test_bad_usage_is_2(options, tmp_path):
    process = run("part1", tmp_path, *options)
    assert process.returncode == 2
    assert "Traceback" not in process.stderr
    assert process.stderr.splitlines()[-1].startswith("circuits_part1.py: error:")


def test_a_folder_that_cannot_be_written_is_2(tmp_path):
    (tmp_path / "file").write_text("")
    process = run("part1", tmp_path, "--models", "mini", "--out", str(tmp_path / "file" / "below"))
    assert process.returncode == 2
    assert len(process.stderr.splitlines()) == 1
    assert "file" in process.stderr
    assert process.stdout == ""


def test_help_says_what_the_exit_statuses_mean(tmp_path):
    process = run("part2", tmp_path, "--help")
    assert process.returncode == 0
    assert "--models" in process.stdout
    assert "exit status:\n  0  all is well" in process.stdout

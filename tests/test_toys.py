"""The two toy scripts as a user runs them, from another folder; and that what they say is computed."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from circuits import cli, published
from circuits.report import WIDTH

ROOT = Path(__file__).parent.parent
PARTS = ("part1_toy", "part2_toy")


def script(part):
    return str(ROOT / f"circuits_{part}.py")


def python(folder, *arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
    )


@pytest.fixture(scope="module", params=PARTS)
def toy(request, tmp_path_factory):
    """(part, the folder of its results, the finished process)."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder / "out", python(folder, script(request.param), "--out", "out")


def test_exits_well_and_writes_only_where_told(toy):
    part, folder, process = toy
    assert process.returncode == 0, process.stderr
    assert {path.name for path in folder.iterdir()} == {f"{part}.json", f"{part}_stdout.txt"}
    assert list(folder.parent.iterdir()) == [folder]


def test_measures_and_matches_every_published_figure(toy):
    part, folder, process = toy
    measured = json.loads((folder / f"{part}.json").read_text(encoding="utf-8"))["quantities"]
    figures = published.load(part)
    assert measured.keys() >= figures.keys()
    assert [id for id in figures if published.judge(figures[id], measured).word != "match"] == []
    assert f"{len(figures)} printed figures: {len(figures)} match, 0 do not" in process.stdout


def test_transcript_is_stdout_and_fits_beside_the_article(toy):
    part, folder, process = toy
    assert (folder / f"{part}_stdout.txt").read_text(encoding="utf-8") == process.stdout
    assert max(map(len, process.stdout.splitlines())) <= WIDTH


def test_no_negative_zero(toy):
    part, folder, _ = toy

    def numbers(value):
        if isinstance(value, list | dict):
            return [n for v in (value.values() if isinstance(value, dict) else value) for n in numbers(v)]
        return [value] if isinstance(value, float) else []

    results = json.loads((folder / f"{part}.json").read_text(encoding="utf-8"))
    assert len(numbers(results)) > 50
    assert not [n for n in numbers(results) if n == 0 and np.signbit(n)]


def test_a_second_run_writes_the_same_bytes(toy):
    part, folder, _ = toy
    assert python(folder.parent, script(part), "--out", "again").returncode == 0
    for path in folder.iterdir():
        assert (folder.parent / "again" / path.name).read_bytes() == path.read_bytes()


def test_committed_results_are_those_of_this_code(toy):
    part, folder, _ = toy
    assert (ROOT / "results" / f"{part}.json").read_bytes() == (folder / f"{part}.json").read_bytes()
    # The transcript's first line names the numpy it ran on.
    committed, new = (
        (base / f"{part}_stdout.txt").read_text(encoding="utf-8").split("\n", 1)
        for base in (ROOT / "results", folder)
    )
    assert committed[1] == new[1]


@pytest.mark.parametrize("part", PARTS)
def test_imports_no_torch(part, tmp_path):
    process = python(tmp_path, "-X", "importtime", script(part), "--out", "out")
    assert process.returncode == 0, process.stderr
    imported = {line.split("|")[-1].strip().split(".")[0] for line in process.stderr.splitlines()}
    assert {"circuits", "numpy"} <= imported
    assert imported.isdisjoint({"torch", "transformer_lens", "transformers", "huggingface_hub", "jaxtyping"})


def test_results_that_cannot_be_written_are_2_and_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    process = python(tmp_path, script("part1_toy"), "--out", "file")
    assert process.returncode == 2
    (line,) = process.stderr.splitlines()
    assert line.startswith("circuits_part1_toy.py: cannot write the results: ")


@pytest.fixture
def run_changed(monkeypatch, tmp_path, capsys):
    """A function: run a toy script in this process with some of its inputs changed."""
    handler = signal.getsignal(signal.SIGTERM)

    def run(part, **inputs):
        spec = importlib.util.spec_from_file_location(f"changed_{part}", script(part))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name, value in inputs.items():
            assert hasattr(module, name)
            setattr(module, name, value)
        monkeypatch.setattr(sys, "argv", [script(part), "--out", str(tmp_path)])
        status = cli.run_toy(part, module.sections)
        words = [line.split() for line in capsys.readouterr().out.splitlines()]
        return status, {line[1] for line in words if line[:1] == ["MISMATCH"]}

    yield run
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize("part", PARTS)
def test_unchanged_inputs_miss_nothing(run_changed, part):
    assert run_changed(part) == (0, set())


@pytest.mark.parametrize(
    "part, inputs, missed",
    [
        (
            "part1_toy",
            {"WORDS": ["cat", "the", "dog", "sat"]},
            "vocabulary table.the table.cat unembed.x0_the unembed.logits unembed.probabilities "
            "unembed.exp_sum stream.sum stream.cat_logit stream.cat_from_token stream.cat_from_head2 "
            "rotation.cat_before rotation.cat_after rotation.logits_before rotation.logits_after",
        ),
        (
            "part1_toy",
            {"W_E": np.diag([1.0, 1.0, 1.0, 0.0])[:3]},
            "table.the table.sat",
        ),
        (
            "part1_toy",
            {"W_U": np.array([[0.0, 0.0, 1.0], [2.0, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])},
            "table.cat table.sat stream.cat_logit stream.cat_from_head1 "
            "rotation.logits_before rotation.logits_after",
        ),
        (
            "part1_toy",
            {"CORPUS": "the cat sat . the dog ran . the dog sat ."},
            "bigram.corpus bigram.after_the bigram.counts bigram.probability.cat bigram.probability.dog "
            "bigram.log_probability.cat bigram.log_probability.dog "
            "bigram.softmax_plus_0 bigram.softmax_plus_5",
        ),
        (
            "part2_toy",
            {"W_V": np.array([[1.0, 2.0, 0.0]])},
            "three_steps.values three_steps.received_by_token3 svd.W_OV svd.singular_value "
            "svd.input_direction reparametrise.new_values",
        ),
        (
            "part2_toy",
            {"W_O": np.array([[0.0], [1.0], [1.0]])},
            "svd.W_OV svd.singular_value svd.output_direction",
        ),
        (
            "part2_toy",
            {"A": np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.8, 0.1, 0.1]])},
            "three_steps.received_by_token3",
        ),
        (
            "part2_toy",
            {"X": np.eye(3)},
            "three_steps.values three_steps.received_by_token3 reparametrise.new_values",
        ),
        ("part2_toy", {"W_K": np.array([[1.0, 1.0]])}, "qk.W_QK"),
        ("part2_toy", {"SOURCE": np.array([0.0, 4.0])}, "qk.score"),
    ],
)
def test_a_changed_input_misses_just_the_figures_made_of_it(run_changed, part, inputs, missed):
    assert run_changed(part, **inputs) == (1, set(missed.split()))

"""What goes wrong around a run, not in it: signals, pipes, encodings, two runs at once.

Faults of the hub, its cache and the files are in test_models.py.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from circuits import compare

ROOT = Path(__file__).parent.parent
SCRIPT = str(ROOT / "circuits_part2.py")


def start(folder, *interpreter, **environment):
    """A run on the bundled models whose transcript can be read while it goes on."""
    command = [sys.executable, *interpreter, SCRIPT, "--models", "mini", "--out", str(folder)]
    return subprocess.Popen(
        command,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # As from a terminal: a test run in the background hands down an ignored Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def committed():
    return compare.load(ROOT / "results" / "mini" / "part2.json")


def same_as_committed(folder):
    return compare.with_baseline(compare.load(folder / "mini" / "part2.json"), committed()) == []


@pytest.mark.parametrize("sent, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_stopped_leaves_the_last_results(tmp_path, sent, status):
    (tmp_path / "mini").mkdir()
    last = tmp_path / "mini" / "part2.json"
    last.write_text("the last good results")
    process = start(tmp_path)
    process.stdout.readline()  # it is at work
    process.send_signal(sent)
    _, stderr = process.communicate()
    assert process.returncode == status
    assert b"Traceback" not in stderr
    assert last.read_text() == "the last good results"
    assert list(last.parent.iterdir()) == [last]


@pytest.mark.parametrize("seconds", [0.5, 1.5, 3])
def test_ctrl_c_before_it_is_at_work(tmp_path, seconds):
    """While Python imports torch, or TransformerLens beside the thread that hashes the weights."""
    process = start(tmp_path)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in stderr
    assert not list(tmp_path.rglob("*.json"))


def finished(*options, part="part2", **environment):
    command = [sys.executable, str(ROOT / f"circuits_{part}.py"), *options]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, encoding="utf-8")


def test_a_hub_address_that_is_none_is_one_line(tmp_path):
    process = finished("--models", "mini", "--out", str(tmp_path), HF_ENDPOINT="http://[::1")
    assert process.returncode == 3
    (line,) = process.stderr.splitlines()
    assert "HF_ENDPOINT" in line and "Invalid IPv6 URL" in line


def test_without_a_name_or_where_a_folder_is_in_the_way_nothing_is_written(tmp_path):
    process = finished("--out", "", part="part1_toy")
    assert process.returncode == 2 and "an empty name is no folder" in process.stderr
    (tmp_path / "file").touch()
    process = finished("--out", str(tmp_path / "file"), part="part1_toy")
    assert process.returncode == 2 and process.stderr.endswith(f"{tmp_path / 'file'} is not a folder\n")
    (tmp_path / "part1_toy_stdout.txt").mkdir()
    (tmp_path / "part1_toy.json").write_text("old")
    process = finished("--out", str(tmp_path), part="part1_toy")
    assert process.returncode == 2 and "part1_toy_stdout.txt is a folder" in process.stderr
    assert (tmp_path / "part1_toy.json").read_text() == "old"


def test_with_stderr_closed_stdout_is_the_transcript(tmp_path):
    command = f'"{sys.executable}" "{ROOT / "circuits_part1_toy.py"}" --out "{tmp_path}" 2>&-'
    process = subprocess.run(command, shell=True, stdout=subprocess.PIPE, encoding="utf-8")
    assert process.returncode == 0
    assert process.stdout == (tmp_path / "part1_toy_stdout.txt").read_text(encoding="utf-8")


def test_a_reader_who_closes_the_pipe_does_not_stop_the_run(tmp_path):
    process = start(tmp_path)
    process.stdout.readline()
    process.stdout.close()
    stderr = process.stderr.read()
    assert process.wait() == 0
    assert b"Error" not in stderr
    assert same_as_committed(tmp_path)


@pytest.mark.parametrize(
    "interpreter, environment",
    [
        ([], {"PYTHONIOENCODING": "ascii"}),
        ([], {"PYTHONIOENCODING": "cp1252"}),
        (["-O"], {"LANG": "C", "LC_ALL": "C", "HOME": "/nonexistent", "HF_TOKEN": "stale"}),
    ],
)
def test_results_do_not_depend_on_the_terminal_or_the_interpreter(tmp_path, interpreter, environment):
    process = start(tmp_path, *interpreter, **environment)
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert "⊗" in (tmp_path / "mini" / "part2_stdout.txt").read_text(encoding="utf-8")
    # The circled times is in neither encoding; what is not in one is shown by its number.
    shown = "⊗".encode() if environment.get("LANG") else rb"\u2297"
    assert shown in stdout
    assert same_as_committed(tmp_path)


def test_two_runs_into_one_folder_at_once(tmp_path):
    runs = [start(tmp_path), start(tmp_path)]
    for process in runs:
        process.communicate()
        assert process.returncode == 0
    names = sorted(path.name for path in (tmp_path / "mini").iterdir())
    assert names == ["part2.json", "part2_stdout.txt"]
    assert same_as_committed(tmp_path)


def test_other_weights_than_the_last_results_are_named(tmp_path):
    (tmp_path / "mini").mkdir()
    results = committed()
    results["models"]["mini-1l"]["sha256"] = "0" * 64
    (tmp_path / "mini" / "part2.json").write_text(json.dumps(results))
    process = start(tmp_path)
    _, stderr = process.communicate()
    assert process.returncode == 0
    lines = [line for line in stderr.decode().splitlines() if not line.startswith("wrote")]
    (line,) = lines
    assert line.startswith("mini-1l: not the weights that ") and "part2.json" in line


def test_the_helpers_leave_the_callers_settings_and_do_not_mind_them():
    """Default dtype, gradients: whatever the caller chose, the same numbers, and still chosen after."""
    code = """
import torch
from circuits import heads, models, residual, vocabulary
def numbers():
    model = models.checkpoint("mini-1l").model()
    tokens, logits, cache = residual.run(model, "I like green tea")
    A, scores = heads.pattern_in_one_step(
        cache["normalized", 0, "ln1"][0], heads.W_QK_with_biases(model, 0, 3), model.cfg.d_head)
    R = residual.rotation(8, torch.Generator().manual_seed(0))
    return [t.detach() for t in (logits, A, scores, vocabulary.normalised(model.W_E.detach()), R)]
plain = numbers()
for dtype in (torch.float64, torch.bfloat16):
    for gradients in (True, False):
        torch.set_default_dtype(dtype); torch.set_grad_enabled(gradients)
        for a, b in zip(plain, numbers(), strict=True):
            assert a.dtype == b.dtype and torch.equal(a, b), (dtype, gradients)
        assert torch.get_default_dtype() == dtype and torch.is_grad_enabled() == gradients
print("same")
"""
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert process.stdout == "same\n", process.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo") or os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_full_disk_is_2_and_leaves_the_last_results(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", disk], capture_output=True
    ).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        (disk / "mini").mkdir()
        last = disk / "mini" / "part2.json"
        last.write_text("the last good results")
        (disk / "filler").write_bytes(b"0" * 24_000)
        process = start(disk)
        _, stderr = process.communicate()
        assert process.returncode == 2
        assert len(stderr.splitlines()) == 1 and b"No space left" in stderr
        assert last.read_text() == "the last good results"
        assert list(last.parent.iterdir()) == [last]
    finally:
        time.sleep(0.1)
        subprocess.run(["umount", disk], check=True)

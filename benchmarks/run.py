"""The suite beside the plain way: wall time, peak memory, each heavy step, and how the cost grows.

    python benchmarks/run.py            # as in the README: about ten minutes, 4 GB of memory, 2.5 GB of disk
    python benchmarks/run.py --small    # only to see that it runs: the figures mean nothing

1. standins.py makes random stand-ins of the published models and serves them on 127.0.0.1; a temporary
   cache (HF_HOME) is filled by one run of each script, which is not measured.
2. Whole processes, cold Python and warm cache, in turn: `circuits_partN.py --models published` (the suite,
   all of it), the same for the articles' figures alone (printed.py), `plain_partN.py` (the plain way to
   those: TransformerLens' ordinary calls), and the floor, which imports torch and TransformerLens and reads
   the weight files once. Memory is the peak resident set, mapped files included. The figures that the suite
   and the plain way print must agree. A ratio is one to the plain way of the same turn.
3. steps.py: each heavy step alone, and how the cost of one grows with its sizes.

Not measured: a network (the hub is on this machine, and answers at once; the number of questions to it
is given instead), a download, other machines. Prints Markdown. Ratios are the claim; the seconds are one
machine's.

This process imports no torch: a child's peak memory is never less than its parent's was when it started.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
PARTS = {"part1": "Part 1", "part2": "Part 2"}
TARGETS = {"part1": (0.40, 0.50), "part2": (0.35, 0.75)}  # suite / plain: wall time, peak memory
WEIGHTS = {  # in the cache
    "part1": ("models--NeelNanda--*/*/*/*.pth", "models--openai-community--gpt2/*/*/*.safetensors"),
    "part2": ("models--NeelNanda--*/*/*/*.pth",),
}
FLOOR = """
import sys, torch, transformer_lens
for file in sys.argv[1:]:
    with open(file, "rb", buffering=0) as opened:
        while opened.read(1 << 20):
            pass
"""


@dataclass
class Run:
    """One finished process."""

    seconds: float
    processor: float  # seconds of all its threads, less troubled by what else the machine does
    megabytes: float  # the peak of its resident memory
    questions: int  # that it asked the hub
    out: str


class Bench:
    """A stand-in hub, a cache in `folder`, and processes measured against the two."""

    def __init__(self, hub: subprocess.Popen, folder: Path):
        self.hub, self.folder = hub, folder
        offline = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE")
        kept = {name: value for name, value in os.environ.items() if name not in offline}
        url = hub.stdout.readline().strip()
        self.environment = kept | {"HF_HOME": str(folder / "hf"), "HF_ENDPOINT": url, "HF_TOKEN": ""}
        self.environment["GOMP_SPINCOUNT"] = "10000"  # as the scripts set it: for all alike

    def run(self, *command: object, expected: tuple[int, ...] = (0,)) -> Run:
        """Run python on `command`. Raises RuntimeError, with its stderr, where its status is not expected."""
        self.questions()
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
            started = time.perf_counter()
            child = subprocess.Popen(
                [sys.executable, *map(str, command)], env=self.environment, stdout=out, stderr=errors
            )
            _, status, usage = os.wait4(child.pid, 0)
            seconds = time.perf_counter() - started
            child.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0), errors.seek(0)
            if child.returncode not in expected:
                raise RuntimeError(f"{command} ended with {child.returncode}:\n{errors.read()}")
            unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
            processor = usage.ru_utime + usage.ru_stime
            return Run(seconds, processor, usage.ru_maxrss / unit, self.questions(), out.read())

    def questions(self) -> int:
        """How many the hub was asked since the last call."""
        self.hub.stdin.write("\n")
        self.hub.stdin.flush()
        return int(self.hub.stdout.readline())

    def suite(self, part: str) -> Run:
        command = (ROOT / f"circuits_{part}.py", "--models", "published", "--out", self.folder)
        return self.run(*command, expected=(0, 1))  # 1: random weights miss the figures of the trained

    def printed(self, part: str) -> Run:
        command = (HERE / "printed.py", part, "--models", "published", "--out", self.folder / "printed")
        return self.run(*command, expected=(0, 1))

    def plain(self, part: str) -> Run:
        return self.run(HERE / f"plain_{part}.py")

    def floor(self, part: str) -> Run:
        cache = self.folder / "hf" / "hub"
        return self.run("-c", FLOOR, *(file for glob in WEIGHTS[part] for file in cache.glob(glob)))


@contextmanager
def bench(small: bool) -> Iterator[Bench]:
    command = [sys.executable, HERE / "standins.py", *["--small"] * small]
    with tempfile.TemporaryDirectory() as folder:
        hub = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with hub:  # its stdin is closed, and it is waited for
            yield Bench(hub, Path(folder))


def whole_process(bench: Bench, part: str, runs: int) -> list[list[str]]:
    """Table rows for one part, medians of `runs` in turn; says how many quantities the two ways share."""
    ways = bench.suite, bench.printed, bench.plain, bench.floor
    for way in ways:
        way(part)  # the first of each fills the cache
    turns = [[way(part) for way in ways] for _ in range(runs)]
    plain = turns[-1][2].out
    for folder in (bench.folder, bench.folder / "printed"):
        check(part, json.loads((folder / f"{part}.json").read_text(encoding="utf-8")), plain)
    wall, memory = TARGETS[part]
    return [
        row(f"{PARTS[part]}, wall time", "seconds", "{:.1f} s", turns, f"{wall:.2f}"),
        row(f"{PARTS[part]}, peak memory", "megabytes", "{:,.0f} MB", turns, f"{memory:.2f}"),
        row(f"{PARTS[part]}, processor time", "processor", "{:.1f} s", turns),
        row(f"{PARTS[part]}, questions to the hub", "questions", "{}", turns),
    ]


def row(label: str, what: str, shown: str, turns: list[list[Run]], target: str = "") -> list[str]:
    """The suite, its printed figures and the floor, each with its ratio to the plain way; then that."""
    turns = [[getattr(run, what) for run in turn] for turn in turns]
    shares = [[value / turn[2] for value in turn] for turn in turns]
    suite, printed, plain, floor = (shown.format(statistics.median(of)) for of in zip(*turns, strict=True))
    ratios = [
        f"{statistics.median(of):.2f} ({min(of):.2f} to {max(of):.2f})" for of in zip(*shares, strict=True)
    ]
    return [label, plain, printed, ratios[1], target, suite, ratios[0], floor, ratios[3]]


def check(part: str, results: dict, printed: str) -> None:
    """See that the plain way came to the suite's figures. Raises RuntimeError, naming those that differ."""
    figures = dict(line.split("\t") for line in printed.splitlines() if "\t" in line)
    measured = results["quantities"]
    shared = [id for id in figures if id in measured]
    differing = [id for id in shared if not agree(measured[id], json.loads(figures[id]))]
    if differing or not shared:
        raise RuntimeError(f"{part}: the suite and the plain way differ in {differing or 'everything'}")
    alone = len(measured.keys() - figures.keys())
    print(f"{PARTS[part]}: {len(shared)} quantities agree; {alone} more are recorded by this run alone.")


def agree(a: Any, b: Any) -> bool:
    """The same, or numbers within 1 part in 1,000 (for one near zero: within 0.001).

    The suite tells tokens that are pieces of a character apart by their id, TransformerLens does not.
    """
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(agree, a, b))
    if isinstance(a, float) or isinstance(b, float):
        return abs(a - b) <= 1e-3 * max(1, abs(b))
    return a == b or (isinstance(b, str) and "\ufffd" in b and a.startswith(b + "#"))


def table(*header: str, rows: list[list[Any]]) -> str:
    """A Markdown table; all columns but the first are numbers, to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--small", action="store_true", help="small shapes: see that it runs, measure nothing"
    )
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="how often each is run (default: 3)")
    args = parser.parse_args()
    with bench(args.small) as running:
        versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformer_lens"))
        print(
            f"{os.cpu_count()} cores, Python {platform.python_version()}, {versions}; "
            f"medians of {args.runs} runs in turn, in brackets the lowest and the highest ratio"
            + ("; SMALL SHAPES, which say nothing" if args.small else "")
            + "\n"
        )
        rows = [row for part in PARTS for row in whole_process(running, part, args.runs)]
        print()
        header = (
            "whole process",
            "plain",
            "printed figures",
            "ratio",
            "target",
            "all",
            "ratio",
            "floor",
            "ratio",
        )
        print(table(*header, rows=rows), flush=True)
        print(running.run(HERE / "steps.py", "--runs", args.runs, *["--small"] * args.small).out, end="")


if __name__ == "__main__":
    main()

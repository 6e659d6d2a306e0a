"""What a run says and keeps: the transcript on stdout, and the quantities for the results file.

A section function hands each quantity over once, under its id. A number is rounded to the digits
that float32 arithmetic repeats on another machine, then printed, recorded and judged as it stands.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from circuits import Fault, published

WIDTH = 100
DIGITS, NOISE_DIGITS = 5, 3
EPS = 2.0**-23  # one rounding in float32, of a number of size 1
FLOAT64 = 2.0**-29  # one in float64 is this much smaller
ROUNDINGS = 64  # as many as 4,096 of random sign amount to: the terms of a sum in a large model


def rounded(value: Any, digits: int = DIGITS) -> Any:
    """`value` as JSON: every float in it to `digits` significant digits.

    Raises ValueError for a NaN or an infinity, which no results file may hold.
    """
    if isinstance(value, float):
        if not abs(value) < float("inf"):
            raise ValueError(f"{value} is not a number that can be reported")
        return float(f"{value:.{digits}g}") + 0.0  # no -0.0
    if isinstance(value, list | tuple):
        return [rounded(v, digits) for v in value]
    if isinstance(value, dict):
        return {k: rounded(v, digits) for k, v in value.items()}
    return value


class OutOfRange(Fault):
    """A quantity that came out as NaN or infinity."""

    status = 3


class Report:
    """One run of one part: prints as it goes, and gathers `quantities` and `noise` by id.

    `figures` are the published figures to judge by, or none where other models are measured. The limits
    of identities are those of the articles' models, whose numbers are small; with `any_size`, for other
    models, each allows what `ROUNDINGS` roundings of the largest number involved can do, if that is more.
    """

    def __init__(self, part: str, figures: dict[str, dict] | None = None, any_size: bool = False):
        self.part = part
        self.any_size = any_size
        self.figures = figures or {}
        self.models: dict[str, dict] = {}
        self.quantities: dict[str, Any] = {}
        self.noise: dict[str, dict] = {}
        self.transcript: list[str] = []

    def say(self, text: str = "") -> None:
        """A line of the transcript; a reader who has closed the pipe does not end the run."""
        self.transcript.append(text)
        say(text)

    def section(self, number: object, title: str) -> None:
        self.say()
        self.say(f"== {number}. {title} ".ljust(WIDTH, "="))

    def record(self, id: str, value: Any) -> Any:
        """Keep a quantity without printing it; returns it as kept."""
        self.quantities[id] = self._new(id, value, DIGITS)
        return self.quantities[id]

    def quantity(self, id: str, label: str, value: Any) -> None:
        """Record a quantity and print it, beside the printed figure and the verdict if there is one."""
        value = self.record(id, value)
        if id in self.figures:
            self._beside_printed(self.figures[id], label, value)
        else:
            self._line(label, value)

    def small(self, id: str, label: str, value: float, limit: float, size: float = 0.0) -> None:
        """Record rounding noise, which an identity says is zero, and print it with its limit.

        `size` is the largest float32 number that goes into it, which `any_size` scales the limit by.
        """
        value = self._new(id, value, NOISE_DIGITS)
        if self.any_size:
            limit = rounded(max(limit, ROUNDINGS * EPS * size), NOISE_DIGITS)
        self.noise[id] = {"measured": value, "limit": limit}
        if id in self.figures:
            self._beside_printed(self.figures[id], label, value)
        else:
            self._line(label, value, f"limit {limit:.2g}  {'holds' if value <= limit else 'FAILS'}")

    def _new(self, id: str, value: Any, digits: int) -> Any:
        if id in self.quantities or id in self.noise:
            raise ValueError(f"{id} was measured twice")
        try:
            return rounded(value, digits)
        except ValueError as error:
            raise OutOfRange(f"{id}: {error}: the model's own numbers leave float32's range") from error

    def _beside_printed(self, figure: dict, label: str, value: Any) -> None:
        # A figure with a second reading is judged at the end, when both are known.
        word = "see below" if "or_id" in figure else published.judge(figure, self.measured()).word
        printed, verdict = figure["published"], f"{published.tolerance(figure)}  {word}"
        if value == printed:
            self._line(label, value, f"as printed  {verdict}")
        elif isinstance(printed, list):
            self._line(label, value)
            self._line("    printed", printed, verdict)
        else:
            self._line(label, value, f"printed {show(printed)}  {verdict}")

    def _line(self, label: str, value: Any, margin: str = "") -> None:
        """Label, value and, right-aligned, the margin; a list is broken between its elements only."""
        lines = [f"  {label:<44}"]
        for element in elements(value):
            if len(lines[-1]) + 1 + len(element) > WIDTH:
                lines.append(" " * 47)
            lines[-1] += " " + element
        if margin and len(lines[-1]) + 2 + len(margin) > WIDTH:
            lines.append("")
        lines[-1] += margin.rjust(WIDTH - len(lines[-1]))
        for line in lines:
            self.say(line.rstrip())

    def measured(self) -> dict[str, Any]:
        """Every value so far by id, noise among them."""
        return self.quantities | {id: entry["measured"] for id, entry in self.noise.items()}

    def conclude(self) -> bool:
        """Print the count of verdicts, name what missed, and say whether all is well."""
        self.say()
        self.say("== Verdicts ".ljust(WIDTH, "="))
        broken = [id for id, n in self.noise.items() if not n["measured"] <= n["limit"]]
        if self.noise:
            held = len(self.noise) - len(broken)
            self.say(f"  {len(self.noise)} identities: {held} hold, {len(broken)} do not")
        for id in broken:
            self.say(f"    FAILS     {id}: {show(self.noise[id])}")
        if not self.figures:
            self.say("  The articles' figures belong to the published models and were not judged here.")
            return not broken
        verdicts = [published.judge(figure, self.measured()) for figure in self.figures.values()]
        missed = [v for v in verdicts if v.word != "match"]
        for v in verdicts:
            if v.word == "match" and "or_id" not in v.figure:
                continue
            self._line(f"  {v.word}  {v.id}", v.measured, f"printed {show(v.figure['published'])}")
        self.say(
            f"  {len(verdicts)} printed figures: {len(verdicts) - len(missed)} match, {len(missed)} do not"
        )
        return not broken and not missed

    def write(self, folder: Path) -> None:
        """Write PART.json and PART_stdout.txt into `folder`, both whole or neither."""
        folder.mkdir(parents=True, exist_ok=True)
        blocks = {"models": self.models, "quantities": self.quantities, "noise": self.noise}
        text = f'{{\n "part": {dump(self.part)}'
        for name, entries in blocks.items():
            lines = ",\n".join(f"  {dump(id)}: {dump(value)}" for id, value in entries.items())
            text += f",\n {dump(name)}: {{\n{lines}\n }}" if entries else f",\n {dump(name)}: {{}}"
        transcript = "\n".join(self.transcript) + "\n"
        replace({f"{self.part}.json": text + "\n}\n", f"{self.part}_stdout.txt": transcript}, folder)


def say(text: str) -> None:
    """Print a line; once the reader has closed the pipe, to nobody."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def show(value: Any) -> str:
    """A value as a transcript shows it: tokens in quotes, as Python would print them."""
    return " ".join(elements(value))


def elements(value: Any) -> list[str]:
    """What a line may be broken between."""
    if isinstance(value, dict):
        return [f"{key} {show(v)}" for key, v in value.items()]
    if isinstance(value, list) and value:
        words = [show(v) for v in value]
        words[0] = "[" + words[0]
        words[-1] += "]"
        return [word + "," for word in words[:-1]] + words[-1:]
    return [repr(value)]


def replace(texts: dict[str, str], folder: Path) -> None:
    """Write temporary files, then rename them all: a run that dies leaves the last good ones."""
    parts = {}
    for name in texts:
        if (folder / name).is_dir():
            raise IsADirectoryError(f"{folder / name} is a folder, where the results go")
    try:
        for name, text in texts.items():
            handle, parts[name] = tempfile.mkstemp(prefix=name, dir=folder)
            with open(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
            os.chmod(parts[name], 0o644)
        for name, part in parts.items():
            os.replace(part, folder / name)
    except BaseException:
        for part in parts.values():
            Path(part).unlink(missing_ok=True)
        raise

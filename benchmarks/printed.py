"""A part without what the articles do not print: `python benchmarks/printed.py part1 [options of the part]`.

The plain way takes the printed figures. So that run.py can compare like with like, this leaves out what the
suite measures beyond them: interventions, compositions and whole-vocabulary circuits.
"""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from circuits import cli

BEYOND = {
    "part1": ("confirm_by_removal", "confirm_by_ablation", "composition_beside_random"),
    "part2": ("confirm_one_head", "whole_circuits"),
}

if __name__ == "__main__":
    part = sys.argv[1]
    module = importlib.import_module(f"circuits_{part}")
    for name in BEYOND[part]:
        getattr(module, name)  # it is still there
        setattr(module, name, lambda *_: None)
    sys.exit(cli.run(part, module.sections, module.TABLES, module.explore, sys.argv[2:]))

"""`python -m simulations EXPERIMENT [options]`; `--help` behind an experiment lists its options.

`python -m simulations publish` makes pages of the documentation from finished experiments, and `python -m simulations
all --data FOLDER` runs them all before.
"""

from __future__ import annotations

import sys
from importlib import import_module

from simulations.experiments import EXPERIMENTS

_ELSEWHERE = {"ablation": ("accuracy", "ablation")}  # module and function, where not EXPERIMENT.main
_COMMANDS = (*EXPERIMENTS, "publish", "all")


def main(arguments: list[str]) -> int:
    """Run one experiment; returns the exit status."""
    if not arguments or arguments[0] not in _COMMANDS:
        print(__doc__, *(f"\n  {name:12} {what}" for name, what in EXPERIMENTS.items()), sep="\n")
        return 0 if arguments in ([], ["--help"], ["-h"]) else 2
    module, function = _ELSEWHERE.get(arguments[0], (arguments[0], "main"))
    try:
        getattr(import_module(f"simulations.{module}"), function)(arguments[1:])
    except KeyboardInterrupt:
        print("\ninterrupted; what was finished is in the output folder", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

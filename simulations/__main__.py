"""`python -m simulations EXPERIMENT [options]`; `--help` behind an experiment lists its
options.

`python -m simulations publish` makes pages of the documentation from finished
experiments, and `python -m simulations all --data FOLDER` runs them all before.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from importlib import import_module

from flwr_flynn.errors import FlyNNError
from simulations.experiments import EXPERIMENTS


def main(arguments: list[str]) -> int:
    """Run one experiment; returns the exit status."""
    name, *rest = arguments or [""]
    if name not in (*EXPERIMENTS, "publish", "all"):
        print(
            __doc__,
            *(
                f"\n  {name:15} {experiment.what}"
                for name, experiment in EXPERIMENTS.items()
            ),
            sep="\n",
        )
        if arguments in ([], ["--help"], ["-h"]):
            return 0
        return 2
    try:
        if name in EXPERIMENTS:
            EXPERIMENTS[name].run(name, rest)
        else:
            import_module(f"simulations.{name}").main(rest)
    except FlyNNError as error:
        text = "; ".join([str(error), *getattr(error, "__notes__", ())])
        ArgumentParser(prog=f"python -m simulations {name}").error(text)
    except KeyboardInterrupt:
        print(
            "\ninterrupted; what was finished is in the output folder", file=sys.stderr
        )
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

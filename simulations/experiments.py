"""The experiments of `python -m simulations`: what each measures, its module, and the
arguments of its page.
"""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple


class Experiment(NamedTuple):
    """An experiment: what it measures, and the arguments of its page, "--data" without
    its folder; None without a page.

    `place` is its module behind `simulations`, by default of the same name, and its
    function, by default `main`.
    """

    what: str
    page: str | None = ""
    place: tuple[str, str] = ("", "main")

    def run(self, name: str, arguments: list[str]) -> None:
        """Run the experiment, `name`."""
        getattr(import_module(f"simulations.{self.place[0] or name}"), self.place[1])(
            arguments
        )


def _paper(name: str, what: str, page: str = "") -> dict[str, Experiment]:
    return {name: Experiment(what, page, (f"paper.{name}", "main"))}


_FEW = (
    "--data --max-examples 2500 --folds 5 --threads 1 --methods 'FlyNN,FlyNN "
    "thorough,kNN,forest,boosting'"
)
_SKEWED = (
    "--full --data --parties 10 --sets "
    "digits,satimage,letters,mnist,fashion_mnist --jobs 2"
)
EXPERIMENTS = {
    "bench": Experiment(
        "speed of hashing, training and prediction, beside lean SciPy and the "
        "hardware's limit",
        "--data",
    ),
    "scale": Experiment(
        "the server's seconds and memory for 10 to 1000 parties; on Ray; of a run "
        "with --supernodes 200"
    ),
    "accuracy": Experiment(
        "balanced accuracy beside tuned kNN, forests, boosting and the paper's methods",
        _FEW,
    ),
    "noniid": Experiment(
        "skewed parties: FedAvg, FedProx, SCAFFOLD and own heads beside FlyNN, with "
        "class prior",
        _SKEWED,
    ),
    "trees": Experiment(
        "FedXgbBagging, FedXgbCyclic and federated forests beside FlyNN, on skewed "
        "parties",
        "--data --seeds 1",
    ),
    "large": Experiment(
        "the methods of `rivals` at 8000 and 26,000 samples",
        "--data",
    ),
    "sites": Experiment(
        "AUROC at a site by the model without its counts, beside training without it",
        "--data",
    ),
    "coverage": Experiment(
        "coverage of prediction sets beside split conformal prediction, and by site",
        "--data",
    ),
    "reasons": Experiment(
        "contributions of columns beside known log odds, and when the columns that they "
        "name are deleted",
        "--data",
    ),
    "rivals": Experiment(
        "one-round rivals with exact sums, logistic regression, and boosting on summed "
        "histograms, beside FlyNN",
        "--data",
    ),
    "forget": Experiment(
        "seconds and bytes to forget samples of a party, beside training again",
        "--data",
    ),
    **_paper(
        "synthetic",
        "the paper's Tables 1 and 6: FlyNN and its baselines on data made for nearest "
        "neighbours",
    ),
    **_paper(
        "openml",
        "the paper's Tables 2 and 9 and their scatter plots on OpenML's data sets",
        "--data",
    ),
    **_paper(
        "hyperparameters",
        "the effects of m, s, rho and gamma, as in the paper's Figures 4 and 5",
    ),
    **_paper(
        "scaling", "the paper's Figure 2 and its table: 1 to 16 parties", "--data"
    ),
    **_paper("theory", "agreement with kNN beside the bound of the paper's Theorem 2"),
    **_paper(
        "privacy",
        "the paper's Figures 3, 7, 8 and 9, and the new mechanisms beside its own",
        "--data",
    ),
    "private": Experiment(
        "what noise of epsilon 1 leaves over tables, by parties, and on rare outcomes",
        "--data",
        ("private_tables", "main"),
    ),
    "membership": Experiment(
        "an attacker who asks who was among the training samples",
        "--data --sets digits,letters",
    ),
    "tables": Experiment(
        "mixed tables with gaps as they are: FlyNN beside encoders, boosting, forests "
        "and kNN"
    ),
    "ablation": Experiment(
        "the gain by scoring rule, committee, scaling and decay",
        "",
        ("accuracy", "ablation"),
    ),
}

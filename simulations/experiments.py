"""The experiments of `python -m simulations`: what each measures, its module, and the arguments of its page."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple


class Experiment(NamedTuple):
    """An experiment.

    Parameters
    ----------
    what : str
        What it measures.
    page : str or None
        Arguments with which its page is made, "--data" without its folder; None without a page.
    module : str
        Module behind `simulations`, by default of the same name.
    function : str
    """

    what: str
    page: str | None
    module: str = ""
    function: str = "main"

    def run(self, name: str, arguments: list[str]) -> None:
        """Run the experiment, `name`."""
        getattr(import_module(f"simulations.{self.module or name}"), self.function)(arguments)


EXPERIMENTS = {
    "bench": Experiment(
        "speed of hashing, training and prediction, beside lean SciPy, torchhd and the hardware's limit", "--data"
    ),
    "scale": Experiment(
        "seconds and memory of the server for 10, 100 and 1000 parties, on Ray with --where ray, or of a simulation "
        "with --supernodes 200",
        "",
    ),
    "traffic": Experiment("bytes of a party's counts beside their entropy, and of FedAvg until it is as accurate", ""),
    "accuracy": Experiment(
        "balanced accuracy beside tuned kNN, forests, boosting and the paper's methods",
        "--data --max-examples 2500 --folds 5 --threads 1 --methods 'FlyNN,FlyNN thorough,kNN,forest,boosting'",
    ),
    "noniid": Experiment(
        "skewed parties: FlyNN beside FedAvg, FedProx, SCAFFOLD and own heads, with class prior",
        "--full --data --parties 10,100 --sets digits,satimage,letters,mnist,fashion_mnist --jobs 2",
    ),
    "trees": Experiment(
        "FlyNN beside FedXgbBagging, FedXgbCyclic and federated forests on skewed parties, and pooled trees", "--data"
    ),
    "forget": Experiment("seconds and bytes to forget samples of a party, beside training again", "--data"),
    "synthetic": Experiment(
        "the paper's Tables 1 and 6: FlyNN and its baselines on data made for nearest neighbours", "", "paper.synthetic"
    ),
    "openml": Experiment(
        "the paper's Tables 2 and 9 and their scatter plots on OpenML's data sets", "--data", "paper.openml"
    ),
    "hyperparameters": Experiment(
        "the effects of m, s, rho and gamma, as in the paper's Figures 4 and 5", "", "paper.hyperparameters"
    ),
    "scaling": Experiment("the paper's Figure 2 and its table: 1 to 16 parties", "--data", "paper.scaling"),
    "theory": Experiment(
        "agreement with kNN beside Theorem 2's bound; time, memory and bytes beside Lemmas 1, 2 and 5", "",
        "paper.theory",
    ),
    "privacy": Experiment(
        "the paper's figures on differential privacy again, and the new mechanisms beside its own", "--data",
        "paper.privacy",
    ),
    "membership": Experiment(
        "an attacker who asks who was among the training samples, with and without noise",
        "--data --sets digits,letters",
    ),
    "tables": Experiment("mixed tables with gaps as they are: FlyNN beside encoders, boosting, forests and kNN", ""),
    "probabilities": Experiment(
        "log-loss, Brier score, calibration beside boosting, a calibrated forest and logistic regression", None
    ),
    "ablation": Experiment(
        "the gain by scoring rule, committee, scaling and choice of decay", "", "accuracy", "ablation"
    ),
}  # fmt: skip

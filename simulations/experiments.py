"""The experiments of `python -m simulations`, each with a line that says what it measures."""

EXPERIMENTS = {
    "bench": "speed of hashing, training and prediction, beside lean SciPy, torchhd and the hardware's limit",
    "scale": "seconds and memory of the server for 10, 100 and 1000 parties, or of a simulation with --supernodes 200",
    "traffic": "bytes of a party's counts beside their entropy, and of FedAvg until it is as accurate",
    "accuracy": "balanced accuracy beside tuned kNN, forests, boosting and the paper's methods; calibration, novelty",
    "noniid": "skewed parties: FlyNN beside FedAvg, FedProx, SCAFFOLD and own heads, with class prior",
    "trees": "FlyNN beside FedXgbBagging, FedXgbCyclic and federated forests on skewed parties, and pooled trees",
    "forget": "seconds and bytes to forget samples of a party, beside training again",
    "parties": "time and memory of 10 to 1000 parties, in this process and on Ray",
    "synthetic": "the paper's Tables 1 and 6: FlyNN and its baselines on data made for nearest neighbours",
    "openml": "the paper's tables and scatter plots on OpenML's data sets",
    "hyperparameters": "the effects of m, s, rho and gamma, as in the paper's Figures 4 and 5",
    "scaling": "the paper's Figure 2 and its table: 1 to 16 parties",
    "theory": "agreement with kNN beside Theorem 2's bound; time, memory and bytes beside Lemmas 1, 2 and 5",
    "privacy": "the paper's figures on differential privacy again, and the new mechanisms beside its own",
    "membership": "an attacker who asks who was among the training samples, with and without noise",
    "tables": "mixed tables with gaps as they are: FlyNN beside encoders, boosting, forests and kNN",
    "figures": "AUROC, calibration and losses of a run beside scikit-learn, and the coverage of their intervals",
    "gram": "what a Gram matrix adds, and what its parts are worth",
    "probabilities": "log-loss, Brier score, calibration beside boosting, a calibrated forest and logistic regression",
    "ablation": "the gain by scoring rule, committee, scaling and choice of decay",
}

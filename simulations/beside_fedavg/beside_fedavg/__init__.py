"""An app that trained a linear model by FedAvg, and now trains by FlyNN, too."""

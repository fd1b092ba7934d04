"""An app in which banks trained a network to find fraud by FedAvg, and now train by
FlyNN, too.
"""

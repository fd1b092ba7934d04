"""Experiments with flwr_flynn. `python -m simulations` lists them."""

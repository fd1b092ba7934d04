"""
The noise that each mechanism adds
==================================

A mechanism is an object that can be asked: for its noise, for the epsilon of a given delta, and for its promise in
words. Gaussian noise needs a delta above 0 and is the smallest for hashes with many active bits. Laplace noise promises
with delta 0, and grows with the number of active bits.
"""

import matplotlib.pyplot as plt
from flwr_flynn.privacy import GaussianCounts, LaplaceCounts

mechanism = GaussianCounts(epsilon=1.0, delta=1e-5, hash_nnz=32, n_classes=10)
print(mechanism.guarantee())
print(
    f"epsilon at delta 1e-7: {mechanism.epsilon(1e-7):.2f}; standard deviation: {mechanism.noise_sd:.1f}"
)

# %%
# The standard deviation of the noise in one count, against epsilon and against the number of active bits.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
epsilons = [0.25, 0.5, 1, 2, 4]
sizes = [8, 16, 32, 64, 128, 256]
for delta in (1e-9, 1e-5):
    by_epsilon = [
        GaussianCounts(e, delta, hash_nnz=32, n_classes=10).noise_sd for e in epsilons
    ]
    by_size = [GaussianCounts(1.0, delta, hash_nnz=rho, n_classes=10).noise_sd for rho in sizes]
    left.plot(epsilons, by_epsilon, "o-", label=f"Gaussian, delta {delta:g}")
    right.plot(sizes, by_size, "o-")
left.plot(
    epsilons,
    [LaplaceCounts(e, hash_nnz=32, n_classes=10).noise_sd for e in epsilons],
    "s-",
    label="Laplace",
)
right.plot(
    sizes, [LaplaceCounts(1.0, hash_nnz=rho, n_classes=10).noise_sd for rho in sizes], "s-"
)
left.set(
    xscale="log",
    yscale="log",
    xlabel="epsilon, 32 active bits",
    ylabel="standard deviation of the noise",
)
right.set(xscale="log", yscale="log", xlabel="active bits (rho), epsilon 1")
for axis, ticks in ((left, epsilons), (right, sizes)):
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
left.legend()
plt.show()

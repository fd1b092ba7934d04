"""
Hospitals, regions, a country
=============================

A sum of sums is the same sum. Three regions add the counts of their hospitals, and the country adds the regions' sums:
to it a region is a party like any other. The model is, bit for bit, that of all samples together; the country's roster
names the regions, and each region's roster its hospitals, with what they sent and why one is missing.
"""

import matplotlib.pyplot as plt
import numpy as np
from flwr_flynn import FlyNNClassifier, HashSpec
from flwr_flynn.federated import codec
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.protocol import PARTY, Answer
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

X, X_test, y, y_test = train_test_split(
    *load_digits(return_X_y=True), test_size=0.4, random_state=0
)
spec = HashSpec.suggest(n_features=64, n_examples=len(X), n_classes=10, seed=3)
generator = np.random.default_rng(0)
hospital = generator.choice(12, len(X), p=generator.dirichlet(np.full(12, 2.0)))


def options(parties):
    """A run of one phase, the counting."""
    return RunOptions(
        spec, range(10), parties, decay=0.8, fraction_evaluate=0, distribute=False
    )


class Region:
    """A server to its hospitals and a party to the country."""

    def __init__(self, number):
        self.name = f"region {number}"
        self.hospitals = [
            party_of(X[hospital == i], y[hospital == i], name=f"hospital {i}")
            for i in range(4 * number, 4 * number + 4)
        ]

    def answer(self, config, arrays, channel):
        """The sum of the hospitals' counts, as an answer to what the country asks."""
        self.run = federate(options(3), self.hospitals)  # three of the four will do
        counts = self.run.counts
        return Answer(codec.encode(counts), counts.n_examples, {PARTY: self.name})


regions = [Region(number) for number in range(3)]
country = federate(options(3), regions)
for region, member in zip(regions, country.counted.members, strict=True):
    print(f"{member}: {member.examples} samples, {member.bytes} bytes")
    for each in region.run.counted.members:
        print(f"    {each}: {each.examples} samples, {each.bytes} bytes")
pooled = FlyNNClassifier(spec, decay=0.8).fit(X, y)
print("the country's counts", country.counts.sha256()[:16])
print("the pooled samples' ", pooled.counts_.sha256()[:16])
assert country.counts == pooled.counts_

# %%
# A region has one message to send, of the size of a hospital's, however many hospitals it has.

figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
for i, region in enumerate(regions):
    left = 0
    for each in region.run.counted.members:
        axis.barh(i, each.examples, left=left, color=f"C{i}", edgecolor="white")
        axis.text(left + each.examples / 2, i, str(each).split()[-1], ha="center", va="center")
        left += each.examples
axis.set_yticks(range(3), [region.name for region in regions])
axis.set(
    xlabel="samples of each hospital",
    title=f"accuracy of the country's model: {country.model.score(X_test, y_test):.3f}",
)
plt.show()

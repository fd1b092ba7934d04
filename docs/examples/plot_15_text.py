"""
Text: sparse columns that need no vocabulary
============================================

Parties cannot share a vocabulary without showing their words. ``HashingVectorizer`` needs none: every party maps words
to the same columns by a hash. FlyNN takes its sparse rows as they are. One pipeline stands for
every party here. The messages here are generated from a few
words of each topic among many common ones.
"""

import matplotlib.pyplot as plt
import numpy as np
from flwr_flynn import FlyNNClassifier
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.pipeline import make_pipeline

topics = {
    "billing": ["invoice", "payment", "refund", "charge", "receipt", "account"],
    "delivery": ["parcel", "courier", "address", "tracking", "shipped", "box"],
    "technical": ["error", "screen", "restart", "password", "update", "crash"],
}
common = [f"word{i}" for i in range(300)]
generator = np.random.default_rng(0)


def message(topic, length=20, share=0.15):
    """A message in which some words are of the topic."""
    return " ".join(
        generator.choice(topics[topic] if generator.random() < share else common)
        for _ in range(length)
    )


def messages(n):
    """Messages and their topics."""
    labels = generator.choice(list(topics), n)
    return np.array([message(label) for label in labels]), labels


texts, labels = messages(3000)
texts_test, labels_test = messages(500)
print(labels[0], "|", texts[0])

# %%
# The more messages, the more words the counts know.

sizes = [30, 100, 300, 1000, 3000]
accuracies = []
for n in sizes:
    model = make_pipeline(
        HashingVectorizer(n_features=2**12, alternate_sign=False), FlyNNClassifier(scaling=None)
    )
    accuracies.append(model.fit(texts[:n], labels[:n]).score(texts_test, labels_test))

figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
axis.plot(sizes, accuracies, "o-")
axis.axhline(1 / 3, color="grey", linestyle=":", label="chance")
axis.set(xscale="log", xlabel="training messages", ylabel="accuracy", ylim=(0.2, 1))
axis.set_xticks(sizes, [str(n) for n in sizes])
axis.legend()
plt.show()

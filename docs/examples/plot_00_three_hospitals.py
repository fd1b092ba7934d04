"""
Three hospitals, from their files to a model
============================================

Who will become septic? Three hospitals have a few hundred admissions each, as their systems export them: with gaps,
wards, dates, decimal commas, and a column of file numbers that belongs in no model. They want one classifier, and no
row may leave a hospital. Here the three files stand beside each other, so that one command can try them; between
hospitals the same run is deployed (:doc:`/how_to/deploy_tls`).
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from flwr_flynn import FlyNNClassifier


def admissions(n, seed):
    """Made-up patients: C-reactive protein is measured where somebody looks ill."""
    rng = np.random.default_rng(seed)
    ill = rng.random(n) < 0.25
    table = pd.DataFrame(
        {
            "age": np.clip(rng.normal(55 + 9 * ill, 14), 18, 99).round(),
            "crp": np.exp(rng.normal(1.2 + 0.9 * ill, 0.8)).round(1),
            "ward": np.where(rng.random(n) < 0.4, "surgery", "internal medicine"),
            "admitted": pd.Timestamp("2025-01-01")
            + pd.to_timedelta(rng.integers(0, 400, n), "D"),
            "outcome": np.where(ill, "sepsis", "none"),
        }
    )
    table.loc[rng.random(n) < np.where(ill, 0.05, 0.3), "crp"] = np.nan
    return table


folder = TemporaryDirectory()
basel, bern, chur = (Path(folder.name, f"{name}.csv") for name in ("basel", "bern", "chur"))
admissions(400, 1).assign(number=np.arange(70_000, 70_400)).to_csv(basel, index=False)
admissions(300, 2).to_csv(bern, index=False, sep=";", decimal=",", date_format="%d.%m.%Y")
admissions(350, 3)[["outcome", "ward", "crp", "age", "admitted"]].to_csv(chur, index=False)

# %%
# One command, ``flwr-flynn try``, finds the faults of the files, learns what the columns have in common, trains, and
# writes a report.
# Chur leaves the ward at home: its values are gaps there. The report has figures by ward.

tried = Path(folder.name, "tried")
given = ["--label", "outcome", "--out", str(tried)]
given += ["--set", "group-column=ward", "--set", "chur:ignore=ward"]
command = [str(Path(sys.executable).with_name("flwr-flynn")), "try", basel, bern, chur, *given]
printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
print(
    *[line for line in printed.splitlines() if "columns" in line or "left out" in line],
    sep="\n",
)

# %%
# The same figures as in ``report.html``: do the probabilities hold, and what does a threshold cost? Of 100 patients
# above a threshold so many are septic (the bar is an interval of 95 %).

figures = json.loads((tried / "metrics.json").read_text())["evaluation"]["figures"]
sepsis = next(each for each in figures["classes"] if each["label"] == "sepsis")
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.8), layout="constrained")
for group in sepsis["reliability"]:
    value, low, high = group["observed"]
    left.plot([group["predicted"]] * 2, [low, high], color="tab:blue")
    left.plot(group["predicted"], value, "o", color="tab:blue")
left.axline((0, 0), slope=1, color="gray", linewidth=1)
left.set(xlabel="predicted probability of sepsis", ylabel="observed share", title="Calibration")
rows = [row for row in sepsis["thresholds"] if row["ppv"] and row["sensitivity"]]
right.plot(
    [row["threshold"] for row in rows],
    [row["sensitivity"][0] for row in rows],
    "o-",
    label="found",
)
right.plot(
    [row["threshold"] for row in rows],
    [row["ppv"][0] for row in rows],
    "s--",
    label="rightly flagged",
)
right.set(xlabel="threshold", ylabel="share", title="Thresholds")
right.legend()
for level in figures["groups"]["levels"]:
    print(f"{level['level']}: {level['examples']} test samples, AUROC {level['auroc'][0]:.2f}")
plt.show()

# %%
# A fourth hospital joins. Its counts are added to the model, which no other hospital has to train again.

model = FlyNNClassifier.load(tried / "model.npz")
before = model.model_.members[0].counts
thun = admissions(200, 4)
model.partial_fit(thun.drop(columns="outcome"), thun["outcome"])
print(before.n_examples, "samples, and with Thun", model.model_.members[0].counts.n_examples)

# %%
# A patient of Thun withdraws consent: the counts without the row are those that never had it.

gone, others = thun[:1], thun[1:]
model.forget(gone.drop(columns="outcome"), gone["outcome"])
never = FlyNNClassifier.load(tried / "model.npz")
never.partial_fit(others.drop(columns="outcome"), others["outcome"])
print(model.model_.members[0].counts == never.model_.members[0].counts)
folder.cleanup()

"""
Three hospitals, from their files to a model
============================================

Can three hospitals train one classifier on exports that look different at each, while no row leaves? Here the three
files of :doc:`the tutorial </tutorial/own_data>` stand beside each other: one command names what differs, a setting of
a site mends it, and the figures follow. Between hospitals the same run is deployed (:doc:`/how_to/deploy_tls`).

The patients are made up. Basel's export has a column of case numbers, Bern's has decimal commas and creatinine in
mg/dl, and Chur's has -9 for missing values.
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

place = TemporaryDirectory()
folder = Path(place.name)


def admissions(n, seed):
    """Made-up patients: C-reactive protein is measured where somebody looks ill."""
    rng = np.random.default_rng(seed)
    ill = rng.random(n) < 0.3
    table = pd.DataFrame(
        {
            "age": np.clip(rng.normal(55 + 9 * ill, 14), 18, 99).round(),
            "crp": np.exp(rng.normal(1.2 + 0.9 * ill, 0.8)).round(1),
            "creatinine": np.exp(rng.normal(4.4 + 0.25 * ill, 0.3)).round(),
            "ward": np.where(rng.random(n) < 0.4, "surgery", "internal medicine"),
            "admitted": pd.Timestamp("2025-01-01")
            + pd.to_timedelta(rng.integers(0, 400, n), unit="D"),
            "outcome": np.where(ill, "sepsis", "none"),
        }
    )
    table.loc[rng.random(n) < np.where(ill, 0.05, 0.3), "crp"] = np.nan
    return table


basel, bern, chur = admissions(400, 1), admissions(300, 2), admissions(350, 3)
basel["case"] = range(70_000, 70_400)
basel["creatinine"] = [f"{value:.0f} µmol/l" for value in basel["creatinine"]]
bern["creatinine"] = [f"{value / 88.4:.2f} mg/dl" for value in bern["creatinine"]]
bern["creatinine"] = bern["creatinine"].str.replace(".", ",")
chur["creatinine"] = [f"{value:.0f} µmol/l" for value in chur["creatinine"]]
chur["crp"] = chur["crp"].fillna(-9)
basel.to_csv(folder / "basel.csv", index=False)
bern_dialect = {"sep": ";", "decimal": ",", "date_format": "%d.%m.%Y"}
bern.to_csv(folder / "bern.csv", index=False, **bern_dialect)
chur[[*chur.columns[::-1]]].to_csv(folder / "chur.csv", index=False)

# %%
# ``flwr-flynn try`` looks at all files before anything is counted. It reads separators, commas and dates by itself.
# What it must not guess it names, with the setting that answers it; different units stop it.

files = ["basel.csv", "bern.csv", "chur.csv"]


def flynn(*arguments):
    """Lines that the command prints."""
    command = [str(Path(sys.executable).with_name("flwr-flynn")), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.stdout.splitlines()


printed = flynn("try", *files, "--label", "outcome")
print(*[line for line in printed if line.startswith(("NOTICED", "REFUSED"))], sep="\n")

# %%
# Each site answers, and the run goes through. Of its figures the AUROC *without the site* is the one for a hospital
# that thinks of joining: each hospital's rows, by the model without its counts.

answers = [
    "basel:ignore=case",
    "bern:convert=creatinine:mg/dl*88.4",
    "chur:gap-texts=-9",
    "group-column=ward",
]
given = [text for answer in answers for text in ("--set", answer)]
printed = flynn("try", *files, "--label", "outcome", "--out", "tried", *given)
print(*[line for line in printed if "AUROC" in line], sep="\n")

# %%
# The same figures as in ``report.html``: do the probabilities hold, and what does a threshold cost? Of 100 patients
# above a threshold so many are septic (the bar is an interval of 95 %).

figures = json.loads((folder / "tried/metrics.json").read_text())["evaluation"]["figures"]
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
# New patients: the classes that hold the true one in 90 of 100 rows of each class, and the two columns that matter
# most. The third patient has no value of C-reactive protein.

new = admissions(3, 6).drop(columns="outcome")
new.to_csv(folder / "new.csv", index=False)
print(
    *flynn("predict", "tried/model.npz", "new.csv", "--coverage", ".9", "--reasons", "2"),
    sep="\n",
)

# %%
# A fourth hospital joins. Its counts are added to the model, which no other hospital has to train again.

model = FlyNNClassifier.load(folder / "tried/model.npz")
before = model.model_.members[0].counts
thun = admissions(200, 4)
model.partial_fit(thun.drop(columns="outcome"), thun["outcome"])
print(before.n_examples, "samples, and with Thun", model.model_.members[0].counts.n_examples)

# %%
# A patient of Thun withdraws consent: the counts without the row are those that never had it.

gone, others = thun[:1], thun[1:]
model.forget(gone.drop(columns="outcome"), gone["outcome"])
never = FlyNNClassifier.load(folder / "tried/model.npz")
never.partial_fit(others.drop(columns="outcome"), others["outcome"])
print(model.model_.members[0].counts == never.model_.members[0].counts)
place.cleanup()

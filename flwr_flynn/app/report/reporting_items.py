"""Items of TRIPOD+AI and TRIPOD-Cluster: filled where the run knows, else a blank.

The run fills 5a, 6a, 7, 8a, 9a, 10, 11, 12a to 12e, 12g, 13, 14, 15, 18f, 20a, 20b, 21,
22, 23a, 23b, 24, and C2 to C4. A person writes the others, and what is missing in these.
"""

from __future__ import annotations

from flwr_flynn._validation import listed
from flwr_flynn.app.report.derived import event_class, figures_of
from flwr_flynn.app.report.markup import NONE
from flwr_flynn.app.report.sections import Items, Report, bounded, sentence

_ITEMS = """\
1 title | to be written: developing or evaluating, target population, outcome
2 abstract | to be written: by TRIPOD+AI for Abstracts
3a background | to be written: context of care, rationale, existing models
3b intended use | to be written: target population, place in the pathway, users
3c inequalities | to be written: those known between groups
4 objectives | to be written: development, evaluation, or both
5a sources of data | files of {names}; to be written: their kind
5b dates | to be written: start and end of recruitment and follow-up
6a setting | {n_sites} sites; to be written: kind and place of each
6b eligibility | to be written: criteria of each site
6c treatments | to be written: those received, and how they were handled
7 preparation | columns matched by name, {n_columns} used
8a outcome | {outcome}; to be written: definition and horizon
8b outcome assessment | to be written: who assessed it, with which expertise
8c blinding | to be written: of those who assessed the outcome
9a predictors | {columns}; to be written: how they were chosen
9b definition of predictors | to be written: how and when each was measured
9c predictor assessment | to be written: who assessed them
10 sample size | {sizes}; Sample size
11 missing data | a gap is a value of its own, nothing is imputed; columns with gaps: Model
12a use of data | rows are held out at each site by content or held-out-key; share: {held_out}
12b handling of predictors | ranks of numbers among all sites' values, levels of categories
12c type of model | members of hashes and counts, chosen by leave-one-out; Model
12d heterogeneity | random effects by Paule and Mandel on the log odds of the AUROC
12e performance measures | AUROC (DeLong), calibration curve, O:E, slope, net benefit; Use
12f plan of updates | to be written: recalibration planned before the analysis
12g predictions | model.npz by the command flwr-flynn predict
13 class imbalance | no resampling; the prior is the frequency of the classes
14 fairness | figures by level of: {group}
15 output | the probability of each class; thresholds are in Use
16 training and evaluation | to be written: differences in setting, criteria, outcome
17 ethics | to be written: approval and consent, or why there is no need
18a funding | to be written: source, and role of the funders
18b conflicts of interest | to be written: of all authors
18c protocol | to be written: where it is
18d registration | to be written: register and number
18e data sharing | to be written: which data, and where
18f code | flwr-flynn {version}; the command is in Settings
19 patient involvement | to be written: in design, conduct and report
20a flow | Who took part: rows counted and held out by site
20b characteristics | Classes by party; to be written: those of the rows
20c comparison | to be written: of predictors in training and evaluation
21 rows and events | {sizes}
22 specification | model.npz, of the SHA-256 in Equality
23a performance | Figures: AUROC, slope and others; By site; Subgroups
23b heterogeneity | By site: tau, I squared, and the AUROC to expect at a new site
24 updating | Who took part: sites that this run changed
25 interpretation | to be written: with objectives and earlier studies
26 limitations | to be written: of the sample, missing data, fairness
27a poor input | to be written: what to do with missing or poor values in use
27b users | to be written: their interaction and expertise
27c next steps | to be written: further research, generalisability
C1 choice of sites | to be written: how they were found, and which did not take part
C2 sites in the model | counts add up; no term of the model is of a site
C3 outcome by site | By site: rows and events of each
C4 validation by site | By site: the model without each site, on all of its rows
"""
"""An item in each line: number and name, and its text with what a run knows."""


def reporting_items(report: Report) -> Items:
    """The items as a table, in their order."""
    evaluation = report["evaluation"]
    if not evaluation:
        return
    schema = report["schema"] or {"columns": []}
    names = [column["name"] for column in schema["columns"]]
    sizes = f"{report['examples']} rows in training, {evaluation['examples']} held out"
    outcome = f"one of {listed([*map(str, report['classes'])], 20)}"
    of_event = event_class(report)
    if of_event:
        sizes += f", of these {of_event['examples']} events"
        outcome = f"{of_event['label']}, {outcome}"
    known = {
        "names": listed([party["name"] for party in report["parties"]], 20),
        "n_sites": len(report["federation"]),
        "n_columns": len(names) or "all",
        "outcome": outcome,
        "columns": listed(names, 30) or NONE,
        "sizes": sizes,
        "held_out": report["settings"].get("test-fraction", "a setting of each"),
        "group": (figures_of(report)["groups"] or {}).get(
            "column", "no column was named"
        ),
        "version": report["versions"].get("flwr-flynn", NONE),
    }
    rows = [line.format_map(known).split(" | ", 1) for line in _ITEMS.splitlines()]
    yield sentence(
        "Items of TRIPOD+AI (BMJ 2024), and as C those that TRIPOD-Cluster adds, as far "
        "as the run knows them. Check what it fills in."
    )
    yield from bounded("TRIPOD+AI", ("item", "text"), rows, "items", "items")

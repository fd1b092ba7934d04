"""Items of TRIPOD+AI and TRIPOD-Cluster: filled where the run knows, else a blank.

The run fills 5a, 6a, 7, 8a, 9a, 10, 11, 12a, 12c, 12d, 12e, 13, 14, 15, 18f, 20a, 20b,
21, 22, 23a, 23b, 24, and the items C1 to C3 about sites. A person writes the others.
"""

from __future__ import annotations

from flwr_flynn._validation import listed
from flwr_flynn.app.report.derived import event_class, figures_of, spreads
from flwr_flynn.app.report.markup import plural, with_interval
from flwr_flynn.app.report.sections import Report, Section, bounded, sentence

_BLANKS = {
    "1": ("title", "developing or evaluating, target population, outcome"),
    "2": ("abstract", "by TRIPOD+AI for Abstracts"),
    "3a": ("background", "context of care, rationale, existing models"),
    "3b": ("intended use", "target population, place in the pathway, users"),
    "3c": ("inequalities", "known ones between groups"),
    "4": ("objectives", "development, validation, or both"),
    "5b": ("dates", "start and end of the recruitment, end of follow-up"),
    "6b": ("eligibility", "criteria of each site"),
    "6c": ("treatments", "those received, and how they were handled"),
    "8b": ("outcome assessment", "who assessed it, and with which expertise"),
    "8c": ("blinding", "of those who assessed the outcome"),
    "9b": ("definition of predictors", "how and when each was measured"),
    "9c": ("predictor assessment", "who assessed them, and with which expertise"),
    "12f": ("plan of updates", "recalibration planned before the analysis"),
    "16": ("training and evaluation", "differences in setting, criteria, outcome"),
    "17": ("ethics", "approval and consent, or why there is no need"),
    "18a": ("funding", "source, and role of the funders"),
    "18b": ("conflicts of interest", "of all authors"),
    "18c": ("protocol", "where it is"),
    "18d": ("registration", "register and number"),
    "18e": ("data sharing", "which data, and where"),
    "19": ("patient involvement", "in design, conduct and report"),
    "25": ("interpretation", "with objectives and earlier studies"),
    "26": ("limitations", "of the sample, missing data, fairness"),
    "27a": ("poor input", "what to do with missing or poor values in use"),
    "27b": ("users", "their interaction and expertise"),
    "27c": ("next steps", "further research, generalisability"),
    "C4": ("choice of sites", "how they were found, and which did not take part"),
}
"""Items that a person writes: their names, and what to write."""


def reporting_items(report: Report) -> Section:
    """The items as a table, in their order."""
    title = "TRIPOD+AI"
    if not report["evaluation"]:
        return Section(title, [])
    filled = _filled(report)
    rows = [
        (item, name, f"to be written: {what}") for item, (name, what) in _BLANKS.items()
    ]
    rows += [(item, name, text) for item, (name, text) in filled.items() if text]
    rows.sort(key=_order)
    introduction = sentence(
        "Items of TRIPOD+AI (BMJ 2024), and as C those that TRIPOD-Cluster adds, as far "
        "as the run knows them. Check what it fills in."
    )
    table = bounded(title, ("item", "about", "text"), rows, "items", "items")
    return Section(title, [], [introduction, *table])


def _order(row: tuple[str, str, str]) -> tuple[bool, int, str]:
    item = row[0]
    number = item.strip("Cabcdefg") or item[1:]
    return item.startswith("C"), int(number), item


def _filled(report: Report) -> dict[str, tuple[str, str]]:
    """Items that the run knows."""
    settings = report["settings"]
    names = [party["name"] for party in report["parties"]]
    evaluation = report["evaluation"]
    figures = figures_of(report)
    overall = figures["overall"] or {}
    n_sites = plural(len(report["federation"]), "site")
    n_tried = plural(evaluation["examples"], "held-out row")
    columns = (report["schema"] or {}).get("columns", [])
    names_of = [column["name"] for column in columns]
    with_gaps = [column["name"] for column in columns if column.get("gaps", True)]
    event = report["event"]
    outcome = f"one of the classes {listed(report['classes'], 20)}"
    if event:
        outcome = f"{event['label']}, against {listed(report['classes'], 20)}"
    sizes = f"{report['examples']} rows in training, {n_tried}"
    of_event = event_class(report)
    if of_event is not None:
        sizes += f", of these {plural(of_event['examples'], 'event')}"
    spread = "; ".join(
        f"{kind.replace('_', ' ')}: tau {found['tau']:.2f} over {found['sites']} sites"
        for kind, found in spreads(report).items()
    )
    groups = (figures["groups"] or {}).get("column", "")
    performance = f"AUROC {with_interval(overall.get('auroc'))}, slope "
    performance += with_interval(overall.get("calibration_slope"))
    by_group = groups and f"figures by level of {groups}"
    return {
        "5a": ("sources of data", f"files of {listed(names, 20)}"),
        "6a": ("setting", f"{n_sites}; to be written: their kind and place"),
        "7": (
            "preparation",
            "columns matched by name; "
            + plural(len(names_of), "column")
            + "; see What was noticed",
        ),
        "8a": ("outcome", f"{outcome}; to be written: definition and horizon"),
        "9a": ("predictors", listed(names_of, 30) if names_of else ""),
        "10": ("sample size", f"{sizes}; see Sample size"),
        "11": (
            "missing data",
            "a gap is a value of its own, nothing is imputed; "
            + plural(len(with_gaps), "column")
            + " with gaps",
        ),
        "12a": (
            "use of data",
            f"of each site a share of {settings.get('test-fraction', 'its choice')} is "
            "held out, by the content of a row",
        ),
        "12c": (
            "type of model",
            f"{plural(len(report['members']), 'member')} of hashes and counts, chosen by "
            "leave-one-out, with a linear part and trees where these gain; see Model",
        ),
        "12d": ("heterogeneity", "random effects by Paule and Mandel on the log odds"),
        "12e": (
            "performance measures",
            "AUROC (DeLong), calibration curve, O:E, slope, intercept, net benefit",
        ),
        "13": ("class imbalance", "no resampling; the prior is the classes' frequency"),
        "14": ("fairness", by_group or "no group was named: see the run settings"),
        "15": ("output", "the probability of each class; thresholds are in Use"),
        "18f": (
            "code",
            f"flwr-flynn {report['versions'].get('flwr-flynn', '')}; Settings",
        ),
        "20a": ("flow", "Who took part has rows counted and held out by site"),
        "20b": (
            "characteristics",
            "Classes by party; to be written: those of the rows",
        ),
        "21": ("rows and events", sizes),
        "22": ("specification", "model.npz, of the SHA-256 in Equality"),
        "23a": ("performance", performance),
        "23b": ("heterogeneity", spread),
        "24": ("updating", f"{len(report['updates'])} parties updated in this run"),
        "C1": ("sites", f"{n_sites}; By site has rows and events of each"),
        "C2": ("sites in the model", "counts add; no term of the model is of a site"),
        "C3": ("validation by site", spread and "By site: the model without each site"),
    }

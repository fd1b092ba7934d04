"""The party's own copy of the model: its class prior, its trial, and the file it goes to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from flwr_flynn.errors import DataError, FlyNNError, PrivacyError
from flwr_flynn.federated.flower_log import log
from flwr_flynn.federated.private_rows import Fitting
from flwr_flynn.federated.protocol import RESULTS, SECURE
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.views import View, without_samples
from flwr_flynn.model.model import Model
from flwr_flynn.model.prior import own_prior
from flwr_flynn.model.selection import UnseenScoring


def tried(
    view: View, run: RunSpec, unseen: UnseenScoring
) -> tuple[Model, bool, Iterator[Fitting]]:
    """The model to try, True if it differs by the class prior, and held-out samples.

    These come some at a time: numbers, class codes, and the model's shared scores.
    The model has the party's class prior and levels. Where exact counts do not leave
    the party in clear, nothing of its own training samples is in it. Of results in a
    secure sum nobody sees the party's own: they need no consent, but with a budget, whose
    guarantee does not cover them.
    """
    options = view.options
    needs_consent = options.budget is not None or (
        options.secure and view.discloses != SECURE
    )
    with without_samples():
        if needs_consent and not options.evaluates:
            text = (
                "policy evaluate off: results on its own samples do not leave this "
                "party"
            )
            raise PrivacyError("policy evaluate", got="off", text=text)
        view.require(RESULTS, SECURE)
    mine = unseen.model
    has_own = False
    if not view.hides:
        mine = _personalized(view, run, unseen)
        has_own = options.class_prior and run.is_plain
    # By the model without the site they are tried again.
    scores = partial(mine.shared_scores, n_jobs=options.n_jobs, come_again=True)
    return mine, has_own, view.held_out_batches(run, scores)


def keep(view: View, run: RunSpec, unseen: UnseenScoring) -> str:
    """Give the model, personalized, to `on_model`; "" or a reason why that failed."""
    on_model = view.options.on_model
    if on_model is None:
        return ""
    try:
        from flwr_flynn.model.classifier import FlyNNClassifier

        own = _personalized(view, run, unseen)
        classifier = FlyNNClassifier.from_model(own, class_weight=run.class_weight)
        on_model(classifier)
    except Exception as error:
        log.error("FlyNN: on_model failed", exc_info=error)
        # The reason has the system's name of an OSError: the rest of its text names a
        # file.
        cause = ""
        if isinstance(error, OSError) and error.errno:
            cause = f": {os.strerror(error.errno)}"
        return f"failed with {type(error).__name__}{cause}"
    return ""


def _personalized(view: View, run: RunSpec, unseen: UnseenScoring) -> Model:
    """The model with the class frequencies and the levels of the party's samples, if it
    has some.
    """
    options = view.options
    model = unseen.model
    is_private = options.budget is not None or run.mechanism is not None
    if is_private or not options.class_prior:
        return model
    text = "FlyNN: the model is used without what is the party's own in it"
    try:
        X, codes = view.own_samples(run)
        own = model
        if len(codes):
            own = replace(own, prior=own_prior(model.members[0].counts, codes))
        are_counted = not options.related_rows
        if not are_counted:
            X, codes = view.held_out_samples(run)
        if len(codes) and model.has_sets:
            terms = ("levels", view.features, model.sha256())
            scoring = replace(unseen, n_jobs=options.n_jobs, are_counted=are_counted)
            make = partial(scoring.levels, X, codes)
            with suppress(DataError):  # of samples that are not in the counts
                own = own.with_own_levels(view.loader.made(terms, make))
        return own
    except FlyNNError:
        log.warning(text)  # the error is in the log by its refusal
    except Exception as error:
        log.warning(text, exc_info=error)
    return model

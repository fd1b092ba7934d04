"""Trial of the models without a site and of the site alone, on its samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from flwr_flynn._types import Array
from flwr_flynn.errors import FlyNNError
from flwr_flynn.federated.flower_log import log
from flwr_flynn.federated.labels import Codes
from flwr_flynn.federated.phases.counts import counts_of
from flwr_flynn.federated.protocol import SECURE
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.score_tables import ALONE, WITHOUT, Pair, add_scored
from flwr_flynn.federated.views import SCORES, View
from flwr_flynn.hashing.batching import batches
from flwr_flynn.model.counts_of_specs import CountsOfSpecs
from flwr_flynn.model.metrics import confusion
from flwr_flynn.model.model import Model
from flwr_flynn.model.site_models import (
    MOST_TRIED,
    SiteClassifier,
    chosen_rows,
    memory_of_site,
    model_without,
)

_MANY = 64  # sums of scores, of some fewer classes


def most_tried(bound: int | None) -> int:
    """Samples of a site, at most, up to which training samples are tried without it."""
    return min(bound or MOST_TRIED, MOST_TRIED)


@dataclass
class SiteTrial:
    """The models without a site and of a site alone, while samples are tried by them."""

    view: View
    most: int
    """Samples up to which training samples are tried, after all held-out ones."""
    alone: SiteClassifier | None = None
    without: Model | None = None
    taken_out: str = ""
    """SHA-256 of what was taken out of the model; "" without one."""
    training: tuple[Array, Codes] | None = None
    """Training samples by which the model without the site is tried."""
    n_tried: int = 0

    @classmethod
    def of(
        cls, run: RunSpec, model: Model, total: CountsOfSpecs, view: View
    ) -> SiteTrial:
        """The models, as far as there are some, by the counts and products of all."""
        site = cls(view, most_tried(run.bound))
        basis = None
        if total.linear is not None:
            basis = total.linear.terms
        try:
            own = counts_of(run, basis, view, recall=True)
            # A sum of figures of a site without samples alone would be its own.
            lacks_products = model.linear is not None and total.linear is None
            if not lacks_products or view.discloses != SECURE:
                site.without = model_without(model, own, total, run.class_weight)
            if view.shows_training:
                X, codes = view.samples_of(run)
                site.training = (X, codes)
                if len(np.unique(codes)) > 1:
                    needed = memory_of_site(X, run.n_classes)
                    view.options.check_memory(needed, "a model of the site alone")
                    site.alone = SiteClassifier(
                        X, codes, model, run.class_weight, view.options.n_jobs
                    )
        except FlyNNError as error:
            # Its text may hold anything, and stays on this machine.
            log.info("FlyNN: not tried without the site, or alone: %s", error)
        except Exception as error:  # the other figures are told
            log.error("FlyNN: not tried without the site, or alone", exc_info=error)
        if site.without is not None:
            site.taken_out = " ".join(own.sha256)
        return site

    def add_held_out(
        self,
        X: Array,
        true: Codes,
        predicted: Codes,
        groups: Sequence[Pair],
        paired: Array,
    ) -> None:
        """Try held-out samples, of which the model has these predictions."""
        with self._dropped("without", groups[WITHOUT]):
            self._add_without(X, true, groups[WITHOUT])
        with self._dropped("alone", groups[ALONE]):
            if self.alone is not None:
                probabilities = self.alone.probabilities(X)
                of_site = probabilities.argmax(axis=1)
                add_scored(groups[ALONE], probabilities, true, of_site)
                wrong = (predicted != true).astype(np.int64)
                paired += confusion(wrong, (of_site != true).astype(np.int64), 2)

    @contextmanager
    def _dropped(self, name: str, pair: Pair) -> Iterator[None]:
        """Drop a model that fails in the block, and its figures; others are told."""
        try:
            yield
        except Exception as error:
            log.error("FlyNN: not tried %s", name, exc_info=error)
            setattr(self, name, None)
            for table in pair:
                table[:] = 0

    def add_training(self, pair: Pair) -> None:
        """Try the model without the site on training samples, unless they are few."""
        least = self.view.options.min_examples
        if self.training is None or len(self.training[1]) < least:
            return
        X, codes = self.training
        most = max(self.most - self.n_tried, 0)
        if len(codes) > most:
            rows = chosen_rows(X, most)
            X = X[rows]
            codes = codes[rows]
        step = MOST_TRIED
        if pair[1].size > _MANY:  # of many classes their scores take much memory
            step = max(1, SCORES // pair[1].size)
        with self._dropped("without", pair):
            for part in batches(len(codes), step):
                self._add_without(X[part], codes[part], pair)

    def _add_without(self, X: Array, true: Codes, pair: Pair) -> None:
        if self.without is None:
            return
        self.n_tried += len(true)
        n_jobs = self.view.options.n_jobs
        scores = self.without.shared_scores(X, n_jobs, come_again=True)
        posterior = self.without.posterior(scores)
        probabilities = self.without.probabilities(posterior)
        add_scored(pair, probabilities, true, posterior.argmax(axis=1))

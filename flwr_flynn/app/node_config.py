"""The settings of a deployed party, from ``flower-supernode --node-config``.

They are checked before the party's first request. Each field is one key
(``max_epsilon`` is spelled ``max-epsilon`` outside).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from flwr_flynn.app.settings_parser import Rule, about_settings, setting
from flwr_flynn.app.site_file import SiteSettings, site_settings
from flwr_flynn.errors import ConfigError
from flwr_flynn.federated.samples import Features, Samples
from flwr_flynn.privacy import NEIGHBOURS
from flwr_flynn.privacy.ledger import Policy
from flwr_flynn.privacy.ledger_files import digest_of
from flwr_flynn.privacy.release_policy import COMPOSITIONS

_of_policy = partial(setting, needs=("max_epsilon",))


@dataclass(frozen=True)
class NodeConfig(SiteSettings):
    """The settings of a deployed party."""

    source = "node-config"
    gone: ClassVar[Mapping[str, str]] = {
        "gram": "none: gram=true consents to nothing any more; products=true lets sums "
        "of products of columns and of trees leave as well"
    }
    # Flower's tutorials give them to every node
    foreign = frozenset({"partition-id", "num-partitions"})

    data_path: str = setting(
        "", "the party's own CSV, Parquet or NPZ file", required=True
    )
    site: str = setting(
        "", "a TOML file of settings about the data file, which come after these"
    )
    previous_path: str = setting(
        "", "the file as it was counted, for runs of `action = update`"
    )
    model_path: str = setting(
        "",
        "file for the party's own copy of the model, for its owner alone; an earlier "
        "file is replaced",
    )
    record_path: str = setting(
        "",
        "`.jsonl` file: a line for each message before it leaves; a page is beside it",
    )
    member_path: str = setting(
        "",
        "file of the party's secret, made if there is none, which outlasts its node id",
    )
    party_id: str = setting("", "the name under which the server reports this party")
    test_fraction: float = setting(
        0.2,
        "share of the party's samples held out for the evaluation; 0: no figures of any; "
        "1: a site that only tries the model, on all",
        low=0,
        high=1,
    )
    memory_limit: float = setting(
        4.0, "most GiB for the counting; a hash that needs more is refused", above=0
    )
    min_examples: int = setting(
        5,
        "histograms of columns show one value in so many; 2 and 3 are taken as 4",
        low=1,
    )
    class_prior: bool = setting(
        True,
        "the party's copy has the class prior, and sets, of its own samples; not with "
        "`max-epsilon`",
    )
    products: bool = setting(
        False,
        "sums of products of columns, and those of trees, may leave the party in clear: "
        "who alone has a level or a gap, or is in a leaf, is told whole, whatever "
        "`min-examples`; the total goes on to all sites",
    )
    table_one: bool = setting(
        False,
        "the report may show the party's columns; with `min-examples` 1 it does",
    )
    max_epsilon: float = setting(
        0.0, "bound on the epsilon of all answers; only noisy counts leave", above=0
    )
    max_delta: float = _of_policy(
        0.0, "bound on the sum of their `delta`", low=0, high=0.01
    )
    secure: bool = setting(
        False,
        "statistics leave in secure sums alone; `max-epsilon` is on the epsilon of "
        "the sum",
    )
    leave: bool = setting(
        False, "the party leaves: it answers runs of `action = withdraw` alone"
    )
    state_path: str = _of_policy(
        "", "file of the party's private answers; needed with `max-epsilon`"
    )
    neighbours: str = _of_policy(
        "add-remove",
        "least protection; `replace-one` is the stronger",
        choices=NEIGHBOURS,
    )
    records_per_person: int = _of_policy(
        1, "records of one person that an answer must protect", low=1, high=10**6
    )
    composition: str = _of_policy(
        "basic",
        "account of private answers: `zcdp` needs `max-delta`",
        choices=COMPOSITIONS,
    )
    evaluate: bool = setting(
        False,
        "with `max-epsilon` or `secure`: results on held-out samples may leave the "
        "party",
    )
    response_seconds: float = _of_policy(
        0.0, "seconds that every answer takes; 0: no fixed time", low=0, high=86400
    )

    @classmethod
    def parse(cls, raw: Mapping[str, object]) -> NodeConfig:
        """Check a mapping as `Settings.parse` does.

        Settings of a policy are refused without `max-epsilon`. Those in the file at
        `site` come after the others.
        """
        site = raw.get("site", "")
        # A text, or a number that stands for one; all else is refused below.
        path = ""
        if isinstance(site, str | int | float) and not isinstance(site, bool):
            path = str(site).strip()
        if path:
            raw = {**site_settings(path), **raw}
        # Without a bound there is no policy, and exact counts would leave a party that
        # wants one.
        of_policy = [key for key in POLICY_KEYS if key in raw]
        if of_policy and "max-epsilon" not in raw:
            expected = f"a number above 0 beside {of_policy[0]}"
            raise ConfigError("node-config max-epsilon", expected, "none")
        node = super().parse(raw)
        if "evaluate" in raw and not (node.max_epsilon or node.secure):
            expected = "a number above 0, or secure = true, beside evaluate"
            raise ConfigError("node-config max-epsilon", expected, "none")
        return node

    def rules(self) -> Iterator[Rule]:
        yield from super().rules()
        is_private = self.max_epsilon > 0
        ledger = Path(os.path.normpath(self.state_path))
        expected = "none with max-epsilon: samples cannot be taken out of noisy counts"
        yield "previous_path", is_private and bool(self.previous_path), expected
        is_file = ledger.is_absolute() and bool(ledger.name)
        expected = "an absolute path of a file below the root, with max-epsilon"
        yield "state_path", is_private and not is_file, expected
        expected = "an encoding whose lines are read one by one, with max-epsilon"
        yield "encoding", is_private and self.encoding == "utf-16", expected
        expected = "none with max-epsilon (convert says what a unit is)"
        yield "accept", is_private and bool(self.accept), expected

    def check(self) -> None:
        super().check()
        if self.max_epsilon:
            self.policy()

    def party_options(
        self, load: Callable[[NodeConfig, Features], Samples]
    ) -> dict[str, Any]:
        """Options of other names; `load` returns the samples of a file by settings."""
        previous = None
        if self.previous_path:
            previous = partial(load, replace(self, data_path=self.previous_path))
        related_rows = bool(self.held_out_key)
        return {
            "leaves": self.leave,
            "previous": previous,
            "related_rows": related_rows,
        }

    def digest(self) -> str:
        """SHA-256 of the settings by which rows are read, "" without any."""
        facts = self.facts()
        if facts == NodeConfig().facts():
            return ""
        return digest_of(facts)

    def policy(self) -> Policy:
        """The party's bounds on its private answers."""
        names = "neighbours", "records_per_person", "composition"
        given: dict[str, Any] = {name: getattr(self, name) for name in names}
        with about_settings(self.source):
            return Policy(
                self.max_epsilon, self.max_delta, secure_sum=self.secure, **given
            )


POLICY_KEYS = tuple(
    row.key for row in NodeConfig.rows() if "max_epsilon" in row.facts.needs
)
"""Keys of a node config about private answers alone."""

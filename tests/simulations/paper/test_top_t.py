"""The paper's accountings of its private mechanism."""

from __future__ import annotations

import pytest

from flwr_flynn.errors import ConfigError
from flwr_flynn.privacy import mechanism_from_dict
from simulations.paper.top_t import ACCOUNTINGS, PaperTopT
from tests.raising import raises

SHAPE = {"hash_nnz": 4, "n_classes": 2}


def test_the_paper_s_accounting():
    """Algorithm 2 with epsilon / tau.

    The exponent is e / 4 T as printed, e / 2 T in the authors' code; Laplace 2 T /
    e.
    """
    paper = PaperTopT(1.0, 10, **SHAPE, accounting="paper", n_parties=2)
    code = PaperTopT(1.0, 10, **SHAPE, accounting="code", n_parties=2)
    share = 1.0 / 2
    assert (paper.exponent, paper.scale) == (share / 40, 20 / share)
    assert (code.exponent, code.scale) == (share / 20, 20 / share)
    # With more counts changed than released, the code gives away e under add-remove,
    # 1.5 e under replace-one.
    wide = {"hash_nnz": 10, "n_classes": 2, "accounting": "code", "n_parties": 2}
    assert PaperTopT(1.0, 10, **wide).epsilon() == pytest.approx(share)
    assert PaperTopT(
        1.0, 10, **wide, neighbours="replace-one"
    ).epsilon() == pytest.approx(1.5 * share)


@pytest.mark.parametrize("accounting", ACCOUNTINGS)
def test_it_gives_away_no_more_than_was_asked_for(accounting):
    mechanism = PaperTopT(1.0, 10, **SHAPE, accounting=accounting, n_parties=2)
    assert mechanism.epsilon() <= 1.0


def test_its_text_is_that_from_which_the_figures_seeds_were_made():
    assert repr(PaperTopT(1.0, 8, **SHAPE, accounting="code", n_parties=2)) == (
        "TopTLaplace(epsilon=1.0, hash_nnz=4, n_classes=2, neighbours='add-remove', "
        "records_per_person=1, "
        "n_released=8, accounting='code', n_parties=2)"
    )


def test_what_is_refused():
    for bad, field in (
        ({"accounting": "tight"}, "accounting"),
        ({"n_parties": 0}, "n_parties"),
    ):
        with raises(ConfigError, field=field):
            PaperTopT(1.0, 5, **SHAPE, **({"accounting": "code", "n_parties": 2} | bad))
    with pytest.raises(ConfigError):  # a party knows the tight accounting alone
        mechanism_from_dict(
            PaperTopT(1.0, 5, **SHAPE, accounting="code", n_parties=2).to_dict()
        )

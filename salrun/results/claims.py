"""What claims.csv and claim_parts.csv say, and what they come to in a sentence. `salrun.papers.verdicts` makes them.

`measured`         the part that decides, with its 95% interval; `size`: small, where it is below its unit's delta
`answer`           yes, no, uncertain, not tested
`about`            what it speaks of where that is not the paper's sentence: one model, 2 models, another network,
                   images seen before
`holds`            both: yes (one model)
`second_mode`      the same with the metrics' other definition
`agrees`           how many of the printed numbers ours equal, within tau of their unit, and the median difference
`published_holds`  the parts on the paper's own tables, up to the error of print; empty where it prints none
`counted`          yes, or why the claim is listed apart
`control`          what a perfect map and maps blind to the model do in place of the methods
"""

from __future__ import annotations

import pandas as pd

CLAIMS = [
    *("id", "paper", "sentence", "place", "predicate", "quantifier", "parts", "needed", "unit"),
    *("measured", "ci_low", "ci_high", "size", "k", "population", "holds", "answer", "about", "second_mode"),
    *("agrees", "published", "published_holds", "counted", "control", "reason"),
]
PARTS = [
    *("id", "mode", "kind", "part", "measured", "ci_low", "ci_high", "holds", "size", "replicate_0"),
    *("published", "published_holds", "difference", "agrees"),
]
NOT_TESTED = "not tested"
ENOUGH = 3  # replicates that a verdict takes: salrun/stats/conjunction.py's, whose import costs a reader scipy.stats


def headline(claims: pd.DataFrame) -> str:
    """What a paper's verdicts come to, in a sentence; of one model: what it says, and that it takes three."""
    counted = claims[claims["counted"] == "yes"]
    tested = counted[counted["answer"] != NOT_TESTED]
    if not len(tested):
        return f"none of the {len(counted)} counted statements can be tested on this run alone"
    about_the_sentence = tested["about"] == ""
    decided, of_some = tested[about_the_sentence], tested[~about_the_sentence]
    if not len(decided):
        network = (tested["population"] == "images").all()
        who = "network" if network else "model"
        takes = "the paper's network and images that were not looked at before" if network else f"{ENOUGH} models"
        here = f"on this {who}: {_answers(tested)} of {len(tested)} statements it can speak about"
        return f"{here}; it takes {takes} to speak about the paper"
    said = [f"of {len(counted)} counted statements {_answers(decided)}, {len(counted) - len(tested)} not tested"]
    if len(of_some):
        said.append(f"{len(of_some)} more are about too few models, or images seen before: {_answers(of_some)}")
    models = pd.to_numeric(decided.loc[decided["population"] == "models", "k"])
    if len(models):
        span = f"{models.min():.0f}" if models.nunique() == 1 else f"{models.min():.0f} to {models.max():.0f}"
        said.append(f"{span} models")
    fixed = int((decided["population"] == "images").sum())
    if fixed:
        said.append(f"{fixed} of them about one pretrained network, over its images")
    return "; ".join([*said, f"at most {len(decided) / 40:.1f} false decisions of either kind expected"])


def _answers(claims: pd.DataFrame) -> str:
    """How many hold, fail and are uncertain."""
    yes, no, open_ = (int((claims["answer"] == answer).sum()) for answer in ("yes", "no", "uncertain"))
    return f"{yes} hold, {no} fail, {open_} uncertain"

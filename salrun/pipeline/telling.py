"""What a run says when it is done: the comparison, then at most six lines, and one per tracker."""

from __future__ import annotations

from collections.abc import Sequence

from salrun.report.console import amber, answer, width
from salrun.results.claims import ENOUGH, NOT_TESTED, headline
from salrun.results.comparison import Comparison
from salrun.results.run import MissingFile, Run
from salrun.results.trust import doubts_about
from salrun.store.files import shown


def tell(run: Run, comparisons: Sequence[Comparison], verbose: bool = False) -> None:
    """Print the answer of a finished run; `verbose`: every deviation, flag and statement too."""
    for comparison in comparisons:
        print("\n".join(["", *answer(comparison, width()), ""]))
    print("\n".join(closing(run, comparisons)))
    if verbose:
        print("\n".join(details(run)))


def closing(run: Run, comparisons: Sequence[Comparison]) -> list[str]:
    """The model, what it says of the paper, what deviates, where everything is, and what to do next."""
    lines = [f"model:   {about_model(run)}"]
    if (said := about_paper(run)) is not None:
        lines.append(f"paper:   {said}")
    if deviations := run.facts.get("deviations") or []:
        more = f" (and {len(deviations) - 1} more; verbose=true lists all)" if deviations[1:] else ""
        lines.append(f"{'differs:' if run.facts.get('paper') else 'note:':<9}{deviations[0]}{more}")
    if (run.path / "report.html").exists():
        lines.append(f"report:  {shown(run.path / 'report.html')}")
    lines.append(f"tables:  {shown(run.path / 'tables')}{' (and comparison/ beside it)' if comparisons else ''}")
    lines += [f"tracked: {name}: {place}" for name, place in (run.facts.get("tracked") or {}).items()]
    return [*lines, f"next:    {next_step(run, comparisons)}"]


def about_model(run: Run) -> str:
    """Which model, how good it is, and whether that was asked for."""
    own = run.cells[run.cells["role"] == "model"].iloc[0]
    check = run.facts["verification"]["model"]
    measured = (
        f"{own['model']} ({own['source']}), {check['split']} accuracy {check['accuracy']:.3f}, {check['n']} images"
    )
    doubts = doubts_about(run)
    return amber(f"{measured}: NOT VERIFIED, {'; '.join(doubts)}") if doubts else f"{measured}: verified"


def about_paper(run: Run) -> str | None:
    """What the run says of its paper; None where it has none, or nothing could be made of it."""
    try:
        return headline(run.claims) if len(run.claims) else None
    except MissingFile:
        return None


def next_step(run: Run, comparisons: Sequence[Comparison]) -> str:
    """One command, or what to change first."""
    if doubts_about(run):
        return "see to the model first: other weights, more images, or an accuracy to reach (++model.gate.accuracy=...)"
    if run.ladders:
        return f"salrun court {shown(run.path)} (which metrics are right about maps of known order)"
    few = [c for c in comparisons if c.too_few]
    if few:
        return f"explain more images: {few[0].images} cannot tell the methods apart"
    words = [word for word in run.overrides if not word.startswith("seed=")]
    claims = run.claims if run.facts.get("paper") and about_paper(run) is not None else None
    if claims is not None and (claims["about"] == "one model").any():
        seeds = ",".join(map(str, range(ENOUGH)))
        return f"salrun -m {' '.join(words)} seed={seeds}"
    return f"salrun compare {shown(run.path)} (differences, groups, a figure)"


def details(run: Run) -> list[str]:
    """Every deviation, how many scores have which flag, and every statement that was tested."""
    flags = run.read_scores(["flag"])["flag"].value_counts().sort_index()
    notes = [f"  note: {deviation}" for deviation in run.facts.get("deviations") or []]
    counts = [f"  {n} scores are flagged {flag}" for flag, n in flags.items() if flag != "ok"]
    if about_paper(run) is None:
        return [*notes, *counts]
    tested = run.claims[run.claims["answer"] != NOT_TESTED].to_dict("records")
    return [*notes, *counts, *(f"  {c['id']}: {c['holds']} ({c['measured']})  {c['sentence']}" for c in tested)]

"""Write RESULTS.md: each table, and the claims, between its two marks, in Markdown."""

import re
from collections.abc import Iterable, Iterator, Sequence

from experiments import claims, tuning, yardstick
from experiments.cells import Outcome, best_scale, outcomes
from experiments.curves import curves_of
from experiments.papers import HERE, Table, tables
from experiments.store import Store
from experiments.tidy import write_csv
from fedapps.core.errors import RunError
from fedapps.core.files import write_whole

CLAIMS = "#do-the-papers-claims-hold"  # the section that explains verdicts


def markdown(store: Store, table: Table) -> Iterator[str]:
    """Yield the lines of a table in RESULTS.md; none if no row of the table has run."""
    scale = best_scale(store, table)
    found = [outcome for outcome in outcomes(store, table, scale) if outcome.runs]
    if not found:
        return
    compared = yardstick.compare(found, table.yardstick, table.alone) if table.yardstick else []
    spread = "" if compared else " `±` is half of the 95 % interval over seeds."
    yield f"## {table.title}"
    yield ""
    base = f"The runs start from `{table.base_file.name}`, at scale `{scale}`."
    yield f"{table.about} Figures are in percent.{spread} {base}"
    yield ""
    if compared:
        yield yardstick.sentence(compared, table.yardstick, table.alone)
        yield ""
        yield from _heads(yardstick.HEADS)
        yield from (f"| {' | '.join(yardstick.texts(line))} |" for line in compared)
        if said := yardstick.left_out(found, compared):
            yield ""
            yield said
        yield from _chosen(store, found)
    else:
        yield from _heads(("row", "seeds", "reading", "ours", "published", "difference", "s/round"))
        for outcome in found:
            yield from _lines(outcome)
        if table.follows:
            yield from progress(store, table, scale)
    if judged := [*claims.judged(store, table)]:
        yield ""
        yield f"How the claims about these rows came out ([what the columns mean]({CLAIMS})):"
        yield ""
        yield from _heads(claims.HEADS)
        yield from (f"| {' | '.join(line)} |" for line in claims.lines(judged))
    total = len(table.cells(scale))
    yield ""
    if len(found) < total:
        yield f"{len(found)} of {total} rows have run."
        yield ""
    yield f"Repeat with `python -m experiments run {table.name} --scale {scale}`."


def _lines(outcome: Outcome) -> Iterator[str]:
    seconds = sum(run.seconds_per_round for run in outcome.runs) / len(outcome.runs)
    for place, reading in enumerate(outcome.cell.row.readings):
        figure = outcome.figure(reading)
        if figure is None:
            continue
        published = "" if figure.published is None else f"{figure.published:.2f}"
        difference = "" if figure.difference is None else f"{figure.difference:+.2f}"
        seeds = ",".join(str(run.seed) for run in outcome.runs)
        name, last = (outcome.cell.name, f"{seconds:.2f}") if not place else ("", "")
        yield (
            f"| {name} | {seeds if not place else ''} | {words(reading.reads)} | {figure.text()} "
            f"| {published} | {difference} | {last} |"
        )


def _heads(heads: Sequence[str]) -> Iterator[str]:
    """Yield the first two lines of a table."""
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"


def _chosen(store: Store, found: Sequence[Outcome]) -> Iterator[str]:
    """Yield a table of the chosen settings."""
    yield ""
    yield "The settings of each method, which were the best of its trials on validation samples:"
    yield ""
    yield from _heads(tuning.HEADS)
    for *reached, settings in tuning.texts(store, (outcome.cell for outcome in found)):
        yield f"| {' | '.join(reached)} | `{settings}` |"


def words(reads: str) -> str:
    """Return the name of a reading in words."""
    return reads.replace("accuracy_", "").replace("_", " ")


def progress(store: Store, table: Table, scale: str) -> Iterator[str]:
    """Yield a table of the column over rounds: last, best, and first round at each threshold."""
    yield ""
    reached = (f"first round at {threshold} %" for threshold in table.thresholds)
    yield from _heads(("row", "seed", "last", "best round", *reached))
    for (name, seed), curve in curves_of(store, table, scale).items():
        best = max(curve, key=lambda round_: curve[round_])
        first = [
            next((str(r) for r in sorted(curve) if 100 * curve[r] >= threshold), "never")
            for threshold in table.thresholds
        ]
        shown = [f"{100 * curve[max(curve)]:.2f}", f"{100 * curve[best]:.2f} ({best})", *first]
        yield f"| {name} | {seed} | {' | '.join(shown)} |"


def _claims(store: Store) -> Iterator[str]:
    """Yield a table that counts the verdicts of each table."""
    yield from _heads(claims.COUNTS)
    for table in tables().values():
        for line in claims.counts(claims.judged(store, table)):
            yield f"| {' | '.join([_link(table.title), *line])} |"


def _link(heading: str) -> str:
    """Return a link to a heading of the page, with the anchor that GitHub makes of it."""
    return f"[{heading}](#{re.sub(r'[^a-z0-9 -]', '', heading.lower()).replace(' ', '-')})"


def _replaced(text: str, name: str, lines: Sequence[str]) -> str:
    """Put lines between the two marks of a name. Without lines, the text stays as it is."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise RunError(f"RESULTS.md has no {begin} ... {end}; add these two lines")
    return "\n".join([before + begin, *lines, end + after]) if lines else text


def report(store: Store, chosen: Iterable[Table]) -> None:
    """Write some tables and all claims into RESULTS.md, and the HTML page of all results.

    The prose around the tables stays, and so does an older table of which no row has run again.
    RESULTS.md is about the project's own results. For a store in another folder, only the HTML
    page is written, into that folder.
    """
    from experiments import html_page

    write_csv(store)
    if store.folder.resolve() == (HERE / "results").resolve():
        path, page = HERE / "RESULTS.md", HERE / "results.html"
        text = path.read_text("utf-8")
        for table in chosen:
            text = _replaced(text, table.name, [*markdown(store, table)])
        write_whole(path, _replaced(text, "claims", [*_claims(store)]).encode())
        print(path)
    else:
        page = store.folder / "results.html"
    html_page.write(store, page)
    print(page)

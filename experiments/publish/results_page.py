"""Write RESULTS.md: each table, and the claims, between its two marks, in Markdown."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from experiments import HERE
from experiments.figures.curves import reached
from experiments.outcomes import claims, yardstick
from experiments.outcomes.cells import HEADS, Outcome, best_scale, outcomes
from experiments.outcomes.tidy import write_csv
from experiments.papers.files import tables
from experiments.papers.table import Table
from experiments.run import tuning
from experiments.run.store import Store
from fedapps.core.errors import RunError
from fedapps.core.files import write_whole

if TYPE_CHECKING:
    from experiments.publish.html_page import Section

CLAIMS = "#do-the-papers-claims-hold"  # the section that explains verdicts


def markdown(store: Store, table: Table) -> Iterator[str]:
    """Yield the lines of a table in RESULTS.md; none if no row of the table has run."""
    scale = best_scale(store, table)
    found = [outcome for outcome in outcomes(store, table, scale) if outcome.runs]
    if not found:
        return
    compared = yardstick.compare(found, table.yardstick, table.alone) if table.yardstick else None
    spread = "" if compared else " `±` is half of the 95 % interval over seeds."
    yield f"## {table.title}"
    yield ""
    base = f"The runs start from `{table.base_file.name}`, at scale `{scale}`."
    yield f"{table.about} Figures are in percent.{spread} {base}"
    yield ""
    if compared:
        yield compared.sentence()
        yield ""
        yield from _grid(compared.heads, compared.rows())
        if said := compared.left_out(found):
            yield ""
            yield said
        yield from _chosen(store, found)
    else:
        yield from _grid(
            (*HEADS, "s/round"), (line for outcome in found for line in _lines(outcome))
        )
        yield from _notes(found)
        if table.follows:
            yield ""
            yield from _grid(*reached(store, table, scale))
    if judged := [*claims.judged(store, table)]:
        yield ""
        yield f"How the claims about these rows came out ([what the columns mean]({CLAIMS})):"
        yield ""
        yield from _grid(claims.HEADS, claims.lines(judged))
    total = len(table.cells(scale))
    yield ""
    if len(found) < total:
        yield f"{len(found)} of {total} rows have run."
        yield ""
    yield f"Repeat with `python -m experiments run {table.name} --scale {scale}`."


def _lines(outcome: Outcome) -> Iterator[list[str]]:
    """Yield the lines of a cell; the first ends with the seconds of a round."""
    last = f"{sum(run.seconds_per_round for run in outcome.runs) / len(outcome.runs):.2f}"
    for line in outcome.lines():
        yield [*line, last]
        last = ""


def _notes(found: Iterable[Outcome]) -> Iterator[str]:
    """Yield the notes of the rows as a list, each row once."""
    notes = {outcome.cell.row.name: outcome.cell.row.note for outcome in found}
    lines = [f"- `{name}`: {note}" for name, note in notes.items() if note]
    if lines:
        yield from ["", "Notes on rows:", "", *lines]


def _grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table in Markdown."""
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _chosen(store: Store, found: Sequence[Outcome]) -> Iterator[str]:
    """Yield a table of the chosen settings."""
    yield ""
    yield "The settings of each method, which were the best of its trials on validation samples:"
    yield ""
    lines = tuning.texts(store, (outcome.cell for outcome in found))
    yield from _grid(tuning.HEADS, ([*reached, f"`{settings}`"] for *reached, settings in lines))


def _computed(part: "Section") -> Iterator[str]:
    """Yield the lines of a section of the HTML page that needs no run."""
    yield f"## {part.title}"
    yield ""
    yield part.about
    yield ""
    yield from _grid(part.heads, part.rows)
    yield ""
    yield f"Repeat with `{part.command}`."


def _claims(store: Store) -> Iterator[str]:
    """Yield a table that counts the verdicts of each table."""
    found = ((table.title, claims.judged(store, table)) for table in tables().values())
    lines = ([_link(title), *line] for title, judged in found for line in claims.counts(judged))
    yield from _grid(claims.COUNTS, lines)


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
    """Write some tables, the costs and all claims into RESULTS.md, and the page of all results.

    The prose around the tables stays, and so does an older table of which no row has run again.
    RESULTS.md is about the project's own results. For a store in another folder, only the HTML
    page is written, into that folder.
    """
    from experiments.publish import costs_section, html_page

    write_csv(store)
    costs = costs_section.section()
    if store.folder.resolve() == (HERE / "results").resolve():
        path, page = HERE / "RESULTS.md", HERE / "results.html"
        text = path.read_text("utf-8")
        for table in chosen:
            text = _replaced(text, table.name, [*markdown(store, table)])
        text = _replaced(text, costs.name, [*_computed(costs)])
        write_whole(path, _replaced(text, "claims", [*_claims(store)]).encode())
        print(path)
    else:
        page = store.folder / "results.html"
    html_page.write(store, page, [costs])
    print(page)

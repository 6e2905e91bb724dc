"""Write RESULTS.md: each table, and the claims, between its two marks, in Markdown."""

import re
from collections.abc import Iterable, Iterator, Sequence

from experiments import HERE
from experiments.outcomes import claims
from experiments.outcomes.tidy import write_csv
from experiments.papers.files import tables
from experiments.papers.table import Table
from experiments.publish import html_page
from experiments.publish.sections import Section, costs_section, section
from experiments.run import tuning
from experiments.run.store import Store
from fedapps.core.errors import RunError
from fedapps.core.files import write_whole

CLAIMS = "#do-the-papers-claims-hold"  # the section that explains verdicts


def markdown(part: Section) -> Iterator[str]:
    """Yield the lines of a section in RESULTS.md; none if no row of its table has run."""
    if not part.rows:
        return
    yield from (f"## {part.title}", "")
    about = part.about
    if part.base:
        spread = "" if part.said else " `±` is half of the 95 % interval over seeds."
        base = f"The runs start from `{part.base}`, at scale `{part.scale}`."
        about += f" Figures are in percent.{spread} {base}"
    yield from (about, "", *([part.said, ""] if part.said else []))
    yield from _grid(*part.without("note"))
    if part.said:
        if part.left_out:
            yield from ("", part.left_out)
        marked = [[*reached, f"`{settings}`"] for *reached, settings in part.chosen]
        what = (
            "The settings of each method, which were the best of its trials on validation samples:"
        )
        if marked:
            yield from ("", what, "", *_grid(tuning.HEADS, marked))
    else:
        if part.notes:
            notes = (f"- `{name}`: {note}" for name, note in part.notes.items())
            yield from ("", "Notes on rows:", "", *notes)
        if part.reached_heads:
            yield from ("", *_grid(part.reached_heads, part.reached))
    if part.newcomers:
        yield from ("", part.newcomers_said, "", *_grid(part.newcomers_heads, part.newcomers))
    if part.claims:
        means = f"[what the columns mean]({CLAIMS})"
        yield from ("", f"How the claims about these rows came out ({means}):", "")
        yield from _grid(claims.HEADS, part.claims)
    yield from ("", *([f"{part.lacks}.", ""] if part.lacks else []))
    yield f"Repeat with `{part.command}`."


def _grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table in Markdown."""
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


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
    write_csv(store)
    costs = costs_section()
    if store.folder.resolve() == (HERE / "results").resolve():
        path, page = HERE / "RESULTS.md", HERE / "results.html"
        text = path.read_text("utf-8")
        for table in chosen:
            text = _replaced(text, table.name, [*markdown(section(store, table))])
        text = _replaced(text, costs.name, [*markdown(costs)])
        write_whole(path, _replaced(text, "claims", [*_claims(store)]).encode())
        print(path)
    else:
        page = store.folder / "results.html"
    html_page.write(store, page, [costs])
    print(page)

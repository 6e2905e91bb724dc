"""Write the pages of results: each table, and the claims, between its two marks, in Markdown.

RESULTS.md holds the claims and what follows from all tables; the tables are in docs/results.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from os.path import relpath
from pathlib import Path

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

CLAIMS = "../../experiments/RESULTS.md#do-the-papers-claims-hold"  # it explains verdicts


def markdown(part: Section) -> Iterator[str]:
    """Yield the lines of a section in docs/results; none if no row of its table has run."""
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
    yield f"Repeat with `{part.command}`. {part.spent}".rstrip()


def _grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table in Markdown."""
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _claims(store: Store, pages: "Pages") -> Iterator[str]:
    """Yield a table that counts the verdicts of each table, and of all."""
    found = [(table, claims.judged(store, table)) for table in tables().values()]
    parts = [(pages.link(table), judged) for table, judged in found]
    yield from _grid(claims.COUNTS, claims.count_lines(parts))
    yield from ("", claims.SIZE_SAID)


class Pages:
    """The pages of the project's results: RESULTS.md and those in docs/results."""

    def __init__(self) -> None:
        self.main = HERE / "RESULTS.md"
        others = sorted((HERE.parent / "docs" / "results").glob("*.md"))
        self.texts = {path: path.read_text("utf-8") for path in (self.main, *others)}

    def of(self, name: str) -> Path:
        """Return the page that has the two marks of a name; raises `RunError` if two places do."""
        begin, end = _marks(name)
        if sum(text.count(begin) for text in self.texts.values()) > 1:
            raise RunError(f"{begin} stands in docs/results more than once; leave one of them")
        for path, text in self.texts.items():
            if begin in text and end in text.partition(begin)[2]:
                return path
        raise RunError(f"no page in docs/results has {begin} ... {end}; add these two lines to one")

    def put(self, name: str, lines: Sequence[str]) -> None:
        """Put lines between the two marks of a name. Without lines, the page stays as it is."""
        path, (begin, end) = self.of(name), _marks(name)
        before, _, rest = self.texts[path].partition(begin)
        after = rest.partition(end)[2]
        if lines:
            self.texts[path] = "\n".join([before + begin, *lines, end + after])

    def link(self, table: Table) -> str:
        """Return a link from RESULTS.md to a table, with the anchor that GitHub makes of it."""
        anchor = re.sub(r"[^a-z0-9 -]", "", table.title.lower()).replace(" ", "-")
        return f"[{table.short or table.title}]({relpath(self.of(table.name), HERE)}#{anchor})"

    def write(self) -> None:
        """Write the pages whose text has changed."""
        for path, text in self.texts.items():
            if text != path.read_text("utf-8"):
                write_whole(path, text.encode())
                print(path)


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name} -->", f"<!-- end of {name} -->"


def report(store: Store, chosen: Iterable[Table]) -> None:
    """Write some tables, the costs and all claims into their pages, and the page of all results.

    Results that have a file of their own move into that of their table.
    The prose around the tables stays, and so does an older table of which no row has run again.
    The Markdown pages are about the project's own results. For a store in another folder, only the
    HTML page is written, into that folder.
    """
    store.pack()
    write_csv(store)
    costs, short = costs_section(), None
    if store.folder.resolve() == (HERE / "results").resolve():
        pages, page = Pages(), HERE / "results.html"
        for table in chosen:
            pages.put(table.name, [*markdown(section(store, table))])
        pages.put(costs.name, [*markdown(costs)])
        pages.put("claims", [*_claims(store, pages)])
        pages.write()
        short = html_page.in_short(pages.main)
    else:
        page = store.folder / "results.html"
    html_page.write(store, page, [costs], short)
    print(page)

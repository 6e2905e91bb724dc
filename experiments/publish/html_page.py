"""Write results.html: every table with our and the published figures, and charts, in one file."""

import re
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path

from markupsafe import Markup, escape

from experiments.outcomes import claims, yardstick
from experiments.papers.files import tables
from experiments.publish.page_template import STYLE, TEMPLATE
from experiments.publish.sections import Section, section
from experiments.run import tuning
from experiments.run.store import Store
from fedapps.core.files import write_whole
from fedapps.drawing import html

PICTURE = re.compile(r"!\[([^]]*)\]\(([^)]+\.png)\)")
MARKED = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\*([^*]+)\*|\[([^]]+)\]\([^)]+\)")
PAPERS: dict[str | tuple[str, ...], str] = {  # by the first word of their tables' names
    "benchmark": "All methods compared",
    "attacks": "Attackers, and robust means",
    ("heart", "watch", "shakespeare"): "Clients that exist, and newcomers",
    "fedbabu": "FedBABU",
    "fedcmd": "FedCMD",
    "fedfc": "FedFC",
    "fedseq": "FedSeq",
    "perfreezeclip": "PerFreezeClip",
}
COLORS = {  # CSS classes of verdicts
    claims.YES: "yes",
    claims.REVERSE: "no",
    claims.ONE_SEED: "soft",
    yardstick.BETTER: "yes",
    yardstick.WORSE: "no",
}


def write(
    store: Store, path: Path, computed: Iterable[Section] = (), short: Markup | None = None
) -> None:
    """Write the page; `short` is its beginning, `computed` are sections beside the tables'."""
    found = {name: section(store, table) for name, table in tables().items()}
    found |= {part.name: part for part in computed}
    groups = {
        title: [part for name, part in found.items() if name.startswith(prefix) and part.rows]
        for prefix, title in PAPERS.items()
    }
    environment = html.environment()
    environment.filters["inline"] = inline
    runs = store.runs()
    page = environment.from_string(TEMPLATE).render(
        groups={title: parts for title, parts in groups.items() if parts},
        waiting=[part for part in found.values() if not part.rows],
        chosen_heads=tuning.HEADS,
        claim_heads=claims.HEADS,
        count_heads=claims.COUNTS,
        counts=[*claims.count_lines([(_link(part), part.judged) for part in found.values()])],
        size_said=claims.SIZE_SAID,
        colors=COLORS,
        short=short,
        head=Markup(html.HEAD),
        style=Markup(html.STYLE + STYLE),
        done=len(runs),
        scales=", ".join(dict.fromkeys(run.scale for run in runs)) or "none yet",
    )
    write_whole(path, page.encode())


def _link(part: Section) -> Markup:
    return Markup('<a href="#{}">{}</a>').format(part.name, part.title)


def in_short(page: Path) -> Markup:
    """Return the section `In short` of RESULTS.md, so that it is written once; "" without one.

    It has paragraphs, lists and pictures (PNG, as data).
    """
    text = page.read_text("utf-8").partition("\n## In short\n")[2].partition("\n## ")[0]
    blocks = [block for block in text.strip().split("\n\n") if block]
    return Markup("\n").join(_block(block, page.parent) for block in blocks)


def _block(block: str, folder: Path) -> Markup:
    if picture := PICTURE.fullmatch(block):
        data = b64encode((folder / picture[2]).read_bytes()).decode()
        return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(picture[1], data)
    if not block.startswith("- "):
        return Markup("<p>{}</p>").format(inline(block))
    items = re.split(r"^- ", block, flags=re.MULTILINE)[1:]
    return Markup("<ul>{}</ul>").format(
        Markup("").join(Markup("<li>{}</li>").format(inline(item)) for item in items)
    )


def inline(text: str) -> Markup:
    """Return a text whose `code`, *emphasis* and **bold** are marked; of a link, its text stays."""
    return Markup(MARKED.sub(_mark, str(escape(text))))


def _mark(found: re.Match[str]) -> str:
    code, bold, emphasis, link = found.groups()
    if link:
        return link
    tag = "code" if code else "b" if bold else "em"
    return f"<{tag}>{code or bold or emphasis}</{tag}>"

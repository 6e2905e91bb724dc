"""The section `In short` of RESULTS.md, for the page of all results: so it is written once."""

import re
from base64 import b64encode
from pathlib import Path

from markupsafe import Markup

from experiments.publish.html_page import inline

PICTURE = re.compile(r"!\[([^]]*)\]\(([^)]+\.png)\)")


def in_short(page: Path) -> Markup:
    """Return the paragraphs, lists and pictures (PNG, as data) of the section; "" without one."""
    section = page.read_text("utf-8").partition("\n## In short\n")[2].partition("\n## ")[0]
    blocks = [block for block in section.strip().split("\n\n") if block]
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

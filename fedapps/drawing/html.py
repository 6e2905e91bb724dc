"""What pages with charts share: colours, a style sheet, and the template of a chart.

A page is one file and needs no script. Jinja2 escapes every value.
"""

from typing import Any

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #f4f5f7; --card: #ffffff; --ink: #1c222c; --soft: #59626f; --line: #e2e5ea;
  --link: #005f94; --hover: #1c222c;
  --first: #0072b2; --second: #d55e00; --quiet: #c3c8cf;
  --c1: #009e73; --c2: #b8589a; --c3: #c98a00; --c4: #3f9fd8; --c5: #6b57b8; --c6: #8a6d3b;
  --c7: #6d7683;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #12151a; --card: #1b1f26; --ink: #e7eaee; --soft: #a2abb8; --line: #2e343d;
    --link: #7cc4f2; --hover: #ffffff;
    --first: #58b4ec; --second: #f2894a; --quiet: #4a525e;
    --c1: #35c79c; --c2: #e08cc4; --c3: #ecb84a; --c4: #86c9f5; --c5: #a897f0; --c6: #cdae78;
    --c7: #98a2b0;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
p { margin: 0 0 10px; }
a { color: var(--link); }
code, pre { font: 13px/1.5 ui-monospace, "Cascadia Mono", Menlo, Consolas, monospace; }
.soft { color: var(--soft); }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 12px 0; }
figure { margin: 0; min-width: 0; }
figcaption b { display: block; }
figcaption span { display: block; color: var(--soft); font-size: 13px; }
figcaption span::first-letter { text-transform: uppercase; }
.legend {
  display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 4px 0 0; padding: 0; list-style: none;
  font-size: 13px;
}
.legend i {
  display: inline-block; width: 14px; height: 3px; border-radius: 2px; margin-right: 6px;
  vertical-align: 4px; background: currentColor;
}
.legend .by-dots i { width: 8px; height: 8px; border-radius: 50%; vertical-align: 0; }
.legend .by-bars i, .legend .by-area i { height: 10px; vertical-align: -1px; }
.legend .by-area i { opacity: .3; }
.legend span { color: var(--ink); }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 12.5px; }
.grid { stroke: var(--line); stroke-width: 1; }
.line { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
.dots { fill: none; stroke: currentColor; stroke-linecap: round; }
.area { fill: currentColor; opacity: .16; }
.bars { fill: currentColor; }
.tie { fill: none; stroke: currentColor; stroke-width: 1.2; }
.heat { fill: var(--first); }
.interval { stroke: currentColor; stroke-width: 2.5; }
.diamond { fill: none; stroke: currentColor; stroke-width: 2; }
.zero { stroke: var(--ink); stroke-dasharray: 3 3; }
.hit { fill: var(--hover); opacity: 0; }
.hit:hover { opacity: .08; }
.spot { fill: currentColor; opacity: 0; }
.spot:hover { opacity: 1; }
.first, .personalized { color: var(--first); } .second, .initial { color: var(--second); }
.quiet { color: var(--quiet); }
.c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); } .c6 { color: var(--c6); }
.c7 { color: var(--c7); }
.level-1 { fill-opacity: .14; } .level-2 { fill-opacity: .26; } .level-3 { fill-opacity: .38; }
.level-4 { fill-opacity: .5; } .level-5 { fill-opacity: .63; } .level-6 { fill-opacity: .75; }
.level-7 { fill-opacity: .88; } .level-8 { fill-opacity: 1; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; white-space: nowrap; }
th {
  position: sticky; top: 0; background: var(--card); color: var(--soft); font-weight: 600;
  box-shadow: inset 0 -1px var(--line);
}
@media (max-width: 600px) { svg text { font-size: 14.5px; } }
@media print {  /* paper does not scroll, and browsers leave out backgrounds */
  .box, .scroll {
    contain: none !important; max-height: none !important; overflow: visible !important;
    grid-column: 1 / -1;
  }
  th, .text { white-space: normal; }
  pre { white-space: pre-wrap; }
  .legend i { print-color-adjust: exact; }
}
"""

HEAD = """
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
"""

CHART = """
{%- macro chart(c) %}
<figure{% if c.name %} id="{{ c.name }}"{% endif %}>
<figcaption><b>{{ c.title }}</b>
{%- if c.y_label %}<span>{{ c.y_label }}{% if c.note %}. {{ c.note }}{% endif %}</span>{% endif %}
</figcaption>
{%- if c.legend and c.legend[0][0] %}
<ul class="legend">
{%- for label, colour, kind in c.legend %}
<li class="{{ colour }} by-{{ kind }}"><i></i><span>{{ label }}</span></li>
{%- endfor %}
</ul>
{%- endif %}
<svg viewBox="0 0 {{ c.box.width }} {{ c.box.height }}" role="img" aria-label="{{ c.title }}">
{%- for tick in c.y_ticks %}
{% if c.box.y_grid %}<path class="grid" d="M{{ c.box.left }} {{ tick.at }}H{{ c.box.right }}"/>
{%- endif %}
<text x="{{ c.box.left - 6 }}" y="{{ tick.at + 4 }}" text-anchor="end">{{ tick.label }}</text>
{%- endfor %}
{%- for tick in c.x_ticks %}
{% if c.box.x_grid %}<path class="grid" d="M{{ tick.at }} {{ c.box.top }}V{{ c.box.bottom }}"/>
{%- endif %}
<text x="{{ tick.at }}" y="{{ c.box.bottom + 17 }}" text-anchor="middle">{{ tick.label }}</text>
{%- endfor %}
{% if not c.box.x_grid %}<path class="grid" d="M{{ c.box.left }} {{ c.box.bottom }}H
{{- c.box.right }}"/>{% endif %}
<text x="{{ c.box.right }}" y="{{ c.box.height - 5 }}" text-anchor="end">{{ c.x_label }}</text>
{%- for mark in c.marks %}
<path class="{{ mark.kind }} {{ mark.colour }}" d="{{ mark.d }}"
{%- if mark.width %} stroke-width="{{ mark.width }}"{% endif %}/>
{%- endfor %}
{%- for hit in c.hits %}
<rect class="{% if hit.colour %}spot {{ hit.colour }}{% else %}hit{% endif %}" x="{{ hit.x }}"
 y="{{ hit.y }}" width="{{ hit.width }}" height="{{ hit.height }}"
{%- if hit.colour %} rx="{{ hit.width / 2 }}"{% endif %}>
<title>{{ hit.title }}</title></rect>
{%- endfor %}
</svg>
</figure>
{%- endmacro %}
"""


def environment() -> Any:
    """Return the Jinja2 environment of pages; it refuses a template with an unknown name."""
    from jinja2 import Environment, StrictUndefined

    made = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.finalize = _plain
    return made


def _plain(value: Any) -> Any:
    """Write positions in charts as 44, not as 44.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value

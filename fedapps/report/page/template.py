"""The template of a run's page. Jinja2 escapes every value; the page allows no script at all."""

from fedapps.report.page.style import STYLE

_MACROS = """
{%- macro chart(c) %}
<figure id="{{ c.name }}">
<figcaption><b>{{ c.title }}</b><span>{{ c.y_label }}{% if c.note %}. {{ c.note }}{% endif %}</span>
</figcaption>
{%- if c.legend and c.legend[0][0] %}
<ul class="legend">
{%- for label, colour, kind in c.legend %}
<li class="{{ colour }} by-{{ kind }}"><i></i><span>{{ label }}</span></li>
{%- endfor %}
</ul>
{%- endif %}
<svg viewBox="0 0 {{ width }} {{ height }}" role="img" aria-label="{{ c.title }}">
{%- for tick in c.y_ticks %}
{% if not c.plain %}<path class="grid" d="M{{ left }} {{ tick.at }}H{{ right }}"/>{% endif %}
<text x="{{ left - 6 }}" y="{{ tick.at + 4 }}" text-anchor="end">{{ tick.label }}</text>
{%- endfor %}
{%- for tick in c.x_ticks %}
<text x="{{ tick.at }}" y="{{ bottom + 17 }}" text-anchor="middle">{{ tick.label }}</text>
{%- endfor %}
<path class="grid" d="M{{ left }} {{ bottom }}H{{ right }}"/>
<text x="{{ right }}" y="{{ height - 5 }}" text-anchor="end">{{ c.x_label }}</text>
{%- for mark in c.marks %}
<path class="{{ mark.kind }} {{ mark.colour }}" d="{{ mark.d }}"
{%- if mark.width %} stroke-width="{{ mark.width }}"{% endif %}/>
{%- endfor %}
{%- for hit in c.hits %}
<rect class="hit" x="{{ hit.x }}" y="{{ hit.y }}" width="{{ hit.width }}" height="{{ hit.height }}">
<title>{{ hit.title }}</title></rect>
{%- endfor %}
</svg>
</figure>
{%- endmacro %}
{%- macro charts(them, beside=none) %}
{%- if them or (beside and beside.rows) %}
<div class="charts">
{%- for c in them %}{{ chart(c) }}{% endfor %}
{%- if beside and beside.rows %}{{ box(beside) }}{% endif %}
</div>
{%- endif %}
{%- endmacro %}
{%- macro table(t) %}
{%- if t.note %}<p class="soft">{{ t.note }}</p>{% endif %}
{{ box(t) }}
{%- endmacro %}
{%- macro box(t) %}
<div class="box" tabindex="0" role="region" aria-label="{{ t.name }}">
<table id="table-{{ t.name }}"><thead><tr>
{%- for head in t.heads %}
<th{% if loop.index <= t.texts %} class="text"{% endif %}>{{ head }}</th>
{%- endfor %}
</tr></thead><tbody>
{%- for row in t.rows %}
<tr>
{%- for cell in row %}
<td{% if loop.index <= t.texts %} class="text{% if t.texts > 3 and loop.last %} detail{% endif %}"
{%- endif %}>{{ cell }}</td>
{%- endfor %}</tr>
{%- endfor %}
</tbody></table></div>
{%- endmacro %}
{%- macro section(id, title) %}
<section><h2 id="{{ id }}">{{ title }}</h2>
{{ caller() }}
</section>
{%- endmacro %}
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{{ title }}</title>
<style>{{ style }}</style>
</head>
<body>
<header>
<h1>{{ title }}</h1>
<p class="soft">{{ subtitle }}</p>
<p class="state"><span class="badge {{ state.word }}">{{ state.word }}</span>{{ state.text }}</p>
<nav>
{%- for id, name in sections %}
<a href="#{{ id }}">{{ name }}</a>
{%- endfor %}
</nav>
<ul class="tiles">
{%- for tile in tiles %}
<li><span>{{ tile.label }}</span><b>{{ tile.value }}</b><span>{{ tile.note }}</span></li>
{%- endfor %}
</ul>
</header>
<main>
{% call section("curves", "Curves") %}
{{ charts(curves) }}
{%- if not curves %}<p class="soft">Curves are drawn from the second round on.</p>{% endif %}
{%- if rounds.rows %}
<details><summary>The rounds as a table</summary>{{ table(rounds) }}</details>
{%- endif %}
{% endcall %}
{% call section("clients", "Clients") %}
{{ charts(clients, client_table) }}
{%- if not client_table.rows %}<p class="soft">No client has been evaluated yet.</p>{% endif %}
{%- if client_table.note %}<p class="soft">{{ client_table.note }}</p>{% endif %}
{% endcall %}
{% call section("classes", "Classes") %}
{{ charts(classes, class_table) }}
{%- if not class_table.rows %}<p class="soft">{{ no_class }}</p>{% endif %}
{% endcall %}
{% call section("costs", "Costs") %}
{{ charts(costs, cost_table) }}
{% endcall %}
{% call section("events", "Events") %}
{{ charts(events) }}
{%- if kinds %}
<p>{% for kind, count in kinds %}{{ count }} x {{ kind }}{{ ", " if not loop.last else "." }}
{%- endfor %} The latest comes first.</p>
{{ table(event_table) }}
{%- else %}<p class="soft">There are no events.</p>{% endif %}
{% endcall %}
{% call section("settings", "Settings") %}
{%- if differences.rows %}
<p>Settings that differ from the defaults of the method:</p>
{{ table(differences) }}
{%- endif %}
<details><summary>All {{ settings.rows | length }} settings</summary>{{ table(settings) }}</details>
{% endcall %}
{% call section("repeat", "How to repeat it") %}
<div class="box"><pre>{{ commands }}</pre></div>
<p class="soft">The same settings and seed give the same figures
{%- if versions %} with the same versions:
{%- for name, version in versions %} {{ name }} {{ version }}{{ "," if not loop.last else "." }}
{%- endfor %}{% else %} with the same versions of the packages.{% endif %}</p>
{% endcall %}
{% call section("files", "Files") %}
<p>
{%- for file in files %}<a href="{{ file }}">{{ file }}</a>{{ ", " if not loop.last else "" }}
{%- endfor %}</p>
{% endcall %}
</main>
<footer>{{ folder }}<br>written {{ written }}</footer>
</body>
</html>
"""

TEMPLATE = _MACROS + _PAGE
SECTIONS = (
    ("curves", "Curves"),
    ("clients", "Clients"),
    ("classes", "Classes"),
    ("costs", "Costs"),
    ("events", "Events"),
    ("settings", "Settings"),
    ("repeat", "How to repeat it"),
    ("files", "Files"),
)
__all__ = ["SECTIONS", "STYLE", "TEMPLATE"]

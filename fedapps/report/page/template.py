"""The template of a run's page. Jinja2 escapes every value; the page allows no script at all."""

from fedapps.drawing.html import CHART

_MACROS = """
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
{{ head }}
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

TEMPLATE = CHART + _MACROS + _PAGE
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

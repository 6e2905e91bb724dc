"""Style sheet and template of a run's page, beside what pages share (`drawing.html`).

Jinja2 escapes every value; the page allows no script at all.
"""

from fedapps.drawing.html import CHART

STYLE = """
:root { --good: #0a7a52; --busy: #005f94; --bad: #b3261e; --wait: #7a5b00; }
@media (prefers-color-scheme: dark) {
  :root { --good: #4fd3a0; --busy: #7cc4f2; --bad: #ff8a80; --wait: #e6c15a; }
}
main, header, footer { max-width: 1180px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 28px; }
h2 { font-size: 19px; margin: 36px 0 12px; scroll-margin-top: 12px; }
h3 { font-size: 15px; margin: 20px 0 8px; }
pre { margin: 0; padding: 12px 14px; overflow: auto; }
.state { margin: 12px 0 0; overflow-wrap: anywhere; }
.badge {
  display: inline-block; padding: 1px 10px; border: 1px solid currentColor; border-radius: 99px;
  font-size: 13px; font-weight: 600; margin-right: 8px;
}
.finished { color: var(--good); } .running { color: var(--busy); }
.failed { color: var(--bad); } .interrupted, .unfinished { color: var(--wait); }
.tiles {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 20px 0 0; padding: 0; list-style: none;
}
.tiles li, figure, .box {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px;
}
.tiles li { padding: 10px 14px; }
.tiles span { display: block; color: var(--soft); font-size: 13px; }
.tiles b { display: block; font-size: 22px; line-height: 1.3; }
.charts {
  display: grid; gap: 16px; margin-bottom: 16px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 400px), 1fr));
}
figure { padding: 12px 14px 6px; }
.box { overflow: auto; max-height: 440px; margin-bottom: 8px; }
.charts .box { margin: 0; }
@media (min-width: 872px) {  /* a table beside charts is as high as they are, and scrolls */
  .charts .box { contain: size; min-height: 320px; max-height: none; }
}
th, td { padding: 5px 14px; vertical-align: top; }
tbody tr + tr td { border-top: 1px solid var(--line); }
.text { text-align: left; }
.detail { white-space: normal; min-width: 230px; overflow-wrap: anywhere; }
.notes { padding-left: 20px; overflow-wrap: anywhere; }
details { margin-bottom: 12px; }
summary { cursor: pointer; color: var(--link); padding: 4px 0; }
footer { color: var(--soft); font-size: 13px; padding-top: 24px; padding-bottom: 40px; }
@media (max-width: 600px) {
  main, header, footer { padding-left: 12px; padding-right: 12px; }
  header { padding-top: 18px; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 8px; }
  .tiles b { font-size: 19px; }
  figure { padding: 10px 10px 4px; }
  th, td { padding: 5px 10px; }
}
"""


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
{% if state.word == "running" %}
<meta http-equiv="refresh" content="30">
{% endif %}
<title>{{ title }}</title>
<style>{{ style }}</style>
</head>
<body>
<header>
<h1>{{ title }}</h1>
<p class="soft">{{ subtitle }}</p>
{%- if layers %}<p class="soft">Layers: {{ layers }}</p>{% endif %}
<p class="state"><span class="badge {{ state.word }}">{{ state.word }}</span>{{ state.text }}
{%- if state.word == "running" %}. This page was made at {{ written }}; it reloads itself.
{%- endif %}</p>
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
{% if devices.rows %}
{% call section("devices", "Devices") %}
{{ table(devices) }}
{% endcall %}
{% endif %}
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
{% if notes %}
{% call section("data", "Data") %}
<p>When it began, the run told of its data:</p>
<ul class="notes">
{%- for note in notes %}
<li>{{ note }}</li>
{%- endfor %}
</ul>
{% endcall %}
{% endif %}
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
    ("devices", "Devices"),
    ("classes", "Classes"),
    ("costs", "Costs"),
    ("events", "Events"),
    ("data", "Data"),
    ("settings", "Settings"),
    ("repeat", "How to repeat it"),
    ("files", "Files"),
)

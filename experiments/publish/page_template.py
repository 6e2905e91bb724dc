"""Style and template of the page of results, which needs no script and no other file."""

from fedapps.drawing.html import CHART

STYLE = """
:root { --yes: #00714f; --no: #b04a00; }
@media (prefers-color-scheme: dark) { :root { --yes: #35c79c; --no: #f2894a; } }
main { max-width: 1240px; margin: 0 auto; padding: 24px 20px 60px; }
h2 { font-size: 21px; margin: 44px 0 8px; }
h3 { font-size: 16px; margin: 0 0 4px; overflow-wrap: anywhere; }
ul { margin: 0; padding-left: 20px; }
.soft { font-size: 13.5px; } code { overflow-wrap: anywhere; }
article { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 14px 16px; margin: 0 0 16px; min-width: 0; }
.said { font-weight: 600; }
.short { display: flow-root; } .short ul { display: flow-root; margin-bottom: 10px; }
.short img { float: right; width: 60%; margin: 0 0 8px 16px; border-radius: 6px; }
@media (max-width: 900px) { .short img { float: none; width: 100%; margin: 0 0 10px; } }
td.yes { color: var(--yes); font-weight: 600; } td.no { color: var(--no); font-weight: 600; }
/* A shadow at the right or the bottom shows that a table goes on there. */
.scroll { overflow: auto; max-height: 760px; margin: 8px 0;
  --edge: color-mix(in srgb, var(--soft) 50%, transparent); background:
  linear-gradient(to left, var(--card) 50%, transparent) right / 40px 100% no-repeat local,
  linear-gradient(to top, var(--card) 50%, transparent) bottom / 100% 40px no-repeat local,
  linear-gradient(to left, var(--edge), transparent) right / 9px 100% no-repeat,
  linear-gradient(to top, var(--edge), transparent) bottom / 100% 9px no-repeat; }
th, td { padding: 4px 10px; }
th { white-space: normal; vertical-align: bottom; }
td { border-top: 1px solid var(--line); }
th:first-child, td:first-child, .notes th:last-child, .notes td:last-child { text-align: left; }
.notes td:last-child { white-space: normal; min-width: 14em; }
.claims td:nth-child(-n+3), .claims th:nth-child(-n+3) { text-align: left; }
.claims td:nth-child(-n+2) { white-space: normal; min-width: 8em; }
.claims td:first-child { width: 30%; min-width: 10em; } .claims td:nth-child(2) { width: 24%; }
.counts td:first-child { white-space: normal; min-width: 10em; }
.counts td:nth-child(2), .counts th:nth-child(2) { text-align: left; }
.figures { display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 460px), 1fr)); }
figure { margin: 8px 0 0; } figcaption { font-size: 13.5px; }
@media (max-width: 600px) { main { padding: 16px 12px 40px; } article { padding: 12px 10px; }
  th, td { padding: 4px 8px; } }
"""

TEMPLATE = (
    CHART
    + """{% macro grid(label, heads, rows) %}
<div class="scroll" tabindex="0" role="region" aria-label="{{ label }}">
<table{% if heads[-1] in ('note', 'settings') %} class="notes"{% endif %}>
<thead><tr>{% for head in heads %}<th>{{ head }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows %}
<tr>
{% for cell in row %}
{% set noted = loop.last and heads[-1] == 'note' %}
<td{% if cell in colors %} class="{{ colors[cell] }}"{% endif %}>
{{- cell|inline if noted else cell }}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody></table></div>
{% endmacro %}
<!doctype html>
<html lang="en">
<head>
{{ head }}
<title>fedapps: our results and the papers'</title>
<style>{{ style }}</style>
</head>
<body><main>
<h1>Our results and the papers'</h1>
{% if short %}<article class="short">{{ short }}</article>{% endif %}
<p>This page compares figures that we measured with this code with those that the papers
published. Figures are in percent; <i>±</i> is half of the 95 % interval over seeds. There are
{{ done }} runs (scale: {{ scales }}). Figures are those of the last round unless the reading
says <i>best</i> or <i>last 10</i>. A training that diverged has no figures: <i>1 diverged</i>
is a seed without any. No setting was chosen on test data: settings are those of the papers, or
were fixed beforehand, or were chosen on validation samples of seed 0. Where other seeds draw the
split anew, all rows test on some of these, too. Five times we widened the search for settings
after we had seen test figures, for all rows alike (digits, watch, heart, Shakespeare's roles, and
clipping by sample); their pages in docs/results say so.</p>
<nav>{% if counts %}<a href="#claims">Claims</a>{% endif %}
{% for title in groups %}
<a href="#{{ title|replace(' ', '-') }}">{{ title }}</a>
{% endfor %}</nav>
{% if counts %}
<h2 id="claims">Do the papers' claims hold?</h2>
<article class="counts">
<p class="soft">A claim says that one row of a table is better than another. The claims stand below
the tables that they are about, each with a verdict: <i>yes</i> if the whole 95 % interval of the
difference is above zero, <i>no, the reverse</i> if it is below zero, and <i>inconclusive</i> if it
contains zero, or if all seeds have the same difference, which is no test. With <i>one seed</i>, or
if all <i>diverged</i>, there is no verdict. The difference is in percentage points, over the seeds
that both rows have. Questions that begin with <i>ours</i> are our own. Even if no two rows really
differed, about one line in twenty would say <i>yes</i> or <i>no, the reverse</i> by chance. <i>p
(Holm)</i> corrects for that, with the number of lines below a table: of all lines whose value is at
most 0.05, the chance that any is wrong is at most 5 %. The verdicts and intervals themselves are
not corrected. The tables that compare methods with a yardstick have the same intervals and the same
correction, for the number of methods. This table counts the verdicts, and under <i>clear after
Holm</i> the lines whose <i>p (Holm)</i> is at most 0.05. {{ size_said|inline }}</p>
{{ grid('claims', count_heads, counts) }}
</article>
{% endif %}
{% for title, parts in groups.items() %}
<h2 id="{{ title|replace(' ', '-') }}">{{ title }}</h2>
{% for part in parts %}
<article id="{{ part.name }}">
<h3>{{ part.title }}</h3>
<p class="soft">{{ part.about|inline }}</p>
{% if part.said %}<p class="said">{{ part.said }} {{ part.left_out }}</p>{% endif %}
{% if part.rows %}
{% set heads, rows = part.without('s/round') %}
{{ grid(part.title, heads, rows) }}
{% endif %}
{% if part.chosen %}
<p class="soft">The settings of each method, which were the best of its trials on validation
samples:</p>
{{ grid(part.title ~ ': settings', chosen_heads, part.chosen) }}
{% endif %}
{% if part.reached %}
<p class="soft">Accuracy over rounds, from the curves below:</p>
{{ grid(part.title ~ ': rounds', part.reached_heads, part.reached) }}
{% endif %}
{% if part.newcomers %}
<p class="soft">{{ part.newcomers_said|inline }}</p>
{{ grid(part.title ~ ': newcomers', part.newcomers_heads, part.newcomers) }}
{% endif %}
{% if part.claims %}
<p class="soft">How the <a href="#claims">claims</a> about these rows came out (an empty cell
repeats the claim above it):</p>
<div class="claims">{{ grid(part.title ~ ': claims', claim_heads, part.claims) }}</div>
{% endif %}
<div class="figures">
{% for figure in part.figures %}
{{ chart(figure) }}
{% endfor %}
</div>
<p class="soft">{{ part.state }}. Repeat with <code>{{ part.command }}</code>.
{{ part.spent }}</p>
</article>
{% endfor %}
{% endfor %}
{% if waiting %}
<h2 id="waiting">Not run yet</h2>
<article><ul>
{% for part in waiting %}
<li id="{{ part.name }}">{{ part.title }}<br><code>{{ part.command }}</code></li>
{% endfor %}
</ul></article>
{% endif %}
</main></body></html>
"""
)

"""Style and template of the page of results, which needs no script and no other file."""

STYLE = """
:root { color-scheme: light dark; --ground: #f4f5f7; --card: #fff; --ink: #1c222c; --soft: #59626f;
  --line: #dfe3e8; --link: #005f94; --ours: #0072b2; --published: #d55e00;
  --yes: #00714f; --no: #b04a00;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #b8589a; --c4: #b07a00; --c5: #2f8fc8;
  --c6: #6b57b8; --c7: #6d7683; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #12151a; --card: #1b1f26; --ink: #e7eaee; --soft: #a2abb8; --line: #2e343d;
    --link: #7cc4f2; --ours: #58b4ec; --published: #f2894a; --c0: #58b4ec; --c1: #f2894a;
    --yes: #35c79c; --no: #f2894a; --c2: #35c79c; --c3: #e08cc4; --c4: #ecb84a;
    --c5: #86c9f5; --c6: #a897f0; --c7: #98a2b0; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 26px; margin: 0 0 6px; } h2 { font-size: 21px; margin: 44px 0 8px; }
h3 { font-size: 16px; margin: 0 0 4px; overflow-wrap: anywhere; }
p { margin: 0 0 8px; } ul { margin: 0; padding-left: 20px; }
.soft { color: var(--soft); font-size: 13.5px; } a { color: var(--link); }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 12px 0; }
article { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 14px 16px; margin: 0 0 16px; min-width: 0; }
code { font: 13px ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.said { font-weight: 600; }
td.yes { color: var(--yes); font-weight: 600; } td.no { color: var(--no); font-weight: 600; }
/* A shadow at the right or the bottom shows that a table goes on there. */
.scroll { overflow: auto; max-height: 760px; margin: 8px 0;
  --edge: color-mix(in srgb, var(--soft) 50%, transparent); background:
  linear-gradient(to left, var(--card) 50%, transparent) right / 40px 100% no-repeat local,
  linear-gradient(to top, var(--card) 50%, transparent) bottom / 100% 40px no-repeat local,
  linear-gradient(to left, var(--edge), transparent) right / 9px 100% no-repeat,
  linear-gradient(to top, var(--edge), transparent) bottom / 100% 9px no-repeat; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 10px; text-align: right; white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; position: sticky; top: 0;
  background: var(--card); color: var(--soft); box-shadow: inset 0 -1px var(--line); }
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
figure { margin: 8px 0 0; min-width: 0; } figcaption { font-size: 13.5px; font-weight: 600; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 12.5px; }
.grid { stroke: var(--line); } .zero { stroke: var(--ink); stroke-dasharray: 3 3; }
.ours { fill: var(--ours); } .interval { stroke: var(--ours); stroke-width: 2.5; }
.published { fill: none; stroke: var(--published); stroke-width: 2; }
.hit { fill: var(--ink); opacity: 0; } .hit:hover { opacity: .07; }
.line { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
.spots circle { fill: currentColor; opacity: 0; }
.spots.seen circle, .spots circle:hover { opacity: 1; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 4px 0; padding: 0;
  list-style: none; font-size: 13px; }
.legend i { display: inline-block; width: 14px; height: 3px; margin-right: 6px;
  vertical-align: 4px; background: currentColor; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); }
.c3 { color: var(--c3); } .c4 { color: var(--c4); } .c5 { color: var(--c5); }
.c6 { color: var(--c6); } .c7 { color: var(--c7); }
@media (max-width: 600px) { main { padding: 16px 12px 40px; } article { padding: 12px 10px; }
  svg text { font-size: 15px; } th, td { padding: 4px 8px; } }
"""

TEMPLATE = (
    """{% macro grid(label, heads, rows) %}
<div class="scroll" tabindex="0" role="region" aria-label="{{ label }}">
<table{% if heads[-1] in ('note', 'settings') %} class="notes"{% endif %}>
<thead><tr>{% for head in heads %}<th>{{ head }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows %}
<tr>
{% for cell in row %}
<td{% if cell in colors %} class="{{ colors[cell] }}"{% endif %}>{{ cell }}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody></table></div>
{% endmacro %}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>fedapps: our results and the papers'</title>
<style>"""
    + STYLE
    + """</style>
</head>
<body><main>
<h1>Our results and the papers'</h1>
<p>This page compares figures that we measured with this code with those that the papers published.
Figures are in percent; <i>±</i> is half of the 95 % interval over seeds. There are {{ done }}
runs (scale: {{ scales }}). Figures are those of the last round unless the reading says <i>best</i>
or <i>last 10</i>. Nothing was tuned on test data.</p>
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
contains zero. With <i>one seed</i> there is no verdict. The difference is in percentage points,
over the seeds that both rows have. Questions that begin with <i>ours</i> are our own. The
intervals are not corrected for the number of claims. This table counts the verdicts:</p>
{{ grid('claims', count_heads, counts) }}
</article>
{% endif %}
{% for title, parts in groups.items() %}
<h2 id="{{ title|replace(' ', '-') }}">{{ title }}</h2>
{% for part in parts %}
<article id="{{ part.name }}">
<h3>{{ part.title }}</h3>
<p class="soft">{{ part.about|inline }}</p>
{% if part.said %}<p class="said">{{ part.said }}</p>{% endif %}
{% if part.rows %}
{{ grid(part.title, part.heads, part.rows) }}
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
{% if part.claims %}
<p class="soft">How the <a href="#claims">claims</a> about these rows came out (an empty cell
repeats the claim above it):</p>
<div class="claims">{{ grid(part.title ~ ': claims', claim_heads, part.claims) }}</div>
{% endif %}
<div class="figures">
{% for caption, chart in part.figures %}
<figure><figcaption>{{ caption }}</figcaption>{{ chart }}</figure>
{% endfor %}
</div>
<p class="soft">{{ part.state }}. Repeat with <code>{{ part.command }}</code></p>
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

"""The style sheet of a run's page: light and dark, wide and narrow."""

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #f4f5f7; --card: #ffffff; --ink: #1c222c; --soft: #59626f; --line: #e2e5ea;
  --link: #005f94; --hover: #1c222c;
  --personalized: #0072b2; --initial: #d55e00; --quiet: #c3c8cf;
  --c1: #009e73; --c2: #b8589a; --c3: #c98a00; --c4: #3f9fd8; --c5: #6b57b8; --c6: #8a6d3b;
  --c7: #6d7683;
  --good: #0a7a52; --busy: #005f94; --bad: #b3261e; --wait: #7a5b00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #12151a; --card: #1b1f26; --ink: #e7eaee; --soft: #a2abb8; --line: #2e343d;
    --link: #7cc4f2; --hover: #ffffff;
    --personalized: #58b4ec; --initial: #f2894a; --quiet: #4a525e;
    --c1: #35c79c; --c2: #e08cc4; --c3: #ecb84a; --c4: #86c9f5; --c5: #a897f0; --c6: #cdae78;
    --c7: #98a2b0;
    --good: #4fd3a0; --busy: #7cc4f2; --bad: #ff8a80; --wait: #e6c15a;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
main, header, footer { max-width: 1180px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 28px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 36px 0 12px; scroll-margin-top: 12px; }
h3 { font-size: 15px; margin: 20px 0 8px; }
p { margin: 0 0 10px; }
a { color: var(--link); }
code, pre { font: 13px/1.5 ui-monospace, "Cascadia Mono", Menlo, Consolas, monospace; }
pre { margin: 0; padding: 12px 14px; overflow: auto; }
.soft { color: var(--soft); }
.state { margin: 12px 0 0; overflow-wrap: anywhere; }
.badge {
  display: inline-block; padding: 1px 10px; border: 1px solid currentColor; border-radius: 99px;
  font-size: 13px; font-weight: 600; margin-right: 8px;
}
.finished { color: var(--good); } .running { color: var(--busy); }
.failed { color: var(--bad); } .interrupted, .unfinished { color: var(--wait); }
nav { margin-top: 14px; display: flex; flex-wrap: wrap; gap: 4px 18px; }
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
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr));
}
figure { margin: 0; padding: 12px 14px 6px; min-width: 0; }
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
.heat { fill: var(--personalized); }
.hit { fill: var(--hover); opacity: 0; }
.hit:hover { opacity: .08; }
.personalized { color: var(--personalized); } .initial { color: var(--initial); }
.quiet { color: var(--quiet); }
.c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); } .c6 { color: var(--c6); }
.c7 { color: var(--c7); }
.level-1 { fill-opacity: .14; } .level-2 { fill-opacity: .26; } .level-3 { fill-opacity: .38; }
.level-4 { fill-opacity: .5; } .level-5 { fill-opacity: .63; } .level-6 { fill-opacity: .75; }
.level-7 { fill-opacity: .88; } .level-8 { fill-opacity: 1; }
.box { overflow: auto; max-height: 440px; margin-bottom: 8px; }
.charts .box { margin: 0; }
@media (min-width: 1024px) {  /* a table beside charts is as high as they are, and scrolls */
  .charts .box { contain: size; min-height: 320px; max-height: none; }
}
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 14px; text-align: right; white-space: nowrap; vertical-align: top; }
th {
  position: sticky; top: 0; background: var(--card); color: var(--soft); font-weight: 600;
  box-shadow: inset 0 -1px var(--line);
}
tbody tr + tr td { border-top: 1px solid var(--line); }
.text { text-align: left; }
.detail { white-space: normal; min-width: 230px; overflow-wrap: anywhere; }
details { margin-bottom: 12px; }
summary { cursor: pointer; color: var(--link); padding: 4px 0; }
footer { color: var(--soft); font-size: 13px; padding-top: 24px; padding-bottom: 40px; }
@media (max-width: 600px) {
  main, header, footer { padding-left: 12px; padding-right: 12px; }
  header { padding-top: 18px; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 8px; }
  .tiles b { font-size: 19px; }
  figure { padding: 10px 10px 4px; }
  svg text { font-size: 14.5px; }
  th, td { padding: 5px 10px; }
}
"""

"""The style sheet of a run's page, beside that which pages share (`drawing.html`)."""

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
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr));
}
figure { padding: 12px 14px 6px; }
.box { overflow: auto; max-height: 440px; margin-bottom: 8px; }
.charts .box { margin: 0; }
@media (min-width: 1024px) {  /* a table beside charts is as high as they are, and scrolls */
  .charts .box { contain: size; min-height: 320px; max-height: none; }
}
th, td { padding: 5px 14px; vertical-align: top; }
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
  th, td { padding: 5px 10px; }
}
"""

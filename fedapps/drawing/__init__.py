"""How charts look and are drawn: pictures with matplotlib, and SVG for pages."""

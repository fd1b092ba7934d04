"""Pages, and their style: one accent colour, light and dark, on paper and on a phone."""

from __future__ import annotations

from flwr_flynn._markup import STYLE, Markup, tag

PAGE_STYLE = Markup(
    STYLE
    + """
:root{color-scheme:light dark;--ink:#1b232d;--soft:#566271;--line:#dce1e7;--paper:#fdfdfc;--wash:#f3f5f6;
--accent:#0a6299}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e4e8ec;--soft:#a4afbb;--line:#303943;--paper:#13171c;
--wash:#1b2128;--accent:#6fb6ea}}
*{box-sizing:border-box}
html{scroll-behavior:smooth}
@media (prefers-reduced-motion:reduce){html{scroll-behavior:auto}}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,
"Noto Sans","DejaVu Sans",sans-serif;-webkit-text-size-adjust:100%}
header,main,footer,nav{max-width:50rem;margin:0 auto;padding:0 1.5rem}
header{padding-top:3.5rem}
main,section,figure{min-width:0}
h1{font-size:clamp(1.7rem,5vw,2.4rem);line-height:1.15;letter-spacing:-.02em;font-weight:650;margin:.2rem 0 1rem}
h2{font-size:1.3rem;letter-spacing:-.01em;font-weight:650;margin:0 0 .5rem}
section{padding:2.25rem 0 2rem;border-top:1px solid var(--line)}
p{margin:.5rem 0 1rem;max-width:42rem;overflow-wrap:anywhere}
.eyebrow{color:var(--accent);font-size:.85rem;font-weight:600;margin:0}
.lead{font-size:1.12rem;line-height:1.55}
.note,footer{color:var(--soft);font-size:.9rem}
.fault{border-left:3px solid var(--accent);padding-left:1rem;font-weight:600}
a{color:var(--accent);text-underline-offset:.2em}
:focus-visible{outline:2px solid var(--accent);outline-offset:3px;border-radius:2px}
.skip{position:absolute;left:-100vw;top:0;background:var(--paper);padding:.7rem 1rem;z-index:1}
.skip:focus{left:0}
nav ul{list-style:none;margin:1.75rem 0 2.5rem;padding:0;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;font-size:.9rem}
nav a{display:inline-block;padding:.2rem 0;text-decoration:none}
nav a:hover{text-decoration:underline}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(8rem,1fr));gap:1.25rem;margin:2rem 0 .5rem}
.tiles dt{color:var(--soft);font-size:.85rem}
.tiles dd{margin:0}
.tiles b{display:block;font-size:1.75rem;line-height:1.25;font-weight:600;letter-spacing:-.02em;
font-variant-numeric:tabular-nums}
.tiles span{color:var(--soft);font-size:.85rem}
table{font-size:.9rem;line-height:1.45;margin:.4rem 0 1rem;min-width:60%}
caption{color:var(--soft);padding:0 0 .35rem}
thead th{color:var(--soft);font-size:.85rem;border-bottom:1px solid var(--ink);vertical-align:bottom}
tbody th,td{border-bottom:1px solid var(--line)}
.flynn .n:last-child{padding-right:.2rem}
.flynn .cell{background:color-mix(in srgb,var(--accent) calc(var(--v,0)*1%),transparent);padding:.4rem .6rem}
.flynn .shades thead .n{padding:.4rem .6rem}
.flynn .shades td{border:2px solid var(--paper)}
.scroll{margin:.25rem 0 .5rem}
details{margin:.9rem 0}
summary{cursor:pointer;color:var(--accent);font-size:.9rem;padding:.25rem 0}
pre{background:var(--wash);padding:1rem;border-radius:6px;font:.85rem/1.5 ui-monospace,"DejaVu Sans Mono",monospace;
white-space:pre-wrap;overflow-wrap:anywhere;margin:.5rem 0 1rem}
.digest td{font:.8rem/1.6 ui-monospace,"DejaVu Sans Mono",monospace;overflow-wrap:anywhere}
svg{margin:1.1rem 0}
.flynn svg .soft{fill:var(--soft)}
svg .grid,svg .frame{stroke:var(--line);fill:none}
svg .all{stroke:var(--accent);stroke-dasharray:3 3;opacity:.75}
svg .whisker{stroke:var(--accent);stroke-width:2;opacity:.65}
svg .halo{paint-order:stroke;stroke:var(--paper);stroke-width:5px;stroke-linejoin:round}
svg .curve{fill:none;stroke:var(--accent);stroke-width:2.2;stroke-linejoin:round}
.flynn svg.square{width:100%;max-width:17rem;margin:.3rem 0 0}
.flynn svg.square text{font-size:9.5px}
.gallery{display:grid;grid-template-columns:repeat(auto-fill,minmax(12.5rem,1fr));gap:1.6rem 2rem;margin:1.2rem 0}
figure{margin:0}
figcaption{font-size:.9rem;line-height:1.4;color:var(--soft);overflow-wrap:anywhere}
figcaption b{color:var(--ink);font-weight:600}
footer{padding-top:1.5rem;padding-bottom:3rem;border-top:1px solid var(--line)}
@media (max-width:40rem){.flynn .n{white-space:normal}}
@page{margin:16mm}
@media print{:root{color-scheme:light;--paper:#fff}body{font-size:10pt;print-color-adjust:exact;
-webkit-print-color-adjust:exact}nav,.skip{display:none}header{padding-top:0}header,main,footer{max-width:none;padding:0}
.scroll{overflow:visible}table{font-size:7.5pt}
.flynn .n{white-space:normal}.points{display:none}
tr,p,figure,svg,.tiles{break-inside:avoid}h2,p,caption,summary{break-after:avoid}
section{padding:1.2rem 0 .6rem}details::details-content{content-visibility:visible;display:block;height:auto}}
"""
)


def html_page(title: str, *body: Markup) -> str:
    """A page of elements, the main one of which has the id "content"."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", PAGE_STYLE),
    )
    skip = tag("a", "Skip to the content", href="#content", class_="skip")
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', skip, *body, class_='flynn'), lang='en')}\n"


def whole_page(title: str, *parts: Markup) -> str:
    """A page of one section."""
    header, main = tag("header", tag("h1", title)), tag("main", *parts, id="content", tabindex=-1)
    return html_page(title, header, main)

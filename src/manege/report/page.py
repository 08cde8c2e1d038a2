"""A report's page: HTML that needs no other file. It knows sections and figures, not runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from manege.pictures import Picture
from manege.report.drawing import DARK, FAMILY, LIGHT, Drawing, escape, variables
from manege.report.sheets import data_uri

MOST_BYTES = 10_000_000
_PICTURE_BYTES = 7_000_000


@dataclass
class PageSection:
    """A part of the page with a heading."""

    name: str
    """The section's name in links."""
    title: str
    parts: list[str] = field(default_factory=list)

    def add(self, *parts: str) -> None:
        """Append HTML."""
        self.parts += parts


@dataclass
class Page:
    """A report's content, with its figures and the room that its pictures take."""

    title: str
    head: list[str] = field(default_factory=list)
    sections: list[PageSection] = field(default_factory=list)
    figures: dict[str, Drawing] = field(default_factory=dict)
    """Figures by name; each is also a file of its own."""
    picture_bytes: int = 0
    """Bytes spent on pictures so far."""

    def figure(self, name: str, drawing: Drawing, caption: str = "", *, wide: bool = False) -> str:
        """Keep a drawing as a figure and return it, with its caption, as HTML."""
        self.figures[name] = drawing
        below = f"<figcaption>{caption}</figcaption>" if caption else ""
        kind = "figure wide" if wide else "figure"
        return (
            f'<figure class="{kind}" id="{name}" tabindex="0"><div class="drawing">'
            f"{drawing.svg(name)}</div>{below}</figure>"
        )

    def picture(self, picture: Picture, alt: str, width: float, *, kind: str = "") -> str:
        """Return a picture of pixels as HTML, shown that wide; words when there is no room left."""
        data = data_uri(picture)
        if self.picture_bytes + len(data) > _PICTURE_BYTES:
            return f'<span class="muted">({escape(alt)}: left out to keep the file small)</span>'
        self.picture_bytes += len(data)
        return (
            f'<img class="pixels {kind}" src="{data}" alt="{escape(alt)}" '
            f'width="{width:.0f}" height="{width * picture.shape[0] / picture.shape[1]:.0f}">'
        )

    @property
    def room(self) -> float:
        """The part of the bytes meant for pictures that is left."""
        return 1 - self.picture_bytes / _PICTURE_BYTES

    def html(self) -> str:
        """Return the whole file."""
        links = "".join(
            f'<li><a href="#{one.name}">{escape(one.title)}</a></li>' for one in self.sections
        )
        body = "".join(
            f'<section id="{one.name}" aria-labelledby="{one.name}-h">'
            f'<h2 id="{one.name}-h">{escape(one.title)}</h2>{"".join(one.parts)}</section>'
            for one in self.sections
        )
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark">'
            # No icon is asked of anybody.
            '<link rel="icon" href="data:,">'
            f"<title>{escape(self.title)}</title><style>{_CSS}</style></head><body>"
            '<a class="skip" href="#content">Skip to the content</a>'
            f"<header>{''.join(self.head)}</header>"
            f'<nav aria-label="Sections"><ul>{links}</ul></nav>'
            f'<main id="content">{body}</main>'
            f"<footer>Drawn by <code>manege report</code> from the run directory alone.</footer>"
            "</body></html>\n"
        )


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph; HTML in the text stays HTML."""
    return f'<p class="{kind}">{text}</p>' if kind else f"<p>{text}</p>"


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, numbers: Sequence[int] = ()
) -> str:
    """Return a table of HTML cells; the columns in `numbers` are aligned to the right."""
    right = set(numbers)

    def cell(column: int, text: str, tag: str) -> str:
        kind = ' class="number"' if column in right else ""
        scope = ' scope="row"' if tag == "th" else ""
        return f"<{tag}{kind}{scope}>{text}</{tag}>"

    top = "".join(
        f'<th scope="col"{" class=number" if column in right else ""}>{text}</th>'
        for column, text in enumerate(head)
    )
    body = "".join(
        "<tr>"
        + "".join(cell(n, text, "th" if n == 0 else "td") for n, text in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0"><table><caption>{caption}</caption>'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def details(summary: str, inside: str) -> str:
    """Return HTML that is folded until a reader opens it; a printer unfolds it."""
    return f"<details><summary>{summary}</summary>{inside}</details>"


def code(text: str) -> str:
    """Return a block of text to be copied."""
    return f'<pre tabindex="0"><code>{escape(text)}</code></pre>'


_CSS = f"""
:root{{{variables(LIGHT)}color-scheme:light dark}}
@media (prefers-color-scheme:dark){{:root{{{variables(DARK)}}}}}
*{{box-sizing:border-box}}
html{{scroll-behavior:smooth;-webkit-text-size-adjust:100%}}
@media (prefers-reduced-motion:reduce){{html{{scroll-behavior:auto}}}}
body{{margin:0;background:var(--paper);color:var(--ink);font:15px/1.55 {FAMILY}}}
header,main,footer{{max-width:1064px;margin:0 auto;padding:0 24px}}
header{{padding-top:36px}}
h1{{font-size:30px;line-height:1.2;margin:0 0 6px;letter-spacing:-.01em;overflow-wrap:anywhere}}
h2{{font-size:21px;margin:0 0 14px;letter-spacing:-.005em}}
h3{{font-size:15px;margin:22px 0 8px}}
p{{max-width:76ch;margin:0 0 12px}}
a{{color:var(--c0)}}
:focus-visible{{outline:3px solid var(--c0);outline-offset:2px;border-radius:3px}}
.muted,figcaption,caption{{color:var(--muted);font-weight:400}}
.badge{{display:inline-block;font-size:13px;font-weight:600;padding:2px 11px;border-radius:99px;
 border:1.5px solid currentColor;vertical-align:6px;margin-left:10px;white-space:nowrap}}
.badge.finished{{color:var(--c2)}}.badge.running,.badge.new{{color:var(--c0)}}
.badge.failed{{color:var(--c1)}}.badge.stopped,.badge.interrupted,.badge.unknown{{color:var(--c4)}}
.facts{{display:flex;flex-wrap:wrap;gap:4px 26px;margin:10px 0 0;padding:0;list-style:none}}
.facts b{{font-weight:600}}
.notes{{border-left:4px solid var(--c4);background:var(--soft);padding:10px 16px;margin:18px 0 0;
 border-radius:0 6px 6px 0}}
.notes ul{{margin:4px 0 0;padding-left:20px}}
nav{{position:sticky;top:0;z-index:2;background:var(--paper);border-bottom:1px solid var(--rule);
 margin-top:22px}}
nav ul{{display:flex;flex-wrap:wrap;gap:4px 18px;overflow-x:auto;max-width:1064px;margin:0 auto;
 padding:10px 24px;list-style:none;scrollbar-width:thin}}
nav a{{white-space:nowrap;text-decoration:none;color:var(--muted);font-size:14px}}
nav a:hover{{color:var(--ink)}}
section{{padding:34px 0 10px;scroll-margin-top:30px;border-bottom:1px solid var(--rule)}}
section:last-child{{border:0}}
.tiles{{display:grid;grid-template-columns:repeat(auto-fit,minmax(158px,1fr));gap:12px;
 margin:0 0 16px}}
.tile{{background:var(--soft);border-radius:8px;padding:12px 14px}}
.tile .name{{font-size:13px;color:var(--muted)}}
.tile .value{{font-size:26px;font-weight:600;line-height:1.25;font-variant-numeric:tabular-nums}}
.tile .more{{white-space:nowrap;font-size:12.5px;color:var(--muted);line-height:1.45}}
.figures{{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:26px 36px;
 align-items:start}}
.figure{{margin:0;min-width:0}}
.figure.wide{{grid-column:1/-1}}
.figures.three{{grid-template-columns:repeat(3,minmax(0,1fr))}}
.figures+.figures{{margin-top:26px}}
.drawing svg{{display:block;width:100%;height:auto;overflow:visible}}
figcaption{{font-size:13px;line-height:1.45;margin-top:6px;max-width:76ch}}
img.pixels{{image-rendering:pixelated;display:block;max-width:100%;height:auto;border-radius:3px}}
img.smooth{{image-rendering:auto}}
img.points{{border:1px solid var(--rule)}}
.pair{{display:grid;grid-template-columns:minmax(70px,max-content) 1fr 1fr;gap:10px 18px;
 align-items:center}}
.pair .top{{font-size:13px;color:var(--muted);font-weight:600}}
.pair .label{{font-weight:600;overflow-wrap:anywhere}}
.strips{{display:grid;grid-template-columns:repeat(auto-fill,minmax(300px,1fr));gap:26px 30px}}
.strip{{display:grid;grid-template-columns:max-content 1fr;gap:3px 10px;align-items:center;
 align-content:start}}
.pair+p,.strips+p,.figures+p,img+p{{margin-top:12px}}
.strip h3{{grid-column:1/-1;margin:0 0 4px}}
.strip .round{{font-size:12px;color:var(--muted);text-align:right;
 font-variant-numeric:tabular-nums}}
.scroll{{overflow-x:auto;margin:0 0 16px}}
table{{border-collapse:collapse;font-size:14px;min-width:50%;font-variant-numeric:tabular-nums}}
caption{{text-align:left;font-size:13px;padding-bottom:6px}}
th,td{{text-align:left;padding:6px 16px 6px 0;border-bottom:1px solid var(--rule);
 vertical-align:top}}
thead th{{color:var(--muted);font-weight:600;font-size:13px;border-bottom-width:2px}}
tbody th{{font-weight:600;overflow-wrap:break-word;min-width:5em}}
.number{{text-align:right;white-space:nowrap}}
td.number,th.number{{padding-left:10px}}
.good{{color:var(--c2)}}.bad{{color:var(--c1);font-weight:600}}
pre{{background:var(--soft);padding:12px 14px;border-radius:8px;overflow-x:auto;font-size:13px;
 line-height:1.5;margin:0 0 14px}}
code{{font-family:ui-monospace,'SF Mono',Menlo,Consolas,'DejaVu Sans Mono',monospace;
 font-size:.93em}}
pre code{{font-size:1em}}
details{{margin:0 0 14px}}
summary{{cursor:pointer;color:var(--c0);font-weight:600;font-size:14px;padding:4px 0}}
details>:not(summary){{margin-top:10px}}
footer{{color:var(--muted);font-size:13px;padding-top:26px;padding-bottom:40px}}
.skip{{position:absolute;left:-999px}}
.skip:focus{{left:16px;top:10px;background:var(--paper);padding:6px 12px;z-index:3}}
@media (max-width:760px){{
 header,main,footer{{padding-left:16px;padding-right:16px}}
 nav ul{{padding-left:16px;flex-wrap:nowrap}}
 h1{{font-size:24px}}.badge{{vertical-align:3px}}
 .figures,.figures.three{{grid-template-columns:minmax(0,1fr)}}
 .figure.wide .drawing{{overflow-x:auto}}.figure.wide svg{{min-width:680px}}
 .pair{{grid-template-columns:1fr 1fr}}.pair .label,.pair .corner{{grid-column:1/-1}}
 .pair .corner{{display:none}}
}}
@media print{{
 :root{{{variables(LIGHT)}color-scheme:light}}
 body{{font-size:10.5pt}}nav,.skip{{display:none}}
 header,main,footer{{max-width:none;padding:0}}
 section{{padding:14pt 0 4pt}}h2{{break-after:avoid}}
 .figure,.tile,.strip,tr{{break-inside:avoid}}
 details>summary{{list-style:none}}details::details-content{{content-visibility:visible;
  display:block;block-size:auto}}
 .scroll,pre{{overflow:visible;white-space:pre-wrap}}
 a{{color:inherit;text-decoration:none}}
 *{{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
}}
"""

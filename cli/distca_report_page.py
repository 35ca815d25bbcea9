"""The page of `distca report`: one file that needs nothing else."""

import json
import pathlib
from collections import namedtuple

from distca_report_svg import escaped, evenly

MOST_ROWS = 100
HERE = pathlib.Path(__file__).resolve().parent


class Figure(namedtuple("Figure", "heading drawing sources assumes table data", defaults=[None])):
    """A figure of the page.

    heading: a sentence that says what is seen. drawing: HTML, in which FIGURE stands for the figure's id. assumes:
    sentences that say what it takes for granted. table: (header, rows), its numbers as texts. data: what the page's
    program draws, or None.
    """

    def named(self, name):
        """The figure, with a heading that begins with the input. For pages with several of a kind."""
        return self._replace(heading=f"{name}: {self.heading[0].lower()}{self.heading[1:]}")

    def html(self, index):
        name = f"figure-{index}"
        data = ""
        if self.data is not None:  # "<" would end the element within a text
            text = json.dumps(self.data, separators=(",", ":"), sort_keys=True).replace("<", "\\u003c")
            data = f'<script type="application/json" id="{name}-data">{text}</script>'
        assumes = "".join(f"<li>{escaped(text)}</li>" for text in self.assumes)
        sources = "; ".join(escaped(source) for source in self.sources)
        return (f'<section id="{name}">\n<figure><h2>{index}. {escaped(self.heading)}</h2>\n'
                f'{self.drawing.replace("FIGURE", name)}{data}\n<figcaption><p><b>Source:</b> {sources}</p>'
                f'<ul>{assumes}</ul></figcaption></figure>\n{self.numbers()}</section>\n')

    def numbers(self):
        header, rows = self.table
        shown = evenly(rows, MOST_ROWS)
        left_out = f" ({len(shown)} of {len(rows)} rows)" if len(shown) < len(rows) else ""
        return f"<details><summary>The numbers{left_out}</summary>{table_html(header, shown)}</details>\n"


def of_each(inputs, figure_of):
    """A figure of each input that has one."""
    made = [(one, figure) for one in inputs if (figure := figure_of(one))]
    return [figure.named(one.name) if len(inputs) > 1 else figure for one, figure in made]


def table_html(header, rows):
    def row(cells, kind):
        return "<tr>" + "".join(f"<{kind}>{escaped(cell)}</{kind}>" for cell in cells) + "</tr>"

    return (f'<div class="box"><table><thead>{row(header, "th")}</thead><tbody>'
            + "".join(row(cells, "td") + "\n" for cells in rows) + "</tbody></table></div>")


def page(title, inputs, figures):
    """inputs: (header, rows) of what was given."""
    style, program = ((HERE / f"distca_report.{ending}").read_text(encoding="utf-8") for ending in ("css", "js"))
    contents = "".join(f'<li><a href="#figure-{index}">{escaped(figure.heading)}</a></li>\n'
                       for index, figure in enumerate(figures, 1))
    return (f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src \'unsafe-inline\'; '
            'script-src \'unsafe-inline\'; img-src data:">\n<link rel="icon" href="data:,">\n'
            f"<title>{escaped(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
            f"<h1>{escaped(title)}</h1>\n{table_html(*inputs)}\n<nav><h2>Contents</h2><ol>\n{contents}</ol></nav>\n"
            + "".join(figure.html(index) for index, figure in enumerate(figures, 1))
            + f"</main>\n<script>\n{program}</script>\n</body>\n</html>\n")

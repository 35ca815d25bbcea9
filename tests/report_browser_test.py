#!/usr/bin/env python3
"""Pages of `distca report` in a browser without a screen: report_browser_test.py PROGRAM.

DISTCA_CHROMIUM names Chromium or Chrome; else PATH has it. Where there is none, the test is skipped (exit code 77).
"""

import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import trace_test

PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve()
NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = os.environ.get("DISTCA_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
SECONDS = 600
# Shows the page in frames of these widths, and tells how wide they would have to be.
WIDTHS = (360, 1280)
FRAMES = """<!DOCTYPE html><title>frames</title>%s<script>
addEventListener("load", () => {
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, canvas = page.querySelector("canvas");
    page.querySelectorAll("details").forEach((details) => { details.open = true; });
    frame.dataset.found = [page.documentElement.scrollWidth, page.querySelectorAll("figure").length,
      canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((byte) => byte)].join(" ");
  }
});
</script>"""


class ReportBrowser(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def browser(self, name, *options):
        """What the browser prints of a page, and the lines of its console."""
        ran = subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
             "--virtual-time-budget=3000", f"--user-data-dir={self.folder / 'profile'}", *options,
             (self.folder / name).as_uri()], capture_output=True, text=True, timeout=SECONDS)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stdout, [line for line in ran.stderr.splitlines() if "CONSOLE" in line]

    def make_page(self):
        (self.folder / "trace.json").write_text(trace_test.file_of(trace_test.two_ranks()))
        (self.folder / "run").mkdir()
        lines = [{"step": step, "step_s": 0.5, "tokens": 4096, "loss": 5 / step, "imbalance_before": 1.5,
                  "imbalance_after": 1, "peak_bytes": [1 << 30] * 64} for step in range(1, 300)]
        (self.folder / "run/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        subprocess.run([PROGRAM, "report", "trace.json", "run", "--out", "page.html"], cwd=self.folder, check=True,
                       capture_output=True, timeout=SECONDS)
        return (self.folder / "page.html").read_text(encoding="utf-8")

    def test_the_page_fits_phones_and_desks_and_the_console_is_empty(self):
        text = html.escape(self.make_page())
        frames = "".join(f'<iframe width="{width}" height="800" srcdoc="{text}"></iframe>' for width in WIDTHS)
        (self.folder / "frames.html").write_text(FRAMES % frames, encoding="utf-8")
        shown, console = self.browser("frames.html", "--dump-dom")
        self.assertEqual(console, [])
        found = [one.split() for one in re.findall('data-found="(.*?)"', shown)]
        self.assertEqual([one[1:] for one in found], [["7", "true"]] * len(WIDTHS))
        for width, one in zip(WIDTHS, found):
            self.assertLessEqual(int(one[0]), width)

    def test_the_page_is_printed_with_an_empty_console(self):
        self.make_page()
        _, console = self.browser("page.html", f"--print-to-pdf={self.folder / 'page.pdf'}")
        self.assertEqual(console, [])
        self.assertEqual((self.folder / "page.pdf").read_bytes()[:5], b"%PDF-")

    def test_a_fault_of_a_page_would_be_seen(self):
        (self.folder / "fault.html").write_text("<!DOCTYPE html><title>x</title><script>absent()</script>")
        _, console = self.browser("fault.html", "--dump-dom")
        self.assertIn("absent is not defined", " ".join(console))


if __name__ == "__main__":
    if not BROWSER:
        print("no Chromium: DISTCA_CHROMIUM may name one")
        sys.exit(77)
    unittest.main()

#!/usr/bin/env python3
"""`distca report` of runs, traces and predictions, and of what it refuses: cli_report_test.py PROGRAM."""

import html.parser
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import trace_test

PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve()
SECONDS = 300
ODD = "<b>&'run"  # a name that is markup
VOID = {"meta", "link"}


def line_of(step, **more):
    return {"step": step, "loss": 5 - 0.1 * step, "step_s": 0.5, "tokens": 4096, "imbalance_before": 1.5,
            "imbalance_after": 1.02, "plan_hash": f"{step:016x}", "attention_s": [0.1, 0.2], "waited_s": [0.1, 0],
            "peak_bytes": [3 << 20, 2 << 20], "overlap": "within", **more}


def prediction(machine="h200", step_s=0.4, plan_hash=f"{3:016x}", ranks=2, **more):
    parts = {"attention_s": 0.1, "linear_s": 0.1, "waits_for_peers_s": step_s - 0.2}
    return {"machine": machine, "plan_hash": plan_hash, "step": 3, "step_s": step_s, "tokens_per_s": 4096 / step_s,
            "busy_s": 0.35, "even_attention_s": 0.37, "plain_packing_s": None, "last_check": None,
            "ranks": ranks, "load_before": [30, 10], "load_after": [21, 19],
            "stages": [{"name": "workers", "peak_bytes": 5 << 30, "peak_rank": 0, **parts}],
            "better_by_a_fifth": [{"number": "issue_us", "step_shorter": 0.1, "source": "assumed: a <call>"}], **more}


def search():
    def setting(step_s):
        return {"tensor": 8, "stages": 1, "replicas": 8, "order": "ping-pong", "step_s": step_s,
                "tokens_per_s": 2000 / step_s, "peak_bytes": 1 << 30,
                "parts_s": {"attention": 1, "linear": 2, "copies_issues": 0.5}}

    return {"gpus": 64, "machine": "h200", "step": 1, "tokens": 2000,
            "contestants": [{"name": "ours", "best": [setting(4.0), setting(4.5)]},
                            {"name": "wlb", "best": [setting(5.0)]}, {"name": "local", "best": []}]}


class Page(html.parser.HTMLParser):
    """Checks that elements nest, and keeps texts by element, and attributes that name something."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.names, self.counts, self.faults = [], {}, [], {}, []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.names += [value for key, value in attributes if key in ("href", "src")]
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_startendtag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)

    def handle_data(self, data):
        if self.open:
            self.texts[self.open[-1]][-1] += data


class CliReport(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, *things):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(thing if isinstance(thing, str) else json.dumps(thing) + "\n" for thing in things))
        return name

    def run_folder(self, name="run", steps=5, **more):
        self.write(f"{name}/metrics.jsonl", *(line_of(step, **more) for step in range(1, steps + 1)))
        return name

    def trace(self, name="trace.json", predicted=None):
        root = json.loads(trace_test.file_of(trace_test.two_ranks()))
        if predicted:
            root["otherData"]["predicted"] = {"machine": predicted, "num_ranks": 2, "alike": 1}
        return self.write(name, root)

    def report(self, *words, out="report.html"):
        return self.ran(PROGRAM, "report", *words, "--out", out)

    def ran(self, *words):
        return subprocess.run(words, cwd=self.folder, capture_output=True, text=True, timeout=SECONDS)

    def page(self, *words, out="report.html"):
        ran = self.report(*words, out=out)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        text = (self.folder / out).read_text(encoding="utf-8")
        page = Page(text)
        self.assertEqual((page.faults, page.open), ([], []))
        for name in page.names:  # nothing from elsewhere
            self.assertRegex(name, "^(#figure-[0-9]+|data:,)$")
        self.assertFalse("://" in text)
        return text, page

    def headings(self, *words):
        return [re.sub(r"^\d+\. ", "", text) for text in self.page(*words)[1].texts["h2"][1:]]

    def refused(self, message, *words, out="report.html", code=2):
        before = sorted(self.folder.rglob("*"))
        ran = self.report(*words, out=out)
        self.assertEqual((ran.returncode, ran.stdout), (code, ""), ran.stderr)
        self.assertRegex(ran.stderr, f"^distca: error: [^\n]*{message}[^\n]*\n$")
        self.assertEqual(sorted(self.folder.rglob("*")), before)

    def test_a_trace_has_timeline_parts_and_matrix(self):
        text, page = self.page(self.trace())
        self.assertEqual(page.texts["h2"][1:], [
            "1. A step of 0.1 ms, of which rank 0 (worker) waits 68.0 %",
            "2. Compute is 42.5 % of a step, on average over the ranks",
            "3. Ranks send 2.0 KiB a step, the most from rank 0 to rank 1: 1000 B"])
        self.assertEqual(page.counts["canvas"], 1)
        data = json.loads(re.search(r'id="figure-1-data">(.*?)</script>', text)[1])
        self.assertEqual([rank["name"] for rank in data["ranks"]], ["rank 0 (worker)", "rank 1 (server)"])
        self.assertEqual(data["length"] * data["unit_ns"], 100_000)
        events = data["ranks"][0]["compute"]
        self.assertEqual(events[:5], [1000, 3000, 0, 0, 0])  # the wait for the plan, from 1 to 4 us
        self.assertEqual(data["names"][0], ["plan", 4])
        self.assertEqual(len(data["ranks"][0]["messages"]), 5)
        self.assertIn("agree to within 2 µs", text)

    def test_a_predicted_trace_says_so(self):
        text, _ = self.page(self.trace(predicted="h200"))
        self.assertIn("trace, predicted for machine h200", text)
        self.assertIn("Nothing was measured", text)

    def test_a_run_has_balance_memory_loss_and_speed(self):
        self.assertEqual(self.headings(self.run_folder()), [
            "Balancing takes core attention's max/mean from 1.500 to 1.020",
            "Measured core attention: max/mean 1.333, rank 1 takes longest",
            "Tensors take at most 3.0 MiB of a rank at a time, measured (run: rank 0)",
            "The loss goes from 4.9 to 4.5 nats a target", "run trains on 8,192 tokens/s in its median step"])

    def test_a_run_that_went_on_with_other_ranks_is_measured_with_these(self):
        four = {"attention_s": [0.1] * 4, "waited_s": [0] * 4, "step_s": 0.25}
        self.write("run/metrics.jsonl", *(line_of(step) for step in range(1, 7)),
                   line_of(7, **four, peak_bytes=[9 << 20, 1, 1, 1]), line_of(8, **four, peak_bytes=[2 << 20, 1, 4 << 20, 1]))
        headings = self.headings("run")
        self.assertIn("Tensors take at most 9.0 MiB of a rank at a time, measured (run: rank 0)", headings)
        self.assertIn("run trains on 16,384 tokens/s in its median step", headings)

    def test_a_run_that_diverged_is_drawn(self):
        self.write("run/metrics.jsonl", line_of(1), line_of(2, loss=None, validation_loss=None))
        self.assertIn("Balancing takes core attention's max/mean from 1.500 to 1.020", self.headings("run"))

    def test_a_prediction_has_parts_with_bounds_loads_and_memory(self):
        name = self.write("one.json", prediction())
        text, _ = self.page(name)
        self.assertEqual(self.headings(name), [
            "A predicted step takes 0.4 s, 14.3 % more than if no rank ever waited",
            "The predicted plan takes core attention's max/mean from 1.500 to 1.050",
            "Tensors take at most 5.0 GiB of a rank at a time, predicted, h200 (one.json: workers)"])
        self.assertIn("If only core attention were even: 0.37 s a step.", text)
        self.write("one.json", prediction(load_before=[30, 10, 0], load_after=[0, 0, 40], imbalance_before=1.5, imbalance_after=1))
        self.assertIn("The predicted plan takes core attention's max/mean from 1.500 to 1.000", self.headings(name))
        self.write("one.json", prediction(plain_packing_s=0.5, last_check=-0.0123))
        text, _ = self.page(name)
        self.assertIn("one.json is 1.250 times as fast as plain packing (predicted, h200)", self.headings(name))
        self.assertIn("was predicted -1.2 % off", text)

    def test_the_memory_of_each_stage_is_drawn_over_time(self):
        stages = [{**prediction()["stages"][0], "name": name, "peak_bytes": points[1][1], "peak_at_ms": points[1][0],
                   "peak_in": "backward <b>", "memory": points}
                  for name, points in (("stage 0", [[0, 1 << 30], [100, 5 << 30], [200, 2 << 30]]),
                                       ("stage 1", [[0, 1 << 30], [300, 3 << 30]]))]
        name = self.write("one.json", prediction(stages=stages))
        text, _ = self.page(name)
        self.assertIn("The memory of each stage over time: at most 5.0 GiB (stage 0) after 100 ms",
                      self.headings(name))
        self.assertIn("stage 1: 3,221,225,472 bytes after 300 ms, in backward &lt;b&gt;.", text)
        # Steps up at 100 and down at 200 of 400 ms; the axis ends at 5 GiB.
        self.assertIn('points="0.0,800.0 250.0,800.0 250.0,0.0 500.0,0.0 500.0,600.0 1000.0,600.0"', text)
        # The table: the most in each 20th of the step.
        for row in ("60 to 80</td><td>1.0 GiB</td><td>1.0 GiB", "80 to 100</td><td>5.0 GiB</td><td>1.0 GiB",
                    "120 to 140</td><td>5.0 GiB</td><td>1.0 GiB", "380 to 400</td><td>2.0 GiB</td><td>3.0 GiB"):
            self.assertIn(f"<td>{row}</td>", text)
        for memory, message in (([[5, 1]], "does not begin at 0 ms"), ([[0, 1], [2, 1], [1, 1]], "and ascend"),
                                ([[0]], r'"memory" has \[0\]'), ([[0, "x"]], '"bytes" is "x"'), ([], "does not begin"),
                                (None, '"memory" is null: expected a list')):
            self.refused(message, self.write("p.json", prediction(stages=[{**stages[0], "memory": memory}])))

    def test_predictions_and_runs_stand_beside_each_other(self):
        names = [self.run_folder(), self.write("two.json", prediction()),
                 self.write("rival.json", prediction(step_s=0.5, plan_hash="ff")),
                 self.write("four.json", prediction(step_s=0.25, plan_hash="fe", ranks=4))]
        headings = self.headings(*names)
        self.assertIn("two.json is 1.250 times as fast as rival.json (predicted, h200)", headings)
        self.assertIn("From 2 to 4 ranks, speed grows to 80.0 % of the ideal (predicted, h200, 4,096 tokens a step)",
                      headings)
        self.assertIn("The prediction is off by 20.0 %", headings)
        self.assertIn("two.json: the predicted plan takes core attention's max/mean from 1.500 to 1.050", headings)

    def test_a_search_for_the_best_setting_stands_against_its_rivals(self):
        text, _ = self.page(self.write("best.json", search()))
        self.assertIn("A step takes 4 s with the best setting of ours", text)
        self.assertIn("Tensors take at most 1.0 GiB of a rank at a time, predicted, h200 (best.json: ours: 8 x 1", text)
        setting = "8 x 1 x 8, ping-pong"
        self.assertIn(f"ours: {setting} is 1.250 times as fast as wlb: {setting} (predicted, h200)", text)
        self.assertIn("<td>666.7</td>", text)  # 2000 tokens in the 3 s that ranks compute

    def test_the_trace_in_the_folder_of_a_run_is_taken_with_it(self):
        self.trace(f"{self.run_folder()}/mine.json")
        self.write("run/config.toml", '[plan]\nscheduler = "balanced"\n[train]\ntrace = "elsewhere/mine.json"\n')
        text, page = self.page("run")
        self.assertEqual(page.counts["canvas"], 1)
        self.assertIn("balanced, within", text)
        self.assertEqual(self.page("run", "run/mine.json", "./run", out="again.html")[0], text)

    def test_texts_of_files_are_shown_and_never_markup(self):
        self.write(f"{ODD}/config.toml", '[plan]\nscheduler = "<script>alert(1)</script>"\n')
        better = {"number": "<i>", "step_shorter": 1, "source": "<i>"}
        odd = prediction(machine="</script><i>", better_by_a_fifth=[better])
        root = json.loads(trace_test.file_of(trace_test.two_ranks()))
        root["traceEvents"][1]["name"] = "</script><i>plan"
        text, page = self.page(self.run_folder(ODD, overlap="<i>"), self.write("<i>.json", odd),
                               self.write("t<i>.json", root))
        for tag in ("b", "i"):
            self.assertEqual(page.counts.get(tag, 0), page.counts["figure"] if tag == "b" else 0)
        self.assertEqual(page.counts["script"], 2)  # the timeline's data and the program
        self.assertIn("&lt;b&gt;&amp;&#x27;run", text)
        self.assertIn("\\u003c/script>\\u003ci>plan", text)

    def test_equal_inputs_make_equal_bytes(self):
        words = [self.run_folder(), self.trace(), self.write("one.json", prediction())]
        self.assertEqual(self.page(*words)[0], self.page(*words, out="again.html")[0])

    def test_a_page_stays_small(self):
        self.run_folder(steps=20_000)
        events = trace_test.two_ranks()
        step = [one for one in events if one["cat"] == "step"]
        many = [{**one, "ts": one["ts"] + 100 * index} for index in range(8000) for one in events if one not in step]
        for one in step:
            one["dur"] = 800_000
        text, _ = self.page("run", self.write("long.json", json.loads(trace_test.file_of(step + many))))
        self.assertLess(len(text), 1_000_000)
        self.assertRegex(text, "Neighbouring events that together take less than 0.[0-9]+ ms are drawn as one")
        data = json.loads(re.search(r'id="figure-1-data">(.*?)</script>', text)[1])
        self.assertEqual(len(data["ranks"]), 2)
        for rank in data["ranks"]:
            self.assertLess(len(rank["compute"]), 5 * 10_001)
            self.assertGreater(len(rank["compute"]), 5 * 2000)
            begin = 0
            for before, length in zip(rank["compute"][::5], rank["compute"][1::5]):
                self.assertGreaterEqual(before, 0)
                begin += before
                self.assertLessEqual(begin + length, data["length"])
        self.assertIn("Each point is the mean of 100 steps.", text)

    def test_an_older_page_is_replaced_through_its_link_and_keeps_its_permissions(self):
        (self.folder / "pages").mkdir()
        (self.folder / "pages/old.html").write_text("old")
        os.chmod(self.folder / "pages/old.html", 0o640)
        (self.folder / "link.html").symlink_to("pages/old.html")
        self.page(self.trace(), out="link.html")
        self.assertTrue((self.folder / "link.html").is_symlink())
        self.assertEqual((self.folder / "pages/old.html").stat().st_mode & 0o777, 0o640)
        self.assertEqual(list((self.folder / "pages").iterdir()), [self.folder / "pages/old.html"])
        self.page(self.trace(), out="new/folder/page.html")

    def test_what_cannot_be_drawn_is_refused_in_one_line(self):
        (self.folder / "empty").mkdir()
        self.refused("empty: not the folder of a run: it has no metrics.jsonl", "empty")
        self.refused("absent.json: cannot be read: No such file", "absent.json")
        self.refused("two lines: cannot be read: No such file", "two\nlines")
        self.refused("text: byte 1 is not JSON", self.write("text", "words"))
        self.refused("bytes: byte 2 is not UTF-8", self.bytes("bytes", b'"\xff"'))
        for thing in ({}, [], 3, {"plan_hash": "", "step_s": 1}):
            self.refused("other.json: neither the folder of a run, nor a trace, nor", self.write("other.json", thing))
        self.refused("t.json: not a trace that ", self.write("t.json", {"traceEvents": []}))
        self.refused('"step_s" is 0: expected a number', self.write("p.json", prediction() | {"step_s": 0}))
        self.refused('"busy_s" is "x": expected a number', self.write("p.json", prediction(busy_s="x")))
        self.refused("unequal lengths", self.write("p.json", prediction(load_after=[1])))
        self.refused('"stages" is null: expected a list', self.write("p.json", {**prediction(), "stages": None}))
        self.refused('best.json: not what .*: no "best"',
                     self.write("best.json", search() | {"contestants": [{"name": "a"}]}))
        self.refused("trace.json: --out would replace an input", self.trace(), out="./trace.json")

    def bytes(self, name, content):
        (self.folder / name).write_bytes(content)
        return name

    def test_a_page_needs_a_name(self):
        ran = self.ran(PROGRAM, "report", self.trace())
        self.assertEqual(ran.returncode, 2)
        self.assertIn("--out is required", ran.stderr)

    def test_damaged_runs_are_refused_in_one_line(self):
        for lines, message in (((), "run/metrics.jsonl: it has no step yet"),
                               (("{",), "run/metrics.jsonl: it has no step yet"),  # the line may be under way
                               (("{\n",), "run/metrics.jsonl line 1: byte 2 is not JSON"),
                               (("NaN\n",), "line 1: byte 1 is not JSON: NaN"),
                               (("[]\n",), r"line 1: expected an object, found \[\]"),
                               ((line_of(1), {}), 'line 2: no "step"'),
                               ((line_of(1, step_s=-1),), 'line 1: "step_s" is -1'),
                               ((line_of(1, loss="x"),), 'line 1: "loss" is "x"'),
                               ((line_of(1, peak_bytes=[None]),), 'line 1: "peak_bytes" is null')):
            self.write("run/metrics.jsonl", *lines)
            self.refused(message, "run")
        self.run_folder()
        self.write("run/config.toml", "[plan\n")
        self.refused("run/config.toml: not TOML", "run")

    def test_a_page_that_cannot_be_written_leaves_nothing(self):
        name = self.trace()
        (self.folder / "taken").mkdir()
        self.refused("taken: cannot be written: it is a folder", name, out="taken", code=1)
        self.refused("cannot be written: Not a directory", name, out="trace.json/page.html", code=1)
        self.refused("/proc/page.html: cannot be written", name, out="/proc/page.html", code=1)
        ran = self.ran("sh", "-c", f"trap '' XFSZ; ulimit -f 4; '{PROGRAM}' report {name} --out page.html")
        self.assertEqual((ran.returncode, ran.stderr),
                         (1, "distca: error: page.html: cannot be written: File too large\n"))
        self.assertEqual(sorted(self.folder.iterdir()), [self.folder / "taken", self.folder / name])


if __name__ == "__main__":
    unittest.main()

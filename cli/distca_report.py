"""One page about runs, traces and predictions: `distca report` goes on as this program (cli/report.cc).

  python3 distca-report OUT INPUT...

docs/report.md says what is on it. The same inputs make the same bytes.
"""

import os
import pathlib
import signal
import stat
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent))  # last: nothing there stands in for a module of Python's
import distca_report_figures as of_metrics  # noqa: E402
import distca_report_trace as of_traces  # noqa: E402
from distca_report_input import Prediction, Run, Search, Trace, read_inputs  # noqa: E402
from distca_report_page import of_each, page  # noqa: E402
from distca_report_svg import number_text  # noqa: E402
from distca_trace_file import fail  # noqa: E402


def described(one):
    """A row of the table of inputs: kind, file, ranks, steps, and what else is known."""
    if isinstance(one, Run):
        words = [one.key("plan", "scheduler"), one.lines[-1].get("overlap"), one.lines[-1].get("kernel"),
                 f"{number_text(one.lines[-1]['tokens'])} tokens a step"]
        return ["run, measured", one.name, str(one.ranks() or ""), one.steps(),
                ", ".join(str(word) for word in words if word)]
    if isinstance(one, Trace):
        of = one.other
        kind = f"trace, predicted for machine {one.machine}" if one.machine else "trace, measured"
        return [kind, one.name, str(one.sums.num_ranks), one.steps(),
                f"overlap {of['overlap']}, commit {of['commit']}, version {of['version']}"]
    if isinstance(one, Search):
        return ["search for the best setting, predicted", one.name, str(one.ranks), f"step {one.step}",
                f"machine {one.machine}"]
    return ["step, predicted", one.name, str(one.ranks or ""), f"step {one.step}",
            f"machine {one.machine}, plan hash {one.plan_hash}"]


def page_of(inputs):
    traces, runs, predictions, searches = ([one for one in inputs if isinstance(one, kind)]
                                           for kind in (Trace, Run, Prediction, Search))
    figures = [*of_each(traces, lambda trace: of_traces.timeline(trace, of_traces.MOST_EVENTS // len(traces))),
               *of_each(traces, of_traces.where_time_went), *of_each(predictions, of_metrics.parts_of_prediction),
               *of_each(searches, of_metrics.parts_of_search),
               *of_each(runs, of_metrics.balance_of_run), *of_each(runs, of_metrics.attention_of_run),
               *of_each(predictions, of_metrics.loads_of_prediction),
               *of_each(predictions, of_metrics.memory_over_time), *of_each(traces, of_traces.exchange_matrix),
               *of_metrics.figures_of_all(runs, predictions, searches)]
    if not figures:
        fail(f"{inputs[0].name}: nothing in it can be drawn")
    names = [one.name for one in inputs]
    title = f"DistCA report of {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    header = ("kind", "file", "ranks", "steps", "more")
    return page(title, (header, [described(one) for one in inputs]), figures)


def write_into(out, text):
    """Writes as cp would: a link is followed, a device is written into. A file is replaced once the new one is whole.
    """
    path = os.path.realpath(out)
    mode = os.stat(path).st_mode if os.path.exists(path) else None
    if mode is not None and stat.S_ISDIR(mode):
        raise IsADirectoryError(None, "it is a folder")
    if mode is not None and not stat.S_ISREG(mode):
        with open(path, "wb") as file:
            file.write(text)
        return
    folder, name = os.path.split(path)
    if not os.path.exists(folder):
        os.makedirs(folder)
    partial = os.path.join(folder, f".{name}.{os.getpid()}.partial")
    try:
        with open(partial, "xb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, path)
    except BaseException:
        if os.path.exists(partial):
            os.unlink(partial)
        raise


def main():
    out, *names = sys.argv[1:]
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file that may not grow is a failed write like any other
    try:
        inputs = read_inputs(names)
        if any(os.path.realpath(out) == os.path.realpath(one.file) for one in inputs):
            fail(f"{out}: --out would replace an input")
        text = page_of(inputs).encode("utf-8")
        write_into(out, text)
    except MemoryError:
        fail("out of memory", 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        fail(f"{out}: cannot be written: {error.strerror}", 1)
    try:
        print(f"{out}: {len(text) / 1000:,.0f} kB, open it in a browser", flush=True)
    except OSError as error:
        fail(f"stdout: {error.strerror}", 1)


if __name__ == "__main__":
    main()

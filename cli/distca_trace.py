"""Where each millisecond of traced steps went: `distca trace` goes on as this program (cli/trace.cc).

  python3 distca-trace FILE AGAINST {json|text}

AGAINST is another trace, or empty. docs/trace.md has the definitions. All times are whole nanoseconds, until they are printed.
"""

import json
import pathlib
import signal
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent))  # last: nothing there stands in for a module of Python's
from distca_trace_against import Against  # noqa: E402
from distca_trace_file import fail, read_trace  # noqa: E402
from distca_trace_report import Report  # noqa: E402
from distca_trace_sums import Analysis  # noqa: E402


def analysis_of(path):
    return Analysis(path, *read_trace(path))


def report_of(path, against):
    """What is printed of a trace or, with another one, of how that differs: in the steps that both have, if there are any."""
    if not against:
        return Report(analysis_of(path))
    traces = [(one, *read_trace(one)) for one in (path, against)]
    steps = [{event.step for event in events if event.kind == "step"} for *_, events in traces]
    both = steps[0] & steps[1]
    first, second = (Analysis(one, other, [event for event in events if not both or event.step in both])
                     for one, other, events in traces)
    return Against(path, first, against, second)


def main():
    path, against, form = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        report = report_of(path, against)
        text = report.text() if form == "text" else json.dumps(report.json(), sort_keys=True, separators=(",", ":")) + "\n"
        with open(1, "w", encoding="utf-8", closefd=False) as out:
            out.write(text)
    except MemoryError:
        fail("out of memory", 1)
    except OSError as error:
        fail(f"stdout: {error.strerror}", 1)


if __name__ == "__main__":
    main()

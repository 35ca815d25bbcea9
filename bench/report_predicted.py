"""What bench/report.py prints of bench/predicted.py."""

import hashlib
import json
from statistics import median

from report_figures import of

TEXT = """\
Steps that were predicted first (distca simulate, by prices of distca profile --machine) and measured after, {rounds} runs
of {steps} steps each, of which the first step does not count; two ranks. Off: the predicted time of these steps over the
measured one, the sum of medians over runs. Spread: the longest run over the shortest one; above {most_spread:.0%}, a
configuration is shown and not judged."""
MOST_SPREAD = 0.05


def sums(steps):
    return sum(step["s"] for step in steps)


def measured(runs):
    """The sum over steps of the median over runs."""
    return sum(median(run["steps"][place]["s"] for run in runs) for place in range(len(runs[0]["steps"])))


def hashes(steps):
    return [(step["step"], step["plan_hash"]) for step in steps]


def predicted(out, head, lines):
    runs = {name: [line for line in of(lines, "run") if line["name"] == name] for name in head["configurations"]}
    out.say(TEXT.format(most_spread=MOST_SPREAD, **head))
    predictions = {}
    for said in of(lines, "predicted"):
        predictions |= said["steps"]
        text = json.dumps(said["steps"], sort_keys=True)
        is_right = hashlib.sha256(text.encode()).hexdigest() == said["sha256"]
        first_end = min((run["at"] for run in of(lines, "run") if run["of"] == said["of"]), default="never")
        out.say(f"{said['of']}: predicted at {said['at']}, sha256 {said['sha256'][:16]}"
                f"{'' if is_right else ', NOT that of the predictions'}; its first run ended at {first_end}")
    out.say("")
    rows, errors, memory = [], [], []
    for name, all_of in runs.items():
        if not all_of:
            continue
        steps = predictions[name]
        if any(hashes(run["steps"]) != hashes(steps) for run in all_of):
            raise ValueError(f"{name}: the plans that ran are not those that were predicted")
        times = [sums(run["steps"]) for run in all_of]
        spread, error = max(times) / min(times) - 1, sums(steps) / measured(all_of) - 1
        judged = spread <= MOST_SPREAD
        if judged:
            errors.append(error)
        peak = max(step["peak_bytes"] for run in all_of for step in run["steps"])
        memory.append(max(step["peak_bytes"] for step in steps) / peak - 1)
        rows.append(f"{name}|{sums(steps):.3f}|{measured(all_of):.3f}|{100 * error:+.1f} %|{100 * spread:.1f} %|"
                    f"{100 * memory[-1]:+.1f} %|{'' if judged else 'not judged'}")
    out.table("configuration|predicted s|measured s|off|spread|peak off|", rows)
    if not errors:
        return
    sizes = sorted(abs(error) for error in errors)
    out.say(f"\n{len(errors)} of {len(rows)} judged")
    for figure, reached in (("worst", sizes[-1]), ("median", median(sizes))):
        if bar := out.judge_exact(figure, reached):
            out.say(f"{figure}: {100 * reached:.1f} %; bar {100 * bar['at_most']:g} %: {bar['verdict']}")

"""What bench/report.py prints of bench/python.py."""

from statistics import median

from report_figures import estimate, figure_of, model_text, ms, of, quotient

TEXT = """\
A Llama of Transformers {transformers} under PyTorch DDP over Gloo, forward and backward; 2 processes, each with 1 thread
pinned to a core, {tokens:,} tokens each. Documents have real lengths divided by {scale}, packed into rows and cut where a
row ends. A step of {rows} rows is played by two of them: the one with the most attention and the median one. sdpa:
PyTorch's operator for each document. alone: DistCA's kernel, each rank for itself. balanced: attention shared out, lengths
and plans one batch ahead. linear: without core attention. A step lasts from a barrier to the later rank's end; rank 0, 1:
until its own gradients are complete. Freed memory stays with the process. Ratios: median over {rounds} interleaved rounds
with its 95 % interval; A/A: the same arm against itself in the same rounds."""


def seconds(rounds, arm):
    return [max(rank["step_s"] for rank in line["arms"][arm]) for line in rounds]


def computed(line, arm):
    return [rank["computed_s"] for rank in line["arms"][arm]]


def least_gain(line):
    """What balance alone can bring by measured parts: the longest attention beside the mean one, above linear work."""
    linear = max(computed(line, "linear"))
    attention = [max(0, whole - rest) for whole, rest in zip(computed(line, "alone"), computed(line, "linear"))]
    return (linear + max(attention)) / (linear + sum(attention) / len(attention))


def judged(out, name, values, again, figure, **facts):
    of_values = figure_of(values, again, out.bar(figure, **facts))
    bar = "" if of_values.bar is None else f"; bar {of_values.bar:g}: {out.judge(of_values, name)}"
    reached = of_values.reached
    out.say(f"{name}: {reached.median:.3f} ({reached.text()}), A/A {of_values.control.text()}{bar}")


def source(out, name, rounds):
    steps = {arm: seconds(rounds, arm) for arm in rounds[0]["arms"]}
    pairs = [max(line["pairs"]) / (sum(line["pairs"]) / len(line["pairs"])) for line in rounds]
    out.section = name
    out.say(f"\n## {name}\nthe longer rank's (query, key) pairs over the mean: {median(pairs):.2f}")
    rows = []
    for arm, times in steps.items():
        own = [ms(median(computed(line, arm)[rank] for line in rounds)) for rank in (0, 1)]
        over = estimate(quotient(times, steps["balanced"]))
        rows.append(f"{arm}|{ms(median(times))}|{own[0]}|{own[1]}|{over.median:.3f}|{over.text()}")
    out.table("arm|step ms|rank 0 ms|rank 1 ms|times balanced|95 %", rows)
    out.say()
    alone, balanced, again = steps["alone"], steps["balanced"], steps["balanced again"]
    uneven = name != "even"
    judged(out, "sdpa / alone", quotient(steps["sdpa"], alone), quotient(steps["sdpa"], steps["alone again"]), "kernel",
           uneven=uneven)
    gain, gain_again = quotient(alone, balanced), quotient(alone, again)
    judged(out, "alone / balanced", gain, gain_again, "balanced" if uneven else "even")
    if uneven:
        ideal = [least_gain(line) for line in rounds]
        out.say(f"(linear + longest attention) / (linear + mean attention): {median(ideal):.3f} ({estimate(ideal).text()})")
        judged(out, "alone / balanced, of that", quotient(gain, ideal), quotient(gain_again, ideal), "of_ideal")
    judged(out, "alone / ping-pong", quotient(alone, steps["ping-pong"]), quotient(alone, steps["ping-pong"]), "ping_pong")
    waits = [max(rank["planning_s"] for rank in line["arms"]["balanced"]) / step for line, step in zip(rounds, balanced)]
    entry = out.judge_exact("planning_share", estimate(waits).high, source=name)
    out.say(f"waits for lengths and plans, of a step: {100 * median(waits):.3f} %, at most "
            f"{100 * estimate(waits).high:.3f} % (95 %); bar {100 * entry['at_most']:g} %: {entry['verdict']}")


def python(out, head, lines):
    out.say(TEXT.format_map(head) + f"\nmodel: {model_text(head)}")
    (side,) = of(lines, "python_side")
    ranks = side["ranks"]
    cells = {name: [1e3 * rank[name] for rank in ranks] for name in ranks[0]}
    for name, shown in (("alone", "distca.transformers"), ("ping-pong", "distca.transformers with ping-pong")):
        more = max(a - b for a, b in zip(cells[name], cells["sdpa"]))
        entry = out.judge_exact("python_ms", more, arm=name)
        out.say(f"{shown}: a layer and nano-batch of 8 tokens takes {max(cells[name]):.3f} ms, {more:+.3f} ms beside sdpa, "
                f"forward and backward; bar {entry['at_most']:g} ms: {entry['verdict']}")
    for name in head["sources"]:
        source(out, name, [line for line in of(lines, "round") if line["source"] == name])

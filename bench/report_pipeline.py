"""What bench/report.py prints of pipelines (bench/pipeline.cc)."""

from statistics import median

from report_figures import Figure, estimate, figure_of, groups, of, quotient, ratio

OURS, AGAIN = "aligned, whole even", "aligned, whole even, again"
HOME = ("1F1B, pairs", "1F1B, single nano-batches")
WAITS = ("aligned, 1 outstanding", "aligned, 2 outstanding")


def seconds_of(rounds, arm):
    return [line["arms"][arm]["s"] for line in rounds if arm in line["arms"]]


def judged(out, what, figure):
    """A line with a figure's verdict."""
    bar = "" if figure.bar is None else f", bar {figure.bar:.2f}: {out.judge(figure, what)}"
    return f"{what}: {figure.reached.median:.3f} ({figure.reached.text()}), A/A {figure.control.text()}{bar}"


TEXT = """\
Two stages of a small Llama in fp32, a process and a core each, {micro_batches} micro-batches of two nano-batches;
weights are not updated. Speeds are measured in steps of 1F1B before all else, and plans are made with them, to a
tolerance of .002. least and closed-form idle: of the ticks' closed form at these speeds. step: from a barrier to the
end of the last rank. idle: mean over ranks of waits for messages and for the last rank, over the step. exchange:
processor time of a rank, of the step, that is not an operation of the compute stream: packing, messages and the group's
threads. Rounds take {batches} batches in turn; {rounds} rounds, {shown_rounds} of what is only shown. Ratios and A/A as
in every benchmark."""


def pipeline(out, head, lines):
    settings = groups(lines, "setting")
    out.say(TEXT.format_map(head | settings[0][0] | {"batches": len(of(settings[0], "plan"))}))
    for speeds, group in zip(of(lines, "speeds"), settings, strict=True):
        setting_of(out, speeds, group)


def setting_of(out, speeds, lines):
    out.section = lines[0]["name"]
    setting, plans, rounds = lines[0], of(lines, "plan"), of(lines, "round")
    share = median(plan["attention_share"] for plan in plans)
    out.say(f"\n## {setting['name']}\n{setting['model']['num_hidden_layers']} layers, hidden {setting['model']['hidden_size']}, "
            f"intermediate {setting['model']['intermediate_size']}, heads {setting['model']['num_attention_heads']}:"
            f"{setting['model']['num_key_value_heads']}, head_dim {setting['model']['head_dim']}; nano-batches of "
            f"{setting['tokens']:,} tokens; core attention {100 * share:.1f} % of the computing, measured")
    for name, unit in (("linear", "a token"), ("attention", "a thousand pairs")):
        forward, backward = speeds[f"{name}_ns"]
        out.say(f"{name}: {forward:,.0f} ns {unit} forward, {backward:,.0f} backward ({backward / forward:.2f} times), all layers "
                "of a stage")
    ours, again = (seconds_of(rounds, arm) for arm in (OURS, AGAIN))
    rows = []
    for name in rounds[0]["arms"]:
        at = [line["arms"][name] for line in rounds if name in line["arms"]]
        beside = [seconds for line, seconds in zip(rounds, ours) if name in line["arms"]]
        played = seconds_of(rounds, name)
        found = ratio(played, beside)
        rows.append(f"{name}|{len(at)}|{median(played):.3f}|{found.median:.3f}|{found.text()}|"
                    f"{100 * median(a['idle_share'] for a in at):.1f}|{100 * median(a['core_idle_share'] for a in at):.1f}|"
                    f"{100 * median(a['exchange_processor_s'] / a['s'] for a in at):.1f}|"
                    f"{median(a['computed_s'] for a in at):.3f}|{median(a['attention_s'] for a in at):.3f}")
    out.table("arm|rounds|step s|/ ours|95 %|idle %|core idle %|exchange %|computed s|attention s", rows)
    facts = {"judged": setting["judged"], "attention_share": share}
    home = min(HOME, key=lambda name: median(seconds_of(rounds, name)))
    theirs = seconds_of(rounds, home)
    figure = figure_of(quotient(theirs, ours), quotient(theirs, again), out.bar("real_over_home", **facts))
    out.say(judged(out, f"{home}, over ours", figure))
    for name in WAITS:
        waits = seconds_of(rounds, name)
        figure = figure_of(quotient(ours, waits), quotient(ours, again), out.bar("real_waits", **facts))
        out.say(judged(out, f"{OURS}, over {name}", figure))
    closed = [1 - (plan["linear_s"] + plan["attention_s"] + plan["ends_s"]) / plan["least_s"] for plan in plans]
    above, itself = [], []
    for line in rounds:
        idle, idle_again = (line["arms"][arm]["idle_share"] for arm in (OURS, AGAIN))
        above.append(idle - closed[line["batch"]])
        itself.append(idle - idle_again)
    figure = Figure(estimate(above), estimate(itself), len(above), out.bar("real_idle", **facts), is_difference=True)
    verdict = "" if figure.bar is None else f", bar {100 * figure.bar:.0f}: {out.judge(figure, 'idle above the closed form')}"
    out.say(f"idle above the closed form ({100 * median(closed):.1f} %), in points: {100 * figure.reached.median:.2f} "
            f"({figure.reached.text(2, times=100)}), A/A {figure.control.text(2, times=100, sign='+')}{verdict}")

"""What bench/report.py prints of pipelines; the parts are those of bench/pipeline.cc."""

from statistics import median

from report_figures import Figure, estimate, figure_of, groups, of, quotient, ratio

PACED = """\
P stages of {layers} layers each, M micro-batches of two nano-batches of {tokens:,} tokens; a process a rank, messages over Gloo. Each
operation of the compute stream sleeps its price: linear work of a layer {linear:.0f} ms a nano-batch forward and twice that
backward, core attention by its pairs, backward 2.5 times; embedding and loss nothing. So the figures show order, waits and
p2p messages, and nothing of kernels. least: the sum of the ticks' closed form, max(l, (n l + A) / P) where whole work is evened
and l + A / P where attention alone is; planned: of the ticks as they were planned; tick: the worst planned tick over its
closed form; modelled: what the programs take if messages take no time. step: median, from a barrier to the end of the last
rank. outstanding: micro-batches whose weight gradients may wait (1F1B, zero bubble: of as many as stages). late: how much longer than its prices a rank slept. processor: of a core, a rank's whole processor time; exchanges: what
of it the same sleeps do not take if nothing is sent; of the rank with most. Our arm is played twice a round (A/A). {rounds} rounds of ours; of the other arms {shown_rounds}, and {contest_rounds} where they
are compared."""

OURS, AGAIN, EVEN = "aligned, whole even", "aligned, whole even, again", "aligned, attention even"
HOME = ("1F1B, pairs", "1F1B, single nano-batches")
# Paced: weight gradients may wait.
WAITS, WAITS_AGAIN, MIXED = "aligned, 2 outstanding", "aligned, 2 outstanding, again", "mixed, 2 outstanding"
ZERO_BUBBLE = "1F1B, zero bubble"
REAL_WAITS = ("aligned, 1 outstanding", WAITS)
PACED_ARMS = (WAITS, WAITS_AGAIN, "aligned, 1 outstanding", OURS, MIXED, "mixed", EVEN, ZERO_BUBBLE, *HOME)


def seconds_of(rounds, arm):
    return [line["arms"][arm]["s"] for line in rounds if arm in line["arms"]]


def judged(out, what, figure, times=True):
    """A line with a figure's verdict. `times`: as how many times as long as the other, its inverse."""
    shown = figure.reached.inverse() if times else figure.reached
    if figure.bar is None:
        bar = ""
    else:
        bar = f", bar {1 / figure.bar if times else figure.bar:.2f}: {out.judge(figure)}"
    return f"{what}: {shown.median:.3f} ({shown.text()}), A/A {figure.control.text()}{bar}"


def paced(out, head, lines):
    settings = groups(lines, "setting")
    out.say(PACED.format_map(head | settings[0][0] | {"linear": 1e3 * settings[0][0]["linear_s"]}))
    for group in settings:
        paced_setting(out, group)


def paced_setting(out, lines):
    setting, rounds = lines[0], of(lines, "round")
    arms = {arm["arm"]: arm for arm in of(lines, "arm")}
    facts = {key: setting[key] for key in ("stages", "replicas", "micro_batches", "attention_share")}
    out.say(f"\n## {setting['name']}")
    ours, again = (seconds_of(rounds, arm) for arm in (WAITS, WAITS_AGAIN))
    rows = []
    for name in PACED_ARMS:
        arm, played = arms[WAITS if name == WAITS_AGAIN else name], seconds_of(rounds, name)
        if not played:
            continue
        beside = [seconds for line, seconds in zip(rounds, ours) if name in line["arms"]]
        at = [line["arms"][name] for line in rounds if name in line["arms"]]
        ticks = (f"{arm['least_s']:.3f}|{arm['over_least']:.3f}|{arm['planned_s']:.3f}" if "planned_s" in arm else "-|-|-")
        rows.append(f"{name}|{len(played)}|{ticks}|{arm['modelled_s']:.3f}|{median(played):.3f}|"
                    f"{median(played) / arm['busy_s']:.3f}|{ratio(played, beside).median:.3f}|"
                    f"{100 * median(a['late_s'] for a in at) / median(played):.2f}|"
                    f"{100 * median(a['processor_share'] for a in at):.2f}")
    out.table("arm|rounds|least s|tick|planned s|modelled s|step s|/ busy|/ ours|late %|processor %", rows)
    for name in (WAITS, EVEN):
        tick = out.judge_exact("tick", arms[name]["over_least"], **facts)
        if tick:
            out.say(f"{name}, worst tick over its closed form: {tick['reached']:.3f}, bar {tick['at_most']}: {tick['verdict']}")
    share = median(line["arms"][arm]["exchange_share"] for line in rounds for arm in (WAITS, WAITS_AGAIN))
    if found := out.judge_exact("exchange_share", share, **facts):
        out.say(f"ours, exchanges of a core: {100 * share:.2f} %, bar {100 * found['at_most']:.0f} %: {found['verdict']}")
    planned = [arms[WAITS]["planned_s"]] * len(ours)
    figure = figure_of(quotient(planned, ours), quotient(planned, again), out.bar("played", **facts))
    # Sleeps are steadier than kernels: the bar says how many rounds decide.
    figure.least_rounds = out.entry("played", **facts).get("rounds", figure.least_rounds)
    out.say(judged(out, "ours, played over the sum of its planned ticks", figure))
    for name in (WAITS, MIXED):
        played = seconds_of(rounds, name)
        if not played:
            continue
        busy = [arms[name]["busy_s"]] * len(played)
        twice = [s * b / a for s, a, b in zip(played, ours, again)]  # as far from itself as ours is
        figure = figure_of(quotient(busy, played), quotient(busy, twice), out.bar("busy", arm=name, **facts))
        figure.least_rounds = out.entry("busy", arm=name, **facts).get("rounds", figure.least_rounds)
        out.say(judged(out, f"{name}, step over the time for which ranks are busy", figure))
    if not setting["contest"]:
        return
    home = min(HOME, key=lambda name: median(seconds_of(rounds, name)))
    for figure_name, rival in (("over_home", home), ("over_zero_bubble", ZERO_BUBBLE), ("over_paper", EVEN)):
        theirs = seconds_of(rounds, rival)
        found = figure_of(quotient(theirs, ours), quotient(theirs, again), out.bar(figure_name, **facts))
        out.say(judged(out, f"{rival}, over ours", found, times=False))


REAL = """\
Two stages of a small Llama in fp32, a process and a core each, {micro_batches} micro-batches of two nano-batches;
weights are not updated. Speeds are measured in steps of 1F1B before all else, and plans are made with them, to a
tolerance of .002. least and closed-form idle: of the ticks' closed form at these speeds. step: from a barrier to the
end of the last rank. idle: mean over ranks of waits for messages and for the last rank, over the step. exchange:
processor time of a rank, of the step, that is not an operation of the compute stream: packing, messages and the group's
threads. Rounds take {batches} batches in turn; {rounds} rounds, {shown_rounds} of what is only shown. Ratios and A/A as
in every benchmark."""


def real(out, head, lines):
    settings = groups(lines, "setting")
    out.say(REAL.format_map(head | settings[0][0] | {"batches": len(of(settings[0], "plan"))}))
    for speeds, group in zip(of(lines, "speeds"), settings):
        real_setting(out, speeds, group)


def real_setting(out, speeds, lines):
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
    out.say(judged(out, f"{home}, over ours", figure, times=False))
    for name in REAL_WAITS:
        waits = seconds_of(rounds, name)
        figure = figure_of(quotient(ours, waits), quotient(ours, again), out.bar("real_waits", **facts))
        out.say(judged(out, f"{OURS}, over {name}", figure, times=False))
    closed = [1 - (plan["linear_s"] + plan["attention_s"] + plan["ends_s"]) / plan["least_s"] for plan in plans]
    above, itself = [], []
    for line in rounds:
        idle, idle_again = (line["arms"][arm]["idle_share"] for arm in (OURS, AGAIN))
        above.append(idle - closed[line["batch"]])
        itself.append(idle - idle_again)
    figure = Figure(estimate(above), estimate(itself), len(above), out.bar("real_idle", **facts), is_difference=True)
    verdict = "" if figure.bar is None else f", bar {100 * figure.bar:.0f}: {out.judge(figure)}"
    out.say(f"idle above the closed form ({100 * median(closed):.1f} %), in points: {100 * figure.reached.median:.2f} "
            f"({figure.reached.text(2, times=100)}), A/A {figure.control.text(2, times=100, sign='+')}{verdict}")


def pipeline(out, head, lines):
    {"paced": paced, "real": real}[head["part"]](out, head, lines)

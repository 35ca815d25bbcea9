"""What bench/report.py prints of whole training steps. Each function is a benchmark's name."""

from statistics import median

from report_figures import Figure, difference, estimate, figure_of, groups, model_text, ms, of, quotient, ratio

# --- wire

WIRE = """\
Two ranks of distca train, each pinned to a core and in a network namespace of its own, joined by a veth pair whose
directions a token bucket limits; a step of two nano-batches, each of one document, sums of gradients and update
included. ping-pong: each rank holds half of a document, and the later half has three times the pairs. counter-phase: the
ranks divide layers. open: ping-pong without a limit, so messages take the processor's time and hardly any other. Ratios:
median over {rounds} interleaved rounds with its 95 % interval; A/A: ping-pong against itself in the same rounds."""


def longest_share(phases):
    """The longest exchange of `none`, under which nothing runs, over what ping-pong would play beside it. Phases are rank
    0's, whose waits hold those for the other rank's messages."""
    shares = []
    for name in ("forward", "backward"):
        linear = phases[f"{name}_pre_attention_ms"] + phases[f"{name}_post_attention_ms"]
        under = min(linear, phases[f"{name}_core_attention_ms"])
        shares += [phases[f"{name}_{exchange}_ms"] / under for exchange in ("dispatch", "combine")]
    return max(shares)


def judge_hidden(out, steps, phases):
    share, most = median(map(longest_share, phases)), out.bar("shorter_share")
    out.say(f"\nlongest exchange of rank 0, of what it may run under: {100 * share:.0f} %")
    figure = figure_of(quotient(steps["open"], steps["ping-pong"]), quotient(steps["open"], steps["ping-pong again"]),
                       out.bar("ping_pong") if share <= most else None)
    over = figure.reached.inverse()
    out.say(f"ping-pong / open: {over.median:.3f} ({over.text()}), A/A {figure.control.text()}, bar "
            f"{1 / out.bar('ping_pong'):.2f}: "
            + (out.judge(figure, "open / ping-pong") if share <= most else f"not judged: the longest exchange may take {100 * most:.0f} %"))


def judge_left(out, steps):
    """The share of what `none` takes longer, since it waits for each message where it stands, that ping-pong takes longer."""
    exposed = {arm: difference(steps[arm], steps["open"]) for arm in ("none", "ping-pong", "ping-pong again")}
    if estimate(exposed["none"]).low <= 0:
        return out.say("\nnot judged: none takes no longer than open, so there is nothing to hide")
    left, again = (quotient(exposed[arm], exposed["none"]) for arm in ("ping-pong", "ping-pong again"))
    figure = Figure(estimate(left), estimate(difference(left, again)), len(left), out.bar("left"), is_difference=True)
    out.say(f"\nlonger than open, of what none is longer: {figure.reached.median:.3f} ({figure.reached.text()}), A/A "
            f"{figure.control.text()}, bar {figure.bar:.2f}: {out.judge(figure, 'left')}")


def wire(out, head, lines):
    out.say(WIRE.format_map(head))
    for name, setting in head["settings"].items():
        out.section = name
        rounds = [line["arms"] for line in of(lines, "round") if line["setting"] == name]
        steps = {arm: [played[arm]["step_s"] for played in rounds] for arm in rounds[0]}
        out.say(f"\n## {name}\n{setting['mb_per_s']} MB/s, documents of {setting['tokens']:,} tokens; the ranks send "
                f"{rounds[0]['none']['bytes_sent'] / 1e6:.1f} MB in a step, without sums of gradients")
        out.table("step|ms|times open|95 %", [f"{arm}|{ms(median(steps[arm]))}|{over.median:.3f}|{over.text()}"
                                              for arm in steps for over in (ratio(steps[arm], steps["open"]),)])
        if name == "counter-phase":
            judge_left(out, steps)
        else:
            judge_hidden(out, steps, [played["none"]["phases"] for played in rounds])


# --- training: whole steps

DOTS = " .. "


def training_arms(lines):
    """[arm] its line, with the rounds' figures by name."""
    rounds = of(lines, "round")
    return [arm | {key: [line["arms"][i][key] for line in rounds] for key in rounds[0]["arms"][i]}
            for i, arm in enumerate(of(lines, "arm"))]


def judge_idle(out, ours, again, control):
    """Idle shares of a step, ours less the control's; ours less ours in turns of its own is what noise does."""
    return Figure(estimate(difference(ours, control)), estimate(difference(ours, again)), len(ours), out.bar("idle"),
                  is_difference=True)


def times_ours(rival, ours, again):
    """A rival's seconds over ours, with ours against itself as the control, and who is faster."""
    figure = Figure(ratio(rival, ours), ratio(again, ours), len(ours), 1)
    return figure, {"reached": "ours is faster", "missed": "the rival is faster"}.get(figure.verdict(), figure.verdict())


def training(out, head, lines):
    out.say("{workers} workers of 1 thread, each pinned to a core\n{nano_batches} x {nano_batch_tokens:,} tokens a step, "
            "{model_text}; {rounds} rounds\nA worker may hold at most {memory_cap} times the mean number of tokens, under "
            "every arm.".format_map(head | {"model_text": model_text(head)}))
    peak = of(lines, "peak")[0]["gflops"]
    out.say(f"Peak of all workers at once: {peak:.0f} GFLOP/s of multiply-adds, measured.")
    for speeds in of(lines, "speeds"):
        for rank, (linear, attend) in enumerate(zip(speeds["linear_ps_per_token"], speeds["attention_ps_per_kload"])):
            out.say(f"Worker {rank}, forward and backward of all layers: {1e-6 * linear:.1f} us a token, core attention "
                    f"{1e-3 * attend:.0f} ns a thousand pairs.")
        out.say(f"A worker sends {speeds['bytes_per_us']} MB/s while the other does.")
    for check in of(lines, "rival_check"):
        out.say("PyTorch DDP: Gloo, documents in order, cut at a worker's end, where a new one begins.\nIts first step and "
                "ours on the same documents: loss {rival_loss:.7f} and {loss:.7f}, gradient norm {rival_gradient_norm:.6f} "
                "and {gradient_norm:.6f}; within {bound:.1e} of each other.".format_map(check))
    for group in groups(lines, "source"):
        training_source(out, head, peak, group)
    out.say("\nstep: from a common start to the last worker's update, median over rounds.\nidle: mean over workers of the "
            "time in waits for exchanges and, at the sum of gradients, for the later worker, over the step.\ncore idle: what "
            "of a worker's core no thread of it used.\n% of peak: FLOP of matrix products and of allowed pairs, over the "
            "peak.")


def training_source(out, head, peak, lines):
    source, arms = lines[0], training_arms(lines)
    out.section = source["name"]
    ways = {arm["arm"]: arm["way"] for arm in arms}
    out.say(f"\n{source['name']}: {source['what']}; control: documents of {source['equal_tokens']:,} tokens\n")
    out.table("way tried|step ms||", [f"{t['arm']}|{1e3 * median(t['seconds']):.0f}|{t['way']}|"
                                      f"{'taken' if t['way'] == ways[t['arm']] else ''}" for t in of(lines, "tried")])
    ours, again, control = arms[:3]
    rows = []
    for arm in arms:
        seconds, times, way = median(arm["seconds"]), "|", arm["way"]
        if arm["role"] in ("again", "rival"):
            figure, conclusion = times_ours(arm["seconds"], ours["seconds"], again["seconds"])
            times = f"{figure.reached.median:.3f}|{figure.reached.text(to=DOTS)}"
            way += f"; {conclusion}" if arm["role"] == "rival" else ""
        peaks = [flops / 1e9 / peak for flops in quotient(arm["flops"], arm["seconds"])]
        rows.append(f"{arm['arm']}|{ms(seconds)}|{head['nano_batches'] * head['nano_batch_tokens'] / seconds:,.0f}|"
                    f"{100 * median(arm['idle_share']):.1f}|{100 * median(arm['core_idle_share']):.1f}|"
                    f"{100 * median(peaks):.1f}|{times}|{way}")
    out.table("\narm|step ms|tokens/s|idle %|core idle %|% of peak|times ours|95 % interval|way", rows)
    out.say(f"\nDDP's cut documents leave it {100 * median(quotient(arms[-1]['flops'], ours['flops'])):.1f} % of our FLOP.")
    idle = judge_idle(out, *(arm["idle_share"] for arm in (ours, again, control)))
    above, itself = (f"{100 * e.median:+.2f} ({e.text(2, DOTS, 100, '+')})" for e in (idle.reached, idle.control))
    out.say(f"Idle, ours less equal documents, in points: {above}; ours less ours again: {itself}; bar {100 * idle.bar:.0f}: "
            f"{out.judge(idle, 'idle above equal documents')}")

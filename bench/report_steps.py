"""What bench/report.py prints of whole training steps. Each function is a benchmark's name."""

from statistics import median

from report_figures import Figure, bar_of, difference, estimate, figure_of, groups, model_text, ms, of, quotient, ratio

# --- overlap

OVERLAP = """\
A training step (forward and backward of two nano-batches; no sum of gradients, which would travel on the same wire) of
two workers in network namespaces of their own, joined by a veth pair whose directions a token bucket limits; each worker
pinned to one core, which it shares with Gloo's thread. Each worker computes some of the other's documents. ms: medians; a
step from a barrier to the end of the slower worker. ideal: ping-pong with exchanges of one byte, plus the processor time
of the exchange: what the step's exchanges, played alone, take of a worker's core, kernel and interrupts included (gaps in
a loop of lowest priority that reads the clock beside them); charged: to the worker's threads. wire: a step's bytes at the
rate measured with both directions busy. Ratios: median over interleaved rounds with its 95 % interval; A/A: ping-pong
against itself in the same rounds. {rounds} rounds, {shown_rounds} of what is only shown."""


class Setting:
    """The lines of one setting of bench/overlap, in figures."""

    def __init__(self, lines):
        self.of, = of(lines, "setting")
        exchanges, = of(lines, "exchanges")
        self.windows, self.step_bytes = exchanges["windows"], exchanges["step_bytes"]
        rounds = of(lines, "round")
        self.steps = {}  # by arm
        for line in rounds:
            for arm, seconds in line["step_s"].items():
                self.steps.setdefault(arm, []).append(seconds)
        self.alone, idle, used, self.charged = (median(line[key] for line in rounds if key in line)
                                                for key in ("alone_s", "idle_share", "used_s", "charged_s"))
        self.processor = used - idle * self.alone  # beyond what an idle core gives up
        one_byte = self.steps["ping-pong, one byte"]
        self.processor_share = self.processor / median(one_byte)
        self.ideal = [seconds + self.processor for seconds in one_byte]
        self.wire = self.step_bytes / self.of["wire_bytes_per_s"]

    def to_ideal(self, arm):
        return quotient(self.steps[arm], self.ideal[:len(self.steps[arm])])

    def to_wire(self, arm):
        return [seconds / self.wire for seconds in self.steps[arm]]

    def reached(self, arm):
        """What ping-pong is judged by: the ideal or the wire over its time."""
        limit = [self.wire] * len(self.ideal) if self.of["length"] == "longer" else self.ideal
        return quotient(limit, self.steps[arm])

    def why_not_judged(self, all_settings):
        """Why it is not what its bar is for; empty if it is. Processor time counts where exchanges are shorter."""
        if not self.of["judged"]:
            return "shown only"
        below, shorter, longer = (bar_of("overlap", name, {}) for name in
                                  ("processor_share", "shorter_share", "longer_times"))
        processor = next((s for s in all_settings if s.of["mb_per_s"] == self.of["mb_per_s"]
                          and s.of["length"] == "shorter"), self).processor_share
        if processor >= below["below"]:
            return (f"the processor time of exchanges is {100 * processor:.1f} % of compute at this rate, not below "
                    f"{100 * below['below']:.0f} %")
        for window in self.windows:
            is_short = self.of["length"] == "shorter"
            beside = window["under_s" if is_short else "longest_s"]
            share_of = window["alone_s"] / beside
            if not (share_of <= shorter["at_most"] if is_short else share_of > longer["above"]):
                return f"{window['pass']} {window['exchange']} takes {ms(window['alone_s'])} ms beside {ms(beside)} ms"
        return ""

    def figure(self, out, all_settings):
        bar = None if self.why_not_judged(all_settings) else out.bar("ping_pong")
        return figure_of(self.reached("ping-pong"), self.reached("ping-pong again"), bar)


def overlap(out, head, lines):
    out.say(f"{OVERLAP.format_map(head)}\nmodel: {model_text(head)}; {head['nano_batches']} nano-batches")
    settings = [Setting(group) for group in groups(lines, "setting")]
    for s in settings:
        out.say(f"\n## {s.of['name']}\n{s.of['swapped_tokens']} of {s.of['tokens']} tokens swapped a worker and nano-batch; "
                f"{s.step_bytes / (1 << 20):.1f} MiB sent a worker and step; wire {s.of['wire_bytes_per_s'] / 1e6:.1f} MB/s\n"
                f"(a step's bytes: {ms(s.wire)} ms); exchanges alone {ms(s.alone)} ms, taking {ms(s.processor)} ms of the "
                f"core (charged {ms(s.charged)} ms):\n{100 * s.processor_share:.1f} % of the step with one byte")
        out.table("exchange|pass|alone ms|runs under|ms|share|longest beside it ms|times as long",
                  [f"{w['exchange']}|{w['pass']}|{ms(w['alone_s'])}|{'attention' if w['under_attention'] else 'linear work'}|"
                   f"{ms(w['under_s'])}|{100 * w['alone_s'] / w['under_s']:.1f} %|{ms(w['longest_s'])}|"
                   f"{w['alone_s'] / w['longest_s']:.2f}" for w in s.windows])
        rows = []
        for arm in ("none", "within", "ping-pong", "ping-pong again", "ping-pong, one byte"):
            to_ideal, to_wire = estimate(s.to_ideal(arm)), estimate(s.to_wire(arm))
            rows.append(f"{arm}|{ms(median(s.steps[arm]))}|{to_ideal.median:.3f}|{to_ideal.text()}|{to_wire.median:.3f}|"
                        f"{to_wire.text()}")
        out.table("step|ms|to ideal|95 %|to wire|95 %", rows)
        figure, why = s.figure(out, settings), s.why_not_judged(settings)
        ratio_of = figure.reached.inverse()
        out.say(f"ping-pong to {'wire' if s.of['length'] == 'longer' else 'ideal'}: {ratio_of.median:.3f} ({ratio_of.text()}), "
                f"bar {1 / out.bar('ping_pong'):.2f}, A/A {figure.control.text()}: "
                f"{f'not judged ({why})' if why else out.judge(figure)}")


# --- counter_phase

COUNTER_PHASE = """2 ranks that divide layers, {layers} layers, 2 nano-batches of {tokens} tokens, {hidden} wide; core attention {attention_ms} ms and
linear work {linear_ms} ms of a layer and nano-batch in forward, which operations sleep; in turn, each message within the
server is waited for where it stands"""


def counter_phase(out, head, lines):
    (setting,), rounds = of(lines, "setting"), of(lines, "round")
    steps = {arm: [line["step_s"][arm] for line in rounds] for arm in rounds[0]["step_s"]}
    out.say(f"{COUNTER_PHASE.format_map(head)}\nwire {setting['wire_bytes_per_s'] / 1e6:.1f} MB/s: a step's bytes {ms(setting['wire_s'])} ms; "
            f"operations of a rank {ms(setting['busy_s'])} ms\n")
    exposed = {arm: difference(steps[arm], steps["in turn, one byte" if arm == "in turn" else "counter-phase, one byte"])
               for arm in ("in turn", "counter-phase", "counter-phase again")}
    out.table("step|ms|waited for messages ms|95 %",
              [f"{arm}|{ms(median(seconds))}|" + (f"{ms(median(exposed[arm]))}|{estimate(exposed[arm]).text(1, times=1e3)}"
                                                  if arm in exposed else "|") for arm, seconds in steps.items()])
    shares, again = (quotient(exposed[arm], exposed["in turn"]) for arm in ("counter-phase", "counter-phase again"))
    figure = Figure(estimate(shares), estimate(difference(shares, again)), len(rounds), out.bar("share"), is_difference=True)
    out.say(f"\nwaited for in counter-phase, of what is in turn: {figure.reached.median:.3f} ({figure.reached.text()}), bar "
            f"{figure.bar:.2f}, A/A {figure.control.text()}: {out.judge(figure)}")


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
                    f"{1e-3 * attend:.0f} ns a thousand {head['load']}.")
        out.say(f"A worker sends {speeds['bytes_per_us']} MB/s while the other does.")
    for check in of(lines, "rival_check"):
        out.say("PyTorch DDP: Gloo, documents in order, cut at a worker's end, where a new one begins.\nIts first step and "
                "ours on the same documents: loss {rival_loss:.7f} and {loss:.7f}, gradient norm {rival_gradient_norm:.6f} "
                "and {gradient_norm:.6f}; within {bound:.1e} of each other.".format_map(check))
    for group in groups(lines, "source"):
        training_source(out, head, peak, group)
    for why in head["absent"]:
        out.say(f"\nnot measured: {why}")
    out.say("\nstep: from a common start to the last worker's update, median over rounds.\nidle: mean over workers of the "
            "time in waits for exchanges and, at the sum of gradients, for the later worker, over the step.\ncore idle: what "
            "of a worker's core no thread of it used.\n% of peak: FLOP of matrix products and of allowed pairs, over the "
            "peak.")


def training_source(out, head, peak, lines):
    source, arms = lines[0], training_arms(lines)
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
    if arms[-1]["arm"] == "PyTorch DDP":
        out.say(f"\nDDP's cut documents leave it {100 * median(quotient(arms[-1]['flops'], ours['flops'])):.1f} % of our FLOP.")
    idle = judge_idle(out, *(arm["idle_share"] for arm in (ours, again, control)))
    above, itself = (f"{100 * e.median:+.2f} ({e.text(2, DOTS, 100, '+')})" for e in (idle.reached, idle.control))
    out.say(f"Idle, ours less equal documents, in points: {above}; ours less ours again: {itself}; bar {100 * idle.bar:.0f}: "
            f"{out.judge(idle)}")

"""Figures of `distca report` that are drawn from traces: timelines, exchange matrices, and where the time went."""

from collections import Counter, defaultdict, namedtuple

from distca_report_page import Figure
from distca_report_svg import bars, escaped, evenly, heat_map, legend, number_text
from distca_trace_report import having, shown_bytes
from distca_trace_sums import stretches

MOST_EVENTS = 40_000  # of all timelines of a page, some 17 bytes each
MOST_RANKS = 12  # that are drawn where all have more events
UNITS = 10**7  # at least so many units of time in a step: more than pixels of any picture
MOST_PAIRS = 100  # rows of a matrix's table
KINDS = ("attention", "linear", "copy", "issue", "wait", "message")  # in the order of distca_report.js
Piece = namedtuple("Piece", "begin end name kind layer nano_batch")
KIND_OF = {"copy": "copy", "launch": "issue", "wait": "wait", "flight": "message"}
MEANINGS = ("core attention", "other compute", "copies", "issuing messages", "waiting", "messages under way")
# The class and the meaning of each part of a step.
PARTS = {"core attention": ("k-attention", "core attention"), "compute": ("k-linear", "other compute"),
         "copies": ("k-copy", "copies"), "issues": ("k-issue", "issuing messages"),
         "gaps": ("k-gap", "between operations"), "bubble": ("k-bubble", "bubble of the pipeline"),
         "imbalance": ("k-wait", "waiting for a late rank (imbalance)"),
         "exposed": ("k-message", "waiting for bytes under way (exposed)"),
         "tensor": ("k-tensor", "waiting for rows of ranks that divide layers"),
         "sums": ("k-sum", "waiting in sums over ranks"), "other": ("k-other", "other waits")}
BUTTONS = (("in", "+", "closer"), ("out", "−", "farther"), ("left", "←", "earlier"), ("right", "→", "later"),
           ("whole", "whole step", "whole step"))


def assumes_of(trace):
    """Sentences that hold for all figures of a trace."""
    if trace.machine:
        alike = trace.other["predicted"].get("alike", 1)
        return [f"Nothing was measured: the step was played by the prices of machine {trace.machine} "
                "(docs/simulator.md).",
                *[f"Each rank stands for {alike} neighbours that do the same at the same time."] * (alike > 1)]
    most = max(rank["clock_uncertainty_s"] for rank in trace.other["ranks"])
    return [f"The ranks' clocks agree to within {most * 1e6:.0f} µs." if most else "All ranks read one clock."]


def median_step(trace):
    """The number of the step that is neither long nor short among those of rank 0."""
    steps = sorted((step["step"], number) for number, step in zip(trace.sums.numbers, trace.sums.steps[0]))
    return steps[(len(steps) - 1) // 2][1]


class TimelineData:
    """The events of a step as lists of numbers: see eventsOf in distca_report.js.

    ranks: the ranks that are drawn. shortest_ns: neighbours that take less together are drawn as one; 0 if none are.
    """

    def __init__(self, trace, step, most_events):
        self.names, self.shortest_ns = {}, 0
        spans = {event.rank: event for event in trace.events if event.kind == "step" and event.step == step}
        self.begin, end = min(span.begin for span in spans.values()), max(span.end for span in spans.values())
        self.unit_ns = max(1, (end - self.begin) // UNITS)
        inside = defaultdict(list)
        for event in trace.events:
            if event.step == step and event.kind != "step":
                inside[event.rank].append(event)
        lanes = {rank: lanes_of(span, inside[rank]) for rank, span in sorted(spans.items())}
        self.ranks = list(lanes)
        if sum(len(lane) for of in lanes.values() for lane in of.values()) > most_events:
            self.ranks = evenly(self.ranks, MOST_RANKS)
        most = max(100, most_events // (2 * len(self.ranks)))
        names = trace.rank_names()
        drawn = [{"name": names[rank], **{key: self.packed(lane, most) for key, lane in lanes[rank].items()}}
                 for rank in self.ranks]
        self.json = {"length": -(-(end - self.begin) // self.unit_ns), "unit_ns": self.unit_ns, "ranks": drawn,
                     "names": [[name, KINDS.index(kind)] for name, kind in self.names]}

    def packed(self, lane, most):
        shortest, pieces = self.unit_ns, lane
        while len(pieces) > most:
            shortest *= 2
            pieces = joined(lane, shortest)
            self.shortest_ns = max(self.shortest_ns, shortest)
        numbers, last = [], 0
        for piece in pieces:
            at, until = (max(0, time - self.begin) // self.unit_ns for time in (piece.begin, piece.end))
            name = self.names.setdefault((piece.name, piece.kind), len(self.names))
            numbers += [at - last, until - at, name, piece.layer + 1, piece.nano_batch + 1]
            last = at
        return numbers


def lanes_of(span, events):
    """Pieces of what the rank's thread did, and of its messages."""
    def piece(event, begin, end):
        kind = KIND_OF.get(event.kind) or ("attention" if " core_attention" in event.operation else "linear")
        return Piece(begin, end, event.operation, kind, event.layer, event.nano_batch)

    events.sort(key=lambda event: (event.begin, -event.end))
    thread = [event for event in events if event.kind != "flight"]
    return {"compute": [piece(event, begin, end) for event, begin, end in stretches(span.begin, span.end, thread)
                        if event and end > begin],
            "messages": [piece(event, event.begin, event.end) for event in events if event.kind == "flight"]}


def joined(lane, shortest):
    """The lane with neighbours that together take less than the shortest as one, of the kind that takes longest."""
    pieces, groups = [], []
    for piece in lane:
        if piece.end - piece.begin >= shortest:
            pieces.append(piece)
        elif groups and piece.end - groups[-1][0].begin < shortest:
            groups[-1].append(piece)
        else:
            groups.append([piece])
    for group in groups:
        if len(group) > 1:
            times = Counter()
            for piece in group:
                times[piece.name, piece.kind] += piece.end - piece.begin
            (name, kind), _ = times.most_common(1)[0]
            end = max(piece.end for piece in group)
            group = [Piece(group[0].begin, end, f"short events, mostly {name}", kind, -1, -1)]
        pieces += group
    return sorted(pieces, key=lambda piece: piece.begin)


def waits_most(trace, step):
    """(share of the step, name) of the rank that waits longest."""
    at = trace.sums.numbers.index(step)
    return max((steps[at]["idle"] / max(1, steps[at]["step"]), name)
               for steps, name in zip(trace.sums.steps, trace.rank_names()))


def timeline(trace, most_events):
    step = median_step(trace)
    data = TimelineData(trace, step, most_events)
    share, name = waits_most(trace, step)
    ms = data.json["length"] * data.unit_ns * 1e-6
    buttons = "".join(f'<button type="button" data-for="FIGURE" data-act="{act}" aria-label="{words}" title="{words}">'
                      f"{sign}</button>" for act, sign, words in BUTTONS)
    label = escaped(f"Timeline of step {step}: of each rank what its thread does, and its messages under way")
    drawing = (legend((f"k-{kind}", meaning) for kind, meaning in zip(KINDS, MEANINGS))
               + f'<div class="zoom">{buttons}</div><div class="tall"><canvas data-figure="FIGURE" tabindex="0" '
               f'role="img" aria-label="{label}"></canvas></div><p class="said" id="FIGURE-said" aria-live="polite">'
               "Point at a box or tap it. Drag to move; pinch, Ctrl and wheel, or the wheel after a click, to zoom; "
               "keys: + - ← → 0.</p><noscript><p>The timeline is drawn by JavaScript.</p></noscript>")
    assumes = [*assumes_of(trace), "Upper row of a rank: its thread, each moment for the innermost event. Lower rows: "
               "messages under way.", "A message is drawn until all of it is there." if trace.machine else
               "Nobody knows when a message landed before the wait for it: it is drawn until that wait ended."]
    if len(trace.sums.numbers) > 1:
        assumes.append(f"Of {len(trace.sums.numbers)} traced steps, the one of median length on rank 0 is drawn.")
    if len(data.ranks) < trace.sums.num_ranks:
        assumes.append(f"{len(data.ranks)} of {trace.sums.num_ranks} ranks are drawn, so that the page stays small.")
    if data.shortest_ns:
        shortest = number_text(data.shortest_ns * 1e-6)
        assumes.append(f"Neighbouring events that together take less than {shortest} ms are drawn as one, in the "
                       "colour of what takes longest.")
    return Figure(f"A step of {number_text(ms)} ms, of which {name} waits {100 * share:.1f} %", drawing,
                  [f"{trace.source()}; step {step} is drawn"], assumes, operations(trace), data.json)


def operations(trace):
    rows, steps = [], len(trace.sums.numbers)
    for name, times in trace.sums.operations.items():
        ranks = having(times)
        rows.append([name, str(times["count"] // steps // ranks),
                     number_text(sum(times["rank_ns"]) * 1e-6 / steps / ranks),
                     number_text(max(times["rank_ns"]) * 1e-6 / steps)])
    return ("operation", "times a step", "ms a step, mean of its ranks", "ms a step, most of a rank"), rows


def parts_of(trace, rank):
    """Milliseconds a step of each part of a rank's time; core attention is taken out of compute."""
    total, steps = trace.sums.totals[rank], len(trace.sums.numbers)
    attention = sum(times["rank_ns"][rank] for name, times in trace.sums.operations.items()
                    if " core_attention" in name)
    parts = {"core attention": attention, **{part: total[part] for part in trace.sums.parts}}
    parts["compute"] -= attention
    return {part: ns * 1e-6 / steps for part, ns in parts.items()}


def where_time_went(trace):
    ranks = range(trace.sums.num_ranks)
    names, parts = trace.rank_names(), [parts_of(trace, rank) for rank in ranks]
    step = max(sum(of.values()) for of in parts)
    busy = sum(of["core attention"] + of["compute"] for of in parts) / len(parts)
    attention = sum(of["core attention"] for of in parts) / len(parts)
    even = max(of["compute"] for of in parts) + attention
    marks = [("mark", busy, "if no rank ever waited"), ("mark even", even, "if only core attention were even")]
    shown = [part for part in parts[0] if any(of[part] > 0 for of in parts)]
    rows = [(name, [(PARTS[part][0], of[part], PARTS[part][1]) for part in shown], marks,
             f"{number_text(sum(of.values()))} ms") for name, of in zip(names, parts)]
    heading = (f"Compute is {100 * busy / step:.1f} % of a step, on average over "
               f"{'the ranks' if len(parts) > 1 else 'its one rank'}")
    table = (["rank", *(PARTS[part][1] + " ms" for part in shown)],
             [[name, *(number_text(of[part]) for part in shown)] for name, of in zip(names, parts)])
    keys = [*(PARTS[part] for part in shown), *((kind, what) for kind, _, what in marks)]
    assumes = [*assumes_of(trace), "Each moment of a rank's step counts once, for the innermost event (docs/trace.md).",
               f"If no rank ever waited, a step would take {number_text(busy)} ms: the ranks' mean compute.",
               f"If only core attention were even, at no cost: {number_text(even)} ms, the most other compute of a "
               "rank and the mean of core attention."]
    return Figure(heading, legend(keys) + bars(rows, "ms a step", heading), [trace.source()], assumes, table)


def divided(sent, received):
    """{(from, to): bytes} of an exchange of known sums: sent {from: (bytes, [to])}, received {to: bytes}.

    Even shares are scaled to both sums in turn. Exact where every rank sends to one, or gets from one.
    """
    pairs = {(rank, peer): 1.0 for rank, (count, peers) in sent.items() if count for peer in peers}
    for side in (1, 0) * 8:
        sums = defaultdict(float)
        for pair, value in pairs.items():
            sums[pair[side]] += value
        for pair in pairs:
            wanted = received.get(pair[1]) if side else sent[pair[0]][0]
            if wanted is not None and sums[pair[side]]:
                pairs[pair] *= wanted / sums[pair[side]]
    return pairs


def exchanged(trace):
    """[from][to] bytes a step, all messages that the trace has; the last column is of ranks that the file has not."""
    exchanges = defaultdict(lambda: ({}, {}))
    for event in trace.events:
        if event.kind == "launch":
            sent, received = exchanges[event.step, event.tag]
            if event.to:
                sent[event.rank] = (event.bytes, event.to)
            received[event.rank] = event.received_bytes
    size = trace.sums.num_ranks
    matrix = [[0.0] * (size + 1) for _ in range(size)]
    for sent, received in exchanges.values():
        for (rank, peer), count in divided(sent, received).items():
            matrix[rank][peer if 0 <= peer < size else size] += count / len(trace.sums.numbers)
    return [[round(count) for count in row] for row in matrix]


def exchange_matrix(trace):
    matrix, names = exchanged(trace), trace.rank_names()
    outside = sum(row.pop() for row in matrix)
    pairs = sorted(((count, rank, peer) for rank, row in enumerate(matrix) for peer, count in enumerate(row) if count),
                   key=lambda pair: (-pair[0], pair[1:]))
    if not pairs:
        return None
    total, (most, rank, peer) = sum(pair[0] for pair in pairs), pairs[0]
    numbers = [str(what.get("rank", place)) for place, what in enumerate(trace.other["ranks"])]
    to = "its neighbours" if peer == rank else f"rank {numbers[peer]}"
    heading = f"Ranks send {shown_bytes(total)} a step, the most from rank {numbers[rank]} to {to}: {shown_bytes(most)}"
    assumes = [*assumes_of(trace), "All messages count, sums of gradients too, as means over the traced steps.",
               "A trace says what a rank sends and receives in each exchange. Where it has several peers in it, bytes "
               "are divided so that the sums of senders and receivers hold."]
    if trace.machine and trace.other["predicted"].get("alike", 1) > 1:
        assumes.append("Bytes are those of the ranks in the file. The diagonal is what a rank sends the neighbours for "
                       "which it stands.")
    if outside:
        assumes.append(f"Another {shown_bytes(outside)} a step go to ranks that the file does not have.")
    rows = [[names[rank], names[peer], shown_bytes(count), str(count)] for count, rank, peer in pairs[:MOST_PAIRS]]
    if len(pairs) > MOST_PAIRS:
        assumes.append(f"The numbers are those of the {MOST_PAIRS} largest of {len(pairs):,} pairs.")
    return Figure(heading, heat_map(matrix, numbers, heading), [trace.source()], assumes,
                  (("from", "to", "a step", "bytes"), rows))

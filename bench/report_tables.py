"""What bench/report.py prints of kernels, plans and exchanges. Each function is a benchmark's name; its lines: the program's
source says what they hold."""

import itertools
from statistics import median

from report_figures import LEAST_ROUNDS, Figure, figure_of, mib, of, quotient, ratio

ATTENTION = """\
Core attention on the CPU, causal. GFLOP/s: 4 x pairs x head_dim forward, 10 x backward, over the pairs that the mask
allows; best of {twice} turns (shards of some sizes {rounds}) on one pinned thread, in processor time; several threads in
wall-clock time. Shares and ratios: median over {rounds} rounds of what stood side by side in a round, with its 95 %
interval; A/A: the same figure against itself, all that it is made of measured twice in a round (shards: of the judged
size). Not decidable here: the bar within the figure's or, about the bar, within the A/A interval; and everything, from
fewer than {least} rounds. Lengths 2,048 and more compute the first heads only, in buffers of all heads. Backward starts
from LSE and delta. PyTorch: its CPU scaled_dot_product_attention, heads contiguous; not judged in
bf16 where it has AMX. Tensors of both in huge pages, as in a training run.
{cores} cores used; instruction sets {sets}
"""


def attention(out, head, lines):
    sets, rounds = head["instruction_sets"], head["rounds"]
    out.say(ATTENTION.format(twice=2 * rounds, rounds=rounds, least=LEAST_ROUNDS, cores=head["cores"], sets=", ".join(sets)))
    for line in of(lines, "peaks"):
        best = {name: f"{max(rates):.1f}" for name, rates in line["gflops"].items()}
        out.table(f"multiply-add loop|GFLOP/s|{head['cores']} cores",
                  [f"{isa}|{best[isa]}|{best[isa + ' on all cores']}" for isa in sets])
    if cores := of(lines, "core"):
        had, passed = (sum(line[name] for line in cores) for name in ("processor_seconds", "wall_seconds"))
        out.say(f"\nthe measuring thread had {100 * had / passed:.0f} % of its core")
    for who, key in (("the kernel", "kernel_huge_pages"), ("PyTorch", "torch_huge_pages")):
        if pages := [line[key] for line in of(lines, "length") if key in line]:
            out.say(f"in huge pages, the least of a row: {who} {100 * min(pages):.0f} %")
    cells = "of {}|95 %|bar|verdict|A/A 95 %"
    for kind, header, rows in (
            ("length", f"one sequence|pass|instructions|GFLOP/s|{cells.format('peak')}|PyTorch|{cells.format('PyTorch')}",
             length_rows),
            ("shards", f"shards, context about 8,192|pass|queries|shards|GFLOP/s|long|{cells.format('long')}", shard_rows),
            ("threads", f"{head['cores']} threads|pass|one|all|gain|loop's gain|{cells.format('loop')}", thread_rows)):
        # The row's name without its first word, which is the table's.
        named = [(f"{line['name'].split(' ', 1)[1]}|{line['pass']}", line) for line in of(lines, kind)]
        out.table("\n" + header, [f"{name}|{row}" for name, line in named for row in rows(out, head, line)])


def best_of(rates, name):
    return f"{max(rates[name] + rates.get(name + ' again', [])):.1f}"


def side_by_side(rates, left, right):
    """Of the first turns, and of the second ones."""
    return [quotient(rates[left + again], rates[right + again]) for again in ("", " again")]


def judged_cells(out, figure, share=True):
    """As bar|verdict|A/A are, with the figure and its interval before them."""
    times, digits, unit = (100, 1, " %") if share else (1, 2, "")
    bar = "-" if figure.bar is None else f"{times * figure.bar:.{0 if share else 1}f}{unit}"
    return (f"{times * figure.reached.median:.{digits}f}{unit}|{figure.reached.text(digits, times=times)}|{bar}|"
            f"{out.judge(figure)}|{figure.control.text(1, times=100)}")


def length_rows(out, head, line):
    rates = line["gflops"]
    for isa in line["isas"]:
        facts = {"format": line["format"], "isa": isa, "length": line["length"],
                 "chosen": isa == line["isas"][0],  # the one that the kernel takes on this machine
                 "avx512": "avx512" in head["instruction_sets"], "amx": head["amx_bf16"] and line["format"] == "bf16"}
        peak = figure_of(*side_by_side(rates, isa, isa + " loop"), out.bar("of_peak", **facts))
        torch = "-|-|-|-|-|-"
        if "torch" in rates:
            figure = figure_of(*side_by_side(rates, isa, "torch"), out.bar("of_torch", **facts))
            torch = f"{best_of(rates, 'torch')}|{judged_cells(out, figure, share=False)}"
        yield f"{isa}|{best_of(rates, isa)}|{judged_cells(out, peak)}|{torch}"


def shard_rows(out, head, line):
    rates, judged = line["gflops"], str(line["judged"])
    control = ratio(quotient(rates[judged], rates["long"]), quotient(rates["judged again"], rates["long again"]))
    for size in line["sizes"]:
        queries = size["queries"]
        mine = rates[str(queries)]
        bar = out.bar("of_long", queries=queries, group=line["heads"] // line["kv_heads"], **{"pass": line["pass"]})
        best = max(mine + (rates["judged again"] if str(queries) == judged else []))
        figure = Figure(ratio(mine, rates["long"]), control, len(mine), bar)
        yield f"{queries}|{size['shards']}|{best:.1f}|{best_of(rates, 'long')}|{judged_cells(out, figure)}"


def thread_rows(out, head, line):
    rates = line["gflops"]
    gain, loop = side_by_side(rates, "all", "one"), side_by_side(rates, "loop on all", "loop")
    figure = figure_of(quotient(gain[0], loop[0]), quotient(gain[1], loop[1]), out.bar("of_loop"))
    yield (f"{best_of(rates, 'one')}|{best_of(rates, 'all')}|{median(gain[0]):.3f}|{median(loop[0]):.3f}|"
           f"{judged_cells(out, figure)}")


# --- plan

PLAN = """\
Plans for Llama-8B, one of 8 tensor-parallel ranks, bf16: bytes of Q, K, V and O of one layer, forward, over all servers.
Shares are of the original's: the released planner (greedy-original) at tolerance 0.05, run here. of bound: bytes over
the lower bound of whole-context plans on any layout at the same tolerance. send, receive: the largest of any server, Q,
K, V in MiB, and as a share of the original's largest send. Metadata: all ranks' exchange; one structure serves forward
and backward. Times: best of {rounds} on one pinned thread."""


def share(part, whole):
    """1 where neither moves anything."""
    return 1 if part == whole else part / whole if whole else float("inf")


def with_shares(lines):
    """The plans, each after the original's of its nano-batch, with its shares of that."""
    for line in of(lines, "plan"):
        if line["kind"] == "original":
            original = line
        if "refusal" not in line:
            moved, original_moved = (plan["qkv_bytes"] + plan["o_bytes"] for plan in (line, original))
            bound = line["lower_bound_bytes"]
            line |= {"bytes": share(moved, original_moved), "of_bound": share(moved, bound) if bound else None,
                     **{way: share(line[f"max_{way}_bytes"], original["max_send_bytes"]) for way in ("send", "receive")}}
        yield line


def plan(out, head, lines):
    plans = list(with_shares(lines))
    variants = [line for line in plans if line["kind"] == "variant"]
    verdicts = []

    def judge(figure, reached, line, where):
        if verdict := out.judge_exact(figure, reached, **line):
            verdicts.append(verdict | {"name": line.get("name", ""), "where": where})

    def judge_shares(line, where):
        for figure, key in (("share_of_bytes", "bytes"), ("largest_send", "send"), ("largest_receive", "receive")):
            judge(figure, line[key], line, where)

    out.say(PLAN.format_map(head))
    for line in [line for line in variants if line["where"] == "workload"]:
        if "refusal" in line:
            judge("refusals", 1, line, line["of"])
            continue
        judge("max_over_mean", line["max_over_mean"], line, line["of"])
        judge("violations", line["violations"], line, line["of"])
        judge("plan_ms", line["plan_ms"], line, line["of"])
        judge("metadata_ms", line["metadata_ms"], line, line["of"])
        judge("plan_and_metadata_ms", line["plan_ms"] + line["metadata_ms"], line, line["of"])
        judge_shares(line, line["of"])
    workload_tables(out, head, [line for line in plans if line["where"] == "workload"])
    sample_table(out, head, [line for line in variants if line["where"] == "sample"], judge, judge_shares)
    shown = {}  # every failure; of those that are reached the worst one for each variant, figure and bar
    for v in verdicts:
        key = (v["name"], v["figure"], v["at_most"], v["where"] if v["verdict"] == "missed" else "")
        if key not in shown or v["reached"] > shown[key]["reached"]:
            shown[key] = v
    out.table("\nverdict|figure|worst|bar|aim|variant|where",
              [f"{v['verdict']}|{v['figure']}|{v['reached']:.4f}|{v['at_most']:.2f}|"
               f"{format(v['aim'], '.2f') if 'aim' in v else '-'}|{v['name']}|{v['where']}" for v in shown.values()])


def workload_tables(out, head, plans):
    for workload, group in itertools.groupby(plans, key=lambda line: line["of"]):
        original, *rest = group
        out.say(f"\n{workload}: the original {mib(original['qkv_bytes'])} + {mib(original['o_bytes'])} MiB, max/mean "
                f"{original['max_over_mean']:.3f}, largest send {mib(original['max_send_bytes'])}, receive "
                f"{mib(original['max_receive_bytes'])}")
        planned = [line for line in rest if line["kind"] == "variant" and "refusal" not in line]
        out.table(f"{head['scheduler']}|max/mean|share|of bound|send|share|receive|share|plan ms|metadata ms|tasks|"
                  "violations",
                  [f"{p['name']}|{p['max_over_mean']:.4f}|{p['bytes']:.3f}|"
                   f"{'-' if p['of_bound'] is None else format(p['of_bound'], '.3f')}|{mib(p['max_send_bytes'])}|"
                   f"{p['send']:.3f}|{mib(p['max_receive_bytes'])}|{p['receive']:.3f}|{p['plan_ms']:.2f}|"
                   f"{p['metadata_ms']:.2f}|{p['tasks']}|{p['violations']}" for p in planned])
    for line in plans:
        if "refusal" in line:
            out.say(f"{line['of']}, {line['name']}: refused: {line['refusal']}")
    out.say("\nAll schedulers, each on its own layout at its own tolerance:")
    out.table("workload|scheduler|before|after|MiB QKV|MiB O|share|send|receive|most tokens|fewest|tasks|violations",
              [f"{p['of']}|{p['name']}|{p['max_over_mean_before']:.3f}|{p['max_over_mean']:.3f}|{mib(p['qkv_bytes'])}|"
               f"{mib(p['o_bytes'])}|{p['bytes']:.3f}|{mib(p['max_send_bytes'])}|{mib(p['max_receive_bytes'])}|"
               f"{p['tokens_max']:,}|{p['tokens_min']:,}|{p['tasks']}|{p['violations']}"
               for p in plans if p["kind"] != "variant" and "refusal" not in p])


def sample_table(out, head, plans, judge, judge_shares):
    rows = []
    groups = {}
    for line in plans:
        for source in (line["source"], "both"):
            groups.setdefault((line["servers"], source == "both", source, line["name"]), []).append(line)
    for (servers, both, source, name), group in sorted(groups.items(), key=lambda item: item[0][:2]):
        planned = [line for line in group if "refusal" not in line]
        where = f"sampled {source}, {servers} servers"
        worst = max((line["max_over_mean"] for line in planned), default=0)
        violations = sum(line["violations"] for line in planned)
        if both:
            judge("violations_and_refusals", violations + len(group) - len(planned), group[0], where)
            judge("max_over_mean", worst, group[0], where)
        if not planned:
            out.say(f"{servers} servers, {source}, {name}: all refused")
            continue
        values = {key: [line[key] for line in planned] for key in ("bytes", "send", "receive")}
        if servers != 8:  # there only shown: the original often stops early with few bytes
            judge_shares(group[0] | {key: median(of_key) for key, of_key in values.items()}, where + ", median")
        bound = [line["of_bound"] for line in planned if line["of_bound"] is not None]
        pairs = [f"{median(of_key):.3f} / {max(of_key):.3f}" for of_key in values.values()]
        rows.append(f"{servers}|{source}|{name}|{len(planned)}|{len(group) - len(planned)}|{pairs[0]}|"
                    f"{median(bound or [0]):.3f}|{pairs[1]}|{pairs[2]}|{worst:.4f}|{violations}")
    if rows:
        out.say(f"\nSampled nano-batches, 131,072 tokens per server, seed {head['seed']} (median / worst):")
    out.table(f"servers|source|{head['scheduler']}|batches|refused|share|of bound|send share|receive share|max/mean worst|"
              "violations", rows)


# --- the others

def cuda_attention(out, head, lines):
    out.say("{device}, kernel {kernel}, heads {heads}:{kv_heads}, head_dim {head_dim}, bf16; TFLOP/s, medians of {rounds} "
            "rounds\n".format_map({"kernel": "aten"} | head))
    documents = []
    for line in of(lines, "document"):
        cells = []
        for name in ("forward", "backward"):
            of_long = ratio(line[name], line[f"{name}_long"])
            of_operator = ratio(line[name], line[f"{name}_operator"])
            cells.append(f"{100 * of_long.median:.1f} %|{of_long.text(1, times=100)}|{100 - 100 * of_operator.median:.1f} %|"
                         f"{line[f'{name}_copied_bytes'] / 1e6:.1f}")
        documents.append(f"{line['rows']}|" + "|".join(cells))
    if documents:
        out.table("128-token shards of a document, rows|forward, of long|95 %|copies' time|MB copied|"
                  "backward, of long|95 %|copies' time|MB copied", documents)
    rows = []
    for line in of(lines, "shards"):
        passes = []
        for name in ("forward", "backward"):
            rates, whole = line[name], line[f"{name}_long"]
            of_long = ratio(rates, whole)
            passes.append(f"{median(rates) / 1e3:.1f}|{100 * ratio(rates, line['peak']).median:.1f} %|"
                          f"{100 * of_long.median:.1f} %|{of_long.text(1, times=100)}|{median(whole) / 1e3:.1f}")
        # Rates: slower by so many times is so many times the time.
        others = [ratio(line["backward"], line["backward_deterministic"]),
                  ratio(line["forward_long_again"], line["forward_long"])]
        rows.append(f"{line['shard']}|{line['shards']}|{median(line['peak']) / 1e3:.1f}|" +
                    "|".join(passes + [f"{found.median:.3f}|{found.text()}" for found in others]))
    out.table("shard|number|peak|forward|of peak|of long|95 %|long|backward|of peak|of long|95 %|long|"
              "deterministic backward's time|95 %|long against itself|95 %", rows)

"""What bench/report.py prints of kernels and of planning. Each function is a benchmark's name; its lines: the program's
source says what they hold."""

from statistics import median

from report_figures import LEAST_ROUNDS, Figure, figure_of, of, quotient, ratio

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
    if pages := [line["huge_pages"] for line in of(lines, "lengths")]:
        out.say(f"in huge pages, the least of a row: {100 * min(pages):.0f} % of the memory of both")
    cells = "of {}|95 %|bar|verdict|A/A 95 %"
    for kind, header, rows in (
            ("lengths", f"one sequence|pass|instructions|GFLOP/s|{cells.format('peak')}|PyTorch|{cells.format('PyTorch')}",
             length_rows),
            ("shards", f"shards, context about 8,192|pass|queries|shards|GFLOP/s|long|{cells.format('long')}", shard_rows),
            ("threads", f"{head['cores']} threads|pass|one|all|gain|loop's gain|{cells.format('loop')}", thread_rows)):
        # The row's name without its first word, which is the table's.
        named = [(f"{line['name'].split(' ', 1)[1]}|{line['pass']}", line) for line in of(lines, kind)]
        shown = []
        for name, line in named:
            out.section = f"{line['name']}, {line['pass']}"
            shown += [f"{name}|{row}" for row in rows(out, head, line)]
        out.table("\n" + header, shown)


def best_of(rates, name):
    return f"{max(rates[name] + rates.get(name + ' again', [])):.1f}"


def side_by_side(rates, left, right):
    """Of the first turns, and of the second ones."""
    return [quotient(rates[left + again], rates[right + again]) for again in ("", " again")]


def judged_cells(out, name, figure, share=True):
    """As bar|verdict|A/A are, with the figure and its interval before them."""
    times, digits, unit = (100, 1, " %") if share else (1, 2, "")
    bar = "-" if figure.bar is None else f"{times * figure.bar:.{0 if share else 1}f}{unit}"
    return (f"{times * figure.reached.median:.{digits}f}{unit}|{figure.reached.text(digits, times=times)}|{bar}|"
            f"{out.judge(figure, name)}|{figure.control.text(1, times=100)}")


def length_rows(out, head, line):
    rates = line["gflops"]
    for isa in line["isas"]:
        facts = {"format": line["format"], "isa": isa, "length": line["length"],
                 "chosen": isa == line["isas"][0],  # the one that the kernel takes on this machine
                 "avx512": "avx512" in head["instruction_sets"], "amx": head["amx_bf16"] and line["format"] == "bf16"}
        peak = figure_of(*side_by_side(rates, isa, isa + " loop"), out.bar("of_peak", **facts))
        torch = figure_of(*side_by_side(rates, isa, "torch"), out.bar("of_torch", **facts))
        yield (f"{isa}|{best_of(rates, isa)}|{judged_cells(out, isa + ' of peak', peak)}|"
               f"{best_of(rates, 'torch')}|{judged_cells(out, isa + ' times PyTorch', torch, share=False)}")


def shard_rows(out, head, line):
    rates, judged = line["gflops"], str(line["judged"])
    control = ratio(quotient(rates[judged], rates["long"]), quotient(rates["judged again"], rates["long again"]))
    for size in line["sizes"]:
        queries = size["queries"]
        mine = rates[str(queries)]
        bar = out.bar("of_long", queries=queries, group=line["heads"] // line["kv_heads"], **{"pass": line["pass"]})
        best = max(mine + (rates["judged again"] if str(queries) == judged else []))
        figure = Figure(ratio(mine, rates["long"]), control, len(mine), bar)
        yield (f"{queries}|{size['shards']}|{best:.1f}|{best_of(rates, 'long')}|"
               f"{judged_cells(out, f'{queries} queries, of long', figure)}")


def thread_rows(out, head, line):
    rates = line["gflops"]
    gain, loop = side_by_side(rates, "all", "one"), side_by_side(rates, "loop on all", "loop")
    figure = figure_of(quotient(gain[0], loop[0]), quotient(gain[1], loop[1]), out.bar("of_loop"))
    yield (f"{best_of(rates, 'one')}|{best_of(rates, 'all')}|{median(gain[0]):.3f}|{median(loop[0]):.3f}|"
           f"{judged_cells(out, 'of the loop on all cores', figure)}")


# --- plan


def plan(out, head, lines):
    out.say("Planning on one pinned thread; metadata: the exchanges of all ranks. ms: best of {rounds}. bytes: of Q, K, V and O\n"
            "of forward of a layer, all ranks; most: Q, K, V of the rank that sends most; both as shares of the released planner's.\n"
            .format_map(head))
    released = {line["of"]: line["figures"] for line in of(lines, "released")}
    out.table("released planner|max/mean|bytes, MiB|most, MiB",
              [f"{name}|{its['max_over_mean']:.3f}|{its['bytes'] / 2**20:,.0f}|{its['max_send_bytes'] / 2**20:,.0f}"
               for name, its in released.items()])
    rows = []
    for line in of(lines, "plan"):
        out.section = f"{line['of']}, {line['way']}"
        times = {name: line[name] for name in ("plan_ms", "metadata_ms")}
        times["plan_and_metadata_ms"] = sum(times.values())
        bars = [out.judge_exact(name, ms, servers=line["servers"]) for name, ms in times.items()
                if line["way"] != "sequential layout"]  # no run has it by default: it shows what tasks alone bring
        said = "; ".join(f"{bar['figure']}, bar {bar['at_most']}: {bar['verdict']}" for bar in bars if bar)
        ours, its = line["figures"], released[line["of"]]
        shares = "|".join(f"{ours[key] / its[key]:.3f}" for key in ("bytes", "max_send_bytes"))
        rows.append(f"{line['of']}|{line['way']}|{ours['max_over_mean']:.4f}|{shares}|{times['plan_ms']:.2f}|"
                    f"{times['metadata_ms']:.2f}|{said or '-'}")
    out.table("\nworkload|way|max/mean|bytes|most|plan ms|metadata ms|verdicts", rows)

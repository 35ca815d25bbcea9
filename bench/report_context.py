"""What bench/report.py prints of bench/context.py."""

from statistics import median

from report_figures import estimate, model_text, ms, of, quotient
from report_python import judged

TEXT = """\
A Llama of Transformers {transformers}, forward and backward, over Gloo; {ranks} processes of 1 thread each, {tokens:,}
tokens each. Documents have real lengths divided by {scale}; a batch is packed of them and cut at its end. All arms compute
attention with DistCA's kernel, and the sum of gradients is left out. distca: distca.transformers.shard, planned a batch
ahead. all-gather: runs of the batch, K and V gathered. whole documents: dealt by squared lengths (Karmarkar-Karp).
Ulysses: heads for tokens. zigzag ring: two chunks of each document a rank. long: a document exceeds a rank's share.
bound: the rival's longest rank over its mean one, by processor time: what balance alone can bring.
Ratios: median over rounds with its 95 % interval; A/A: distca against itself in the same rounds."""
TIMED = {True: "A step lasts from a barrier to the latest rank's end.",
         False: "Ranks share cores, so a step's time is the largest processor time of a rank; waits are not in it."}


def times_of(rounds, arm, what):
    return [max(rank[what] for rank in line["arms"][arm]) for line in rounds]


def bound_of(rounds, arm):
    used = [[rank["processor_s"] for rank in line["arms"][arm]] for line in rounds]
    return [max(ranks) * len(ranks) / sum(ranks) for ranks in used]


def source(out, name, rounds, tokens, what):
    steps = {arm: times_of(rounds, arm, what) for arm in rounds[0]["arms"]}
    ours, again, is_long = steps["distca"], steps["distca again"], name.endswith("long")
    shares = [line["longest"] / tokens for line in rounds]
    out.section = name
    out.say(f"\n## {name}\nthe longest document over a rank's share: {median(shares):.2f}; {len(rounds)} batches")
    rows = []
    for arm in dict.fromkeys(("distca", "distca again", *sorted(steps))):  # ours first
        over = estimate(quotient(steps[arm], ours))
        megabytes = max(rank["received_bytes"] for line in rounds for rank in line["arms"][arm]) / 1e6
        rows.append(f"{arm}|{ms(median(steps[arm]))}|{over.median:.3f}|{over.text()}|{median(bound_of(rounds, arm)):.3f}|"
                    f"{megabytes:.2f}")
    out.table("arm|step ms|times distca|95 %|bound|MB a layer, at most", rows)
    out.say()
    for arm in steps:
        if arm.startswith("distca"):
            continue
        gain, gain_again, bound = quotient(steps[arm], ours), quotient(steps[arm], again), bound_of(rounds, arm)
        facts = {"rival": arm, "long": is_long, "bound": median(bound)}
        judged(out, f"{arm} / distca", gain, gain_again, "gain", **facts)
        judged(out, f"{arm} / distca, of the bound", quotient(gain, bound), quotient(gain_again, bound), "of_bound", **facts)


def context(out, head, lines):
    measured = head["ranks"] <= head["cores"]
    out.say(TEXT.format_map(head) + f"\n{TIMED[measured]}\nmodel: {model_text(head)}")
    worst = max(max(line["arms"].values()) for line in of(lines, "differences"))
    out.say(f"gradients of all arms, difference from distca's: {worst:.1e} of the largest")
    for name in head["sources"]:
        rounds = [line for line in of(lines, "round") if line["source"] == name]
        if rounds:
            source(out, name, rounds, head["tokens"], "step_s" if measured else "processor_s")

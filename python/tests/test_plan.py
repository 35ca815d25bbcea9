"""The planner through distca.plan: the same plans as in C++, in about the same time, and one line for bad input."""

import copy
import json
import math
import pathlib
import pickle
import re
import subprocess
import sys
import threading
import time

import pytest

from distca.plan import BatchPlan, PlanError, Range, Shape, plan_batch

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTDATA = ROOT / "distca/plan/testdata"
OFFSETS = [0, 700, 701, 831, 1931, 1931, 2060, 2444]
SHAPE = Shape(num_heads=4, num_kv_heads=2, head_dim=16)


def workload(name):
    """(cu_seqlens, ranks)"""
    read = json.loads((TESTDATA / f"workloads/{name}.json").read_text())
    offsets = [0]
    for length in read["doc_lens"]:
        offsets.append(offsets[-1] + length)
    return offsets, read["ranks"]


@pytest.mark.parametrize("name", ["pretrain_8x128k_0", "prolong_64x128k_0", "pretrain_512x128k_0"])
@pytest.mark.parametrize("variant, options", [
    ("balanced/balanced", {}),
    ("balanced/balanced+split-kv", {"split_kv": True}),
    ("greedy/sequential", {"scheduler": "greedy"}),
    ("local/sequential", {"scheduler": "local"}),
])
def test_plans_are_those_that_cpp_makes(name, variant, options):
    pinned = dict(line.rsplit(" ", 1) for line in (TESTDATA / "plan_hashes.txt").read_text().splitlines())
    offsets, ranks = workload(name)
    plan = plan_batch(offsets, ranks, Shape(num_heads=4, num_kv_heads=1, head_dim=128), **options)
    assert plan.hash == pinned[f"{variant} {name}"]


def test_tokens_are_even_and_load_is_balanced():
    plan = plan_batch(OFFSETS, 3, SHAPE)
    assert plan.num_ranks == len(plan.tokens) == 3
    assert [abs(plan.num_tokens(rank) - 2444 / 3) <= 128 for rank in range(3)] == [True] * 3
    held = sorted(token for of_rank in plan.tokens for begin, end in of_rank for token in range(begin, end))
    assert held == list(range(2444))
    load = [of_rank["pairs"] for of_rank in json.loads(plan.json())["load"]]
    assert plan.max_over_mean == max(load) / (sum(load) / 3) <= 1.15
    assert repr(plan) == f"BatchPlan(num_ranks=3, max_over_mean={plan.max_over_mean:.3f}, hash='{plan.hash}')"


def test_a_plan_travels_as_json_and_by_pickle():
    plan = plan_batch(OFFSETS, 4, SHAPE)
    for same in (BatchPlan.from_json(plan.json()), pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan)):
        assert (same.hash, same.tokens, same.json()) == (plan.hash, plan.tokens, plan.json())
    fnv = 0xCBF29CE484222325
    for byte in plan.json().encode():
        fnv = (fnv ^ byte) * 0x100000001B3 % 2**64
    assert plan.hash == f"{fnv:016x}"


def test_arguments_reach_the_planner():
    def made(*arguments, **options):
        return json.loads(plan_batch(OFFSETS, 3, *(arguments or [SHAPE]), **options).json())

    assert made(scheduler="greedy")["options"]["scheduler"] == "greedy"
    assert made(tolerance=0.1)["options"]["tolerance_ppm"] == 100_000
    assert made(tolerance=0)["options"]["tolerance_ppm"] == 0
    assert made()["options"]["tolerance_ppm"] == 20_000
    assert made(split_kv=True)["options"]["split_kv"] is True
    assert made(window_size=(200, 0)) == made(window_size=(200, -1)) != made()
    assert made(window_size=(200, 0))["shape"]["window_left"] == 200
    assert made(num_holders=2)["cluster"]["num_workers"] == 2
    assert made(capacity=[0, 1, 3])["cluster"]["capacity"] == [0, 1, 3]
    shape = made(Shape(8, 4, 64, head_dim_v=32, dtype="float32"))["shape"]
    assert shape == {"num_heads": 8, "num_kv_heads": 4, "head_dim_qk": 64, "head_dim_v": 32, "element_bytes": 4,
                     "window_left": -1}


def test_the_callers_tokens_stay_where_they_are():
    # Not in the order of the ranks, cut inside documents 0 and 3, a rank without tokens.
    tokens = [[(1931, 2444), (0, 128)], [], [(128, 1343)], [(1343, 1931)]]
    plan = plan_batch(OFFSETS, 4, SHAPE, tokens=tokens)
    assert plan.tokens == tokens and plan.tokens[2] == [Range(128, 1343)]
    assert [plan.num_tokens(rank) for rank in range(4)] == [641, 0, 1215, 588]
    window = plan_batch(OFFSETS, 4, SHAPE, tokens=plan.tokens, window_size=(100, 0))
    assert window.tokens == tokens and window.hash != plan.hash


def test_the_documents_example_prints_what_that_in_cpp_prints():
    (program,) = re.findall(r"```python\n(from distca.plan.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)
    said = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert sum(int(last) - int(first) + 1 for first, last in re.findall(r"tokens (\d+) to (\d+)", said)) == 8192
    assert re.search(r"mean: 1\.0[01]\d\nplan [0-9a-f]{16}\n$", said)
    in_cpp = ROOT / "build/release/examples/plan"
    if not in_cpp.exists():
        pytest.skip("build/release/examples/plan is not built: compared with nothing")
    assert said == subprocess.check_output([in_cpp], text=True)


class Tensor:
    """What an array or a tensor has of a list."""

    def __init__(self, values):
        self.values = values

    def tolist(self):
        return self.values


def test_arrays_tensors_and_their_types_are_taken():
    class Int32:
        def item(self):
            return 3

    class Bfloat16:
        def __str__(self):
            return "torch.bfloat16"

    same = plan_batch(Tensor(OFFSETS), Int32(), SHAPE._replace(dtype=Bfloat16()), capacity=Tensor([1, 1, 1]))
    assert same.hash == plan_batch(OFFSETS, 3, SHAPE).hash


@pytest.mark.parametrize("change, line", [
    ({"cu_seqlens": []}, "cu_seqlens begins with 0"),
    ({"cu_seqlens": [0, 5, 3]}, "cu_seqlens descends from 5 to 3"),
    ({"cu_seqlens": [0, 1.5]}, "cu_seqlens: a sequence of integers, not [0, 1.5]"),
    ({"cu_seqlens": [0, 2**63]}, "cu_seqlens: a sequence of integers, not [0, 9223372036854775808]"),
    ({"cu_seqlens": 7}, "cu_seqlens: a sequence of integers, not 7"),
    ({"num_ranks": 0}, "plan_batch: num_ranks must be an integer in 1 .. 1048576, not 0"),
    ({"num_ranks": 2.5}, "plan_batch: num_ranks must be an integer in 1 .. 1048576, not 2.5"),
    ({"num_ranks": {1}}, "plan_batch: {1} is neither a number nor a name"),
    ({"num_holders": 3}, "num_holders = 3: 0 .. 2"),
    ({"capacity": [1]}, "1 capacities for 2 ranks"),
    ({"capacity": "half"}, "capacity: a sequence of integers, not 'half'"),
    ({"shape": SHAPE._replace(num_heads=3)}, "num_heads = 3, num_kv_heads = 2: the first is a multiple of the second"),
    ({"shape": (8, 8, 64)}, "shape = (8, 8, 64): a Shape(num_heads, num_kv_heads, head_dim)"),
    ({"shape": SHAPE._replace(head_dim=12)}, "head_dim = 12: a multiple of 8"),
    ({"shape": SHAPE._replace(dtype="float16")},
     'plan_batch: shape.dtype must be "float64", "float32" or "bfloat16", not "float16"'),
    ({"window_size": (5, 3)}, "window_size = (5, 3): (left, right) with left 0 or more, or -1 for the whole document, "
                              "and right 0 or -1, for attention is causal"),
    ({"window_size": 5}, "window_size = 5: (left, right) with left 0 or more, or -1 for the whole document, and right "
                         "0 or -1, for attention is causal"),
    ({"tolerance": -0.1}, "tolerance = -0.1: 0 or more, or None for the scheduler's own"),
    ({"tolerance": math.nan}, "tolerance = nan: 0 or more, or None for the scheduler's own"),
    ({"tolerance": math.inf}, "tolerance = inf: 0 or more, or None for the scheduler's own"),
    ({"linear_work": math.inf}, "linear_work = inf: a finite number"),
    ({"num_holders": math.nan}, "num_holders = nan: a finite number"),
    ({"window_size": (math.inf, 0)}, "window_left = inf: a finite number"),
    ({"shape": SHAPE._replace(head_dim=-math.inf)}, "head_dim = -inf: a finite number"),
    ({"tolerance": 1e30}, "tolerance = 1e+30: 0 .. 1000000"),
    ({"tokens": []}, "tokens: of no rank; None lets the planner choose"),
    ({"tokens": [[0, 700], [700, 2444]]},
     "tokens: for each rank a list of ranges (begin, end), not [[0, 700], [700, 2444]]"),
    ({"tokens": [[(0, 2444)]]}, "tokens of 1 ranks for 2 ranks"),
    ({"tokens": [[(0, 702)], [(701, 2444)]]}, "token 701 is held twice"),
])
def test_bad_input_gets_one_line(change, line):
    with pytest.raises(PlanError) as raised:
        plan_batch(**{"cu_seqlens": OFFSETS, "num_ranks": 2, "shape": SHAPE, **change})
    assert str(raised.value) == line


def test_an_unknown_scheduler_is_told_which_there_are():
    with pytest.raises(PlanError, match="balancd.*balanced"):
        plan_batch(OFFSETS, 2, SHAPE, scheduler="balancd")


@pytest.mark.parametrize("text, line", [
    ("", "plan: byte 1 is not JSON: .*"),
    ("{}", "plan: format is missing"),
    ("[\ud800]", "plan: byte .* is not JSON: .*"),
])
def test_a_plan_that_cannot_be_read_gets_one_line(text, line):
    with pytest.raises(PlanError, match=f"^{line}$"):
        BatchPlan.from_json(text)


def test_a_plan_that_was_changed_is_refused():
    read = json.loads(plan_batch(OFFSETS, 2, SHAPE).json())
    read["tasks"].pop()
    with pytest.raises(PlanError):
        BatchPlan.from_json(json.dumps(read))


def test_threads_plan_at_the_same_time():
    shapes = [SHAPE._replace(head_dim=8 * (1 + thread % 3)) for thread in range(8)]
    wanted = [plan_batch(OFFSETS, 5, shape).hash for shape in shapes]
    found = [[] for _ in shapes]

    def work(thread):
        for _ in range(20):
            plan = plan_batch(OFFSETS, 5, shapes[thread])
            with pytest.raises(PlanError, match=f"not {-thread}$"):
                plan_batch(OFFSETS, -thread, SHAPE)
            found[thread].append((plan.hash, BatchPlan.from_json(plan.json()).hash))

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(len(shapes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[(hash, hash)] * 20 for hash in wanted]


def test_memory_of_plans_is_given_back():
    program = """if True:
        import resource
        from distca.plan import Shape, plan_batch
        def peak(plans):
            for _ in range(plans):
                plan = plan_batch(range(0, 640_001, 64), 8, Shape(4, 2, 16), scheduler="local")
                plan.json(), plan.tokens
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(peak(5), peak(20))"""
    before, after = map(int, subprocess.check_output([sys.executable, "-c", program]).split())
    assert after - before < 8_000, "KiB; the JSON of one plan alone has 1.6 MB"


def test_planning_for_512_ranks_takes_little_longer_than_in_cpp():
    """The interface adds what the caller's lists and our own take: beside the library's own time."""
    from distca import plan as planner
    offsets, ranks = workload("pretrain_512x128k_0")
    library, inside = planner._LIBRARY.distca_plan_batch, []

    def timed(*arguments):
        start = time.process_time()
        code = library(*arguments)
        inside.append(time.process_time() - start)
        return code

    planner._LIBRARY.distca_plan_batch = timed
    try:
        all_of_it = []
        for _ in range(9):
            start = time.process_time()
            plan = plan_batch(offsets, ranks, Shape(32, 8, 128))
            assert sum(map(plan.num_tokens, range(ranks))) == offsets[-1]
            all_of_it.append(time.process_time() - start)
    finally:
        planner._LIBRARY.distca_plan_batch = library
    print(f"{min(all_of_it) * 1e3:.1f} ms, of which in the library {min(inside) * 1e3:.1f} ms")
    assert min(all_of_it) <= 1.5 * min(inside)

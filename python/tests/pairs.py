"""Few cases that hold every pair of values."""

import itertools


def pairs_of(**values):
    """Cases, a tuple of one value of each keyword: every value of one meets every value of each other."""
    lists = list(values.values())
    missing = {(i, a, j, b) for (i, of_i), (j, of_j) in itertools.combinations(enumerate(lists), 2)
               for a in range(len(of_i)) for b in range(len(of_j))}
    cases = []
    while missing:
        case = {}
        i, a, j, b = min(missing)
        case[i], case[j] = a, b
        for k in range(len(lists)):
            if k not in case:
                case[k] = max(range(len(lists[k])), key=lambda c: (_new(missing, case, k, c), (c + len(cases)) % 7))
        at = [case[k] for k in range(len(lists))]
        missing -= {(i, at[i], j, at[j]) for i, j in itertools.combinations(range(len(lists)), 2)}
        cases.append(tuple(lists[k][at[k]] for k in range(len(lists))))
    return cases


def _new(missing, case, k, value):
    """How many missing pairs a value adds to a case."""
    return sum(((j, b, k, value) if j < k else (k, value, j, b)) in missing for j, b in case.items())

"""Users' code that raises, ends the process or returns something odd: sources of plug-ins for tests and torture."""

from __future__ import annotations

HEAD = """
from dataclasses import dataclass
import sys, numpy as np, torch
from salrun.types import Method, Metric, Score
"""
METHOD = (
    HEAD
    + """
@dataclass
class OddMethod(Method):
    def __call__(self, model, x, target, rng, fitted):
        {body}
"""
)
METRIC = (
    HEAD
    + """
@dataclass
class OddMetric(Metric):
    def __call__(self, plane, scene):
        n, flag = len(plane), torch.zeros(len(plane), dtype=torch.uint8)
        {body}
"""
)
RAISING = {
    "exit 0": ("sys.exit(0)", "raised SystemExit: 0"),
    "exit text": ("sys.exit('bye')", "raised SystemExit: bye"),
    "lines": ("raise ValueError('no\\nway')", "raised ValueError: no"),
    "no exception": ("raise BaseException('b')", "raised BaseException: b"),
    "generator": ("raise GeneratorExit", "raised GeneratorExit"),
    "interrupt": ("raise KeyboardInterrupt", "raised KeyboardInterrupt"),
    "iteration": ("raise StopIteration", "raised StopIteration"),
    "pipe": ("raise BrokenPipeError", "raised BrokenPipeError"),
    "memory": ("raise MemoryError", "raised MemoryError"),
    "depth": ("f = lambda: f(); f()", "raised RecursionError"),
    "ours": ("from salrun.errors import SalrunError as E; raise E('no')", "raised SalrunError: no"),
    "text": ("raise type('E', (Exception,), {'__str__': lambda self: 1 / 0})", "raised E"),
}
SILENCING = {
    "stdout closed": ("sys.stdout.close()", "closes or removes sys.stdout"),
    "stderr closed": ("sys.stderr.close(); 1 / 0", "closes or removes sys.stderr"),
    "stdout none": ("sys.stdout = None", "closes or removes sys.stdout"),
    "descriptor": ("import os; os.close(1)", "closes or removes sys.stdout"),
    "print": ("import builtins; builtins.print = None", "closes or removes print"),
    "exit": ("import os; os._exit(0)", "raised SystemExit: 0"),
}
MAPS = {
    "none": ("return None", "returned a NoneType"),
    "numpy": ("return x.numpy()", "returned a ndarray"),
    "tuple": ("return (x,)", "returned a tuple"),
    "bool": ("return x > 0", "returned bool"),
    "integers": ("return x.long()", "returned int64"),
    "complex": ("return x.to(torch.complex64)", "returned complex64"),
    "sparse": ("return x.to_sparse()", "returned float32 (sparse_coo, cpu)"),
    "meta": ("return x.to('meta')", "returned float32 (strided, meta)"),
    "eight bits": ("return x.to(torch.float8_e4m3fn)", "returned float8_e4m3fn"),
    "nested": ("return torch.nested.nested_tensor(list(x), layout=torch.jagged)", "returned float32 (nested, cpu)"),
    "generator": ("yield x", "returned a generator"),
    "three": ("return x[:, 0]", "returned shape"),
    "small": ("return x[..., :4]", "returned shape"),
    "fewer": ("return x[:1]", "returned shape"),
    "channels": ("return x[:, :2]", "returned shape"),
}
SCORES = {
    "none": ("return None", "returned a NoneType"),
    "tensor": ("return torch.ones(n)", "returned a Tensor"),
    "nothing": ("return {}", "returned {}"),
    "names": ("return {1: Score(torch.ones(n), flag)}", "returned {1: Score}"),
    "two lines": ("return {'a\\nb': Score(torch.ones(n), flag)}", "called 'a\\nb'"),
    "long": ("return {500 * 'x': Score(torch.ones(n), flag)}", "expected at most 120 letters"),
    "numpy": ("return Score(np.ones(n), flag)", "value is a ndarray"),
    "bool": ("return Score(flag.bool(), flag)", "value is bool"),
    "complex": ("return Score(torch.ones(n).to(torch.complex64), flag)", "value is complex64"),
    "eight bits": ("return Score(torch.ones(n).to(torch.float8_e5m2), flag)", "value is float8_e5m2"),
    "sparse": ("return Score(torch.ones(n).to_sparse(), flag)", "value is sparse_coo"),
    "meta": ("return Score(torch.ones(n), flag.to('meta'))", "flag is strided on meta"),
    "float flag": ("return Score(torch.ones(n), flag.float())", "flag is float32"),
    "unknown flag": ("return Score(torch.ones(n), flag + 99)", "flag is 99"),
    "curve of more": ("return Score(torch.ones(n), flag, torch.ones(n + 1, 2))", "values and an axis of 2 points"),
    "empty curve": ("return Score(torch.ones(n), flag, torch.ones(n, 0))", ", 0) for "),
    "axis": ("return Score(torch.ones(n), flag, torch.ones(n, 3), torch.ones(4))", "an axis of 4 points"),
    "axis of nothing": ("return Score(torch.ones(n), flag, None, torch.ones(4))", "curve_x is the axis of no curve"),
    "curve": ("return Score(torch.ones(n), flag, torch.ones(n, 2, 2))", "curve has shape"),
}
FACTS = {  # what the class of a method or metric says of itself
    "needs": (METHOD, "needs = 3", "needs of OddMethod must be a set of names, got 3"),
    "needs text": (METHOD, "needs = 'masks'", "needs of OddMethod must be a set of names"),
    "unknown need": (METHOD, "needs = ('feature_stat',)", "unknown need 'feature_stat'"),
    "signed": (METHOD, "signed = 'x'", "signed of OddMethod must be bool, got 'x'"),
    "direction": (METRIC, "direction = 'up'", "direction of OddMetric must be one of higher, lower, none, got 'up'"),
    "turned": (METRIC, "turned = 3", "turned of OddMetric must be a set of names, got 3"),
    "unknown need of a metric": (METRIC, "needs = {'modell'}", "unknown need 'modell'"),
}
COSTS = {
    "nan": ("def passes(self, model, shape): return float('nan')", "says that its passes is nan"),
    "text": ("def passes(self, model, shape): return 'many'", "says that its passes is 'many'"),
    "less than none": ("def passes(self, model, shape): return -5", "says that its passes is -5"),
    "none": ("passes = None", "raised TypeError: 'NoneType' object is not callable"),
}
MODULES = {
    "exit 0": ("import sys; sys.exit(0)", "raised SystemExit: 0"),
    "no exception": ("raise BaseException('b')", "raised BaseException: b"),
    "syntax": ("def (", "raised SyntaxError: invalid syntax"),
    "nul": ("a = 1\0", "raised SyntaxError: source code string cannot contain null bytes"),
}

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
    "text": ("raise type('E', (Exception,), {'__str__': lambda self: 1 / 0})", "raised E"),
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
    "numpy": ("return Score(np.ones(n), flag)", "value is a ndarray"),
    "bool": ("return Score(flag.bool(), flag)", "value is bool"),
    "complex": ("return Score(torch.ones(n).to(torch.complex64), flag)", "value is complex64"),
    "float flag": ("return Score(torch.ones(n), flag.float())", "flag is float32"),
    "unknown flag": ("return Score(torch.ones(n), flag + 99)", "flag is 99"),
    "curve": ("return Score(torch.ones(n), flag, torch.ones(n, 2, 2))", "curve has shape"),
}
MODULES = {
    "exit 0": ("import sys; sys.exit(0)", "raised SystemExit: 0"),
    "no exception": ("raise BaseException('b')", "raised BaseException: b"),
    "syntax": ("def (", "raised SyntaxError: invalid syntax"),
    "nul": ("a = 1\0", "raised SyntaxError: source code string cannot contain null bytes"),
}

"""Fingerprints: what they count, and that they are the same in each version of Python."""

import hashlib

import numpy as np
import pytest

from fedapps.engine.fingerprints import _code, changed, last_digits
from fedapps.training.sketch import sketch

CODE = """
def told(names):  # comment
    return f"a {', '.join(f'{n}={n!r:>{3}}' for n in names)}" " b", None, ""
"""
# What 3.11 to 3.13 agree on, in words: no field that is None or an empty list.
TREE = (
    "Module(body=[FunctionDef(name='told',args=arguments(args=[arg(arg='names')]),body=[Return("
    "value=Tuple(elts=[JoinedStr(values=[Constant(value='a '),FormattedValue(value=Call(func="
    "Attribute(value=Constant(value=', '),attr='join',ctx=Load()),args=[GeneratorExp(elt="
    "JoinedStr(values=[FormattedValue(value=Name(id='n',ctx=Load()),conversion=-1),Constant("
    "value='='),FormattedValue(value=Name(id='n',ctx=Load()),conversion=114,format_spec=JoinedStr("
    "values=[Constant(value='>'),FormattedValue(value=Constant(value=3),conversion=-1)]))]),"
    "generators=[comprehension(target=Name(id='n',ctx=Store()),iter=Name(id='names',ctx=Load()),"
    "is_async=0)])]),conversion=-1),Constant(value=' b')]),Constant(),Constant(value='')],"
    "ctx=Load()))])])"
)


def digest(code):
    """Return the fingerprint of a file."""
    return _code([code.encode()])


def test_a_fingerprint_is_the_same_in_each_version_of_python():
    """Texts with expressions inside are where `ast.unparse` has changed."""
    assert digest(CODE) == hashlib.sha256(TREE.encode()).hexdigest()[:16] == "402f5e9ee5598877"


@pytest.mark.parametrize(("old", "new", "same"), [
    ("# comment", "# other", True),
    ("(names):", "( names ) :", True),
    ("{3}", "{4}", False),
    ("=", "==", False),
    ("None", "False", False),
    ('""', "None", False),
])  # fmt: skip
def test_what_counts_of_code(old, new, same):
    assert (digest(CODE.replace(old, new)) == digest(CODE)) == same


def test_docstrings_do_not_count_but_other_texts_do():
    """A release that explains a method better must not end the runs that are going on."""
    told = 'async def told(self):\n        """{0}"""\n        {1}'
    code = f'"""{{0}}"""\nclass A:\n    """{{0}}"""\n    {told}'
    here = digest(code.format("what it is", "return 'a'"))
    assert here == digest(code.format("what\n\nit does", "return 'a'"))
    assert here == digest("class A:\n    async def told(self):\n        return 'a'")
    assert here != digest(code.format("what it is", "return 'b'"))
    assert here != digest(code.format("what it is", "'a'; return 'a'"))


def test_a_run_of_an_earlier_version_can_be_resumed():
    """Its code had another digest, under another name."""
    assert changed({"data": "1", "method": "2", "model": "3"}, {"data": "1", "code": "4"}) == []
    assert changed({"data": "1", "code": "2"}, {"data": "2", "code": "3"}) == [
        "the samples",
        "the method's code",
    ]


def test_last_digits_of_a_model_may_be_others_but_neither_its_values_nor_its_code():
    draw = np.random.default_rng(0)
    values = draw.normal(size=1000)
    last = {"w": values * (1 + 1e-7 * draw.normal(size=1000))}
    before = {"own-model": "1", "sketch": f"{sketch({'w': values})} abc"}
    now = {"own-model": "2", "sketch": f"{sketch(last)} abc"}
    told = ["the model's code or initial values"]
    assert (changed(before, now), last_digits(before, now)) == ([], True)
    assert not last_digits(before, before)
    of_another = now | {"sketch": f"{sketch({'w': values + 1e-3})} abc"}
    for other in (of_another, {"own-model": "2"}, now | {"sketch": f"{sketch(last)} abd"}):
        assert (changed(before, other), last_digits(before, other)) == (told, False)

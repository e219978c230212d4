"""Forms of Python state and of randomness: what a `call`, a loss, a metric or a callback may keep, read and change.

A form is an object and a function of it: `@factor` for one that returns a number, `@form` for one that changes a
Tensor. The object is a model with the function in its `call`, or anything with the function in a loss.
"""

from tests.program.state_forms import arrays, containers, equal_values, functions, libraries, outside, special_methods
from tests.program.state_forms.form import FORMS

__all__ = ["FORMS", "arrays", "containers", "equal_values", "functions", "libraries", "outside", "special_methods"]

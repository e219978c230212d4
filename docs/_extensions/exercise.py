"""The directive `exercise`: the text of one of `caffelite.exercises`, and its hints, which open with a click."""

from docutils import nodes
from exercise_text import format_text
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import caffelite


class ExerciseText(SphinxDirective):
    required_arguments = 1

    def run(self):
        exercise = caffelite.exercises.EXERCISES[self.arguments[0]]
        effort = nodes.paragraph("", exercise.effort, classes=["effort", exercise.difficulty])
        written = [effort, *self.parse_text_to_nodes(format_text(exercise.task))]
        for i, hint in enumerate(exercise.hints, 1):
            begin = f'<details class="hint"><summary>Hint {i}</summary>'
            text = self.parse_text_to_nodes(format_text(hint))
            written += [nodes.raw("", begin, format="html"), *text, nodes.raw("", "</details>", format="html")]
        return written


def setup(app: Sphinx) -> dict:
    app.add_directive("exercise", ExerciseText)
    return {"parallel_read_safe": True}

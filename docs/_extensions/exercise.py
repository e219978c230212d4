"""The directive `exercise`: the text of one of `caffelite.exercises`, and its hints, which open with a click."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import caffelite


class ExerciseText(SphinxDirective):
    required_arguments = 1

    def run(self):
        exercise = caffelite.exercises.EXERCISES[self.arguments[0]]
        written = self.parse_text_to_nodes(exercise.task)
        for i, hint in enumerate(exercise.hints, 1):
            begin = f'<details class="hint"><summary>Hint {i}</summary>'
            text = nodes.paragraph("", hint)
            written += [nodes.raw("", begin, format="html"), text, nodes.raw("", "</details>", format="html")]
        return written


def setup(app: Sphinx) -> dict:
    app.add_directive("exercise", ExerciseText)
    return {"parallel_read_safe": True}

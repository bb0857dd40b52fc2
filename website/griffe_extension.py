"""What reads our docstrings for the pages on Python."""

import griffe

from website.docstrings import as_markdown


class PlainDocstrings(griffe.Extension):
    """Reads the docstring of every function and class anew."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is not None:
            names = [each.name for each in obj.parameters] if obj.is_function else list(obj.members)
            obj.docstring.value = as_markdown(obj.docstring.value, names)

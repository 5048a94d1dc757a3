"""HTML of the planner page, written by the build: the form, and a first plan below it."""

import json
from html import escape
from pathlib import Path

from playground.build.reach import files_of, imports_of
from playground.planner.answer import answer
from playground.planner.form import FIRST, MORE, OWN, SHAPE, Field

EXAMPLES = {"8B on two hosts of eight H100s": "model=llama-3-8b&nodes=2"}


def files() -> list[Path]:
    """This project's modules that `answer` imports, directly or indirectly."""
    left, found = {*files_of(["playground.planner.answer"])}, set[Path]()
    while left:
        path = left.pop()
        found.add(path)
        left |= imports_of(path) - found
    return sorted(found)


def control(field: Field) -> str:
    """Input element for a field, with space below it for an error message."""
    name, label = f"planner-{field.name}", escape(field.label)
    about = f'id="{name}" name="{field.name}" aria-describedby="{name}-wrong"'
    slider = ""
    if field.kind == "file":  # its text goes into an input that has the field's name
        about = about.replace(f' name="{field.name}"', f' data-reads="{field.name}"')
        set_with = (
            f'<input type="file" accept=".json,application/json" {about}>'
            f'<input type="hidden" name="{field.name}" value="{field.default}">'
        )
    elif field.kind == "choice":
        options = "".join(
            f'<option value="{key}"{" selected" * (key == field.default)}>{escape(said)}</option>'
            for key, said in field.choices.items()
        )
        set_with = f"<select {about}>{options}</select>"
    elif field.kind == "yes":
        set_with = f'<input type="checkbox" {about}>'
    else:
        hint = f' placeholder="{escape(field.hint)}"' if field.hint else ""
        keys = {"whole": "numeric", "number": "decimal"}.get(field.kind, "text")
        value = f'type="text" inputmode="{keys}" value="{field.default}"{hint} spellcheck="false"'
        set_with = f"<input {about} {value}>"
    if field.slider != (0, 0):
        least, most = field.slider
        at = round(float(field.default)).bit_length() - 1
        slider = (
            f'<input type="range" min="{least}" max="{most}" value="{at}" data-sets="{field.name}" '
            f'aria-label="{label}, by twos" aria-valuetext="{field.default}">'
        )
    wrong = f'<span class="planner-wrong" id="{name}-wrong" hidden></span>'
    return (
        f'<div class="planner-field"><label for="{name}">{label}</label>{set_with}{slider}'
        f"{wrong}</div>"
    )


def page() -> str:
    """The whole planner, with the plan for the defaults."""
    first = json.loads(answer(""))
    below = "".join(control(field) for field in FIRST)
    shape = "".join(control(field) for field in SHAPE)
    more = "".join(control(field) for field in MORE)
    examples = ", ".join(
        f'<a class="planner-way" href="?{escape(query)}">{said}</a>'
        for said, query in EXAMPLES.items()
    )
    return (
        '<div class="planner" role="region" aria-label="Planner">\n'
        '<form class="planner-form" autocomplete="off">\n'
        f'<p class="planner-examples">Example: {examples}</p>\n'
        f'<div class="planner-fields">{below}</div>\n'
        f'<div class="planner-fields planner-shape" data-model="{OWN}" hidden>{shape}</div>\n'
        f"<details><summary>More</summary>"
        f'<div class="planner-fields">{more}</div></details>\n'
        "</form>\n"
        '<div class="planner-line"><p class="planner-status" role="status"></p></div>\n'
        f'<div class="planner-answer">{first["html"]}</div>\n'
        "</div>\n"
    )

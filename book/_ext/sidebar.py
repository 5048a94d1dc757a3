"""The list of all pages beside a page, made from their titles alone.

For every page Sphinx copies the headings of all pages and then takes them out again, for the list
shows titles only. Here it finds pages that have nothing but their titles.
"""

from functools import lru_cache
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment


@lru_cache(maxsize=1)
def titles(env: BuildEnvironment) -> dict[str, nodes.bullet_list]:
    """env.tocs without the headings below a page's title; lists of other pages stay."""
    found = {}
    for name, toc in env.tocs.items():
        found[name] = toc.deepcopy()
        for page in found[name]:
            if len(page) > 1:  # a title, and what is below it
                page[1][:] = [each.deepcopy() for each in page.findall(addnodes.toctree)]
                if not len(page[1]):
                    page.pop(1)
    return found


def use_titles(app: Sphinx, _name: str, _template: str, context: dict, _doctree: Any) -> None:
    of_sphinx = context["toctree"]

    def toctree(titles_only: bool = False, **options: Any) -> str:
        env = app.env
        whole = env.tocs
        try:
            if titles_only:
                env.tocs = titles(env)
            return of_sphinx(titles_only=titles_only, **options)
        finally:
            env.tocs = whole

    context["toctree"] = toctree


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", use_titles, priority=1)  # before the theme takes the function
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""The README is the first page of the site, and links of pages may leave ``docs/``."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README as ``index.md``, and every file of the project that a page links to."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    # Without a table of contents beside it, what the commands print has the width of a terminal.
    home = "---\nhide: [toc]\n---\n" + site_page(readme, ROOT)
    files.append(File.generated(config, "index.md", content=home))
    for page in [file for file in files.documentation_pages() if file.src_uri != "index.md"]:
        folder = Path(config.docs_dir, page.src_uri).parent
        for linked in linked_outside(page.content_string, folder):
            _add(files, config, linked)
    for linked in linked_outside(readme, ROOT):
        _add(files, config, linked)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave ``docs/`` to the copies of those files in the site."""
    if page.file.src_uri == "index.md":
        return markdown
    folder = Path(config.docs_dir, page.file.src_uri).parent
    return site_page(markdown, folder, depth=page.file.src_uri.count("/"))


def site_page(markdown: str, folder: Path, depth: int = 0) -> str:
    """``markdown`` of a page in ``folder`` with links as they are in the site.

    A file ``docs/x`` is ``x`` in the site, another file of the project ``files/x``. ``depth``:
    folders between the site's root and the page.
    """

    def moved(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        anchor = link[2] or ""
        if not target.exists() or not target.is_relative_to(ROOT):
            return link[0]
        if target.is_relative_to(ROOT / "docs"):
            # Links between pages are MkDocs' to check, unless the README is what links.
            inside = target.relative_to(ROOT / "docs").as_posix()
            return link[0] if folder != ROOT else f"]({inside}{anchor})"
        return f"]({'../' * depth}files/{target.relative_to(ROOT).as_posix()}{anchor})"

    return _LINK.sub(moved, markdown)


def linked_outside(markdown: str, folder: Path) -> list[Path]:
    """Files of the project outside ``docs/`` that a page in ``folder`` links to."""
    targets = [(folder / link[1]).resolve() for link in _LINK.finditer(markdown)]
    inside = (ROOT / "docs", ROOT / "README.md")
    return [
        target
        for target in targets
        if target.is_file()
        and target.is_relative_to(ROOT)
        and not any(target.is_relative_to(place) for place in inside)
    ]


def _add(files: Files, config: MkDocsConfig, linked: Path) -> None:
    uri = f"files/{linked.relative_to(ROOT).as_posix()}"
    if files.get_file_from_path(uri) is None:
        files.append(File.generated(config, uri, abs_src_path=str(linked)))

"""The site builds without a warning and without the network, and shows every page."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, pages
from tests.e2e.commands import environment

pytest.importorskip("mkdocs")
pytest.importorskip("material")


@pytest.fixture(scope="module", name="site")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        # Nothing can be fetched through a proxy that is not there.
        env={
            **environment(),
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "HTTP_PROXY": "http://127.0.0.1:9",
        },
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return site


def html_pages(site: Path) -> Iterator[Path]:
    return (page for page in site.rglob("*.html") if page.name != "404.html")


def test_every_page_is_in_the_site_and_the_navigation(site):
    navigation = (site / "index.html").read_text("utf-8")
    for page in pages():
        name = page.removeprefix("docs/").removesuffix(".md") + ".html"
        if page == "README.md":
            name = "index.html"
        assert (site / name).is_file(), page
        assert f'href="{"." if name == "index.html" else name}"' in navigation or (
            f'href="{name}"' in navigation
        ), page


def test_pages_load_nothing_from_elsewhere(site):
    for page in html_pages(site):
        text = page.read_text("utf-8")
        assert not re.findall(r"<(?:script|img|iframe|source)[^>]+src=\"?https?:[^\s>]+", text), (
            page
        )
        for link in re.findall(r"<link[^>]+>", text):
            assert "http" not in link or 'rel="canonical"' in link, (page, link)


def test_every_anchor_of_the_readme_leads_somewhere(site):
    home = (site / "index.html").read_text("utf-8")
    for name, anchor in re.findall(r'href="([\w/-]+\.html)#([\w-]+)"', home):
        assert f'id="{anchor}"' in (site / name).read_text("utf-8"), (name, anchor)


def test_comments_and_fences_are_not_shown_as_text(site):
    for page in html_pages(site):
        body = re.sub(r"<(pre|code)\b.*?</\1>", "", page.read_text("utf-8"), flags=re.DOTALL)
        assert "```" not in body, page
        assert "&lt;!-- " not in body, page


def test_pictures_are_shown_and_small():
    shown = "".join((ROOT / page).read_text("utf-8") for page in pages())
    for picture in (ROOT / "docs" / "images").iterdir():
        assert f"images/{picture.name}" in shown, picture
        assert picture.stat().st_size <= 300_000, picture


def test_search_finds_the_recipes_fields(site):
    index = (site / "search" / "search_index.json").read_text("utf-8")
    assert "recipe.recompute_taper" in index
    assert "faq.html#mfu-differs-from-what-i-log" in index


def test_rows_of_long_tables_are_found_by_words(site, open_page):
    page = open_page(site / "choices.html").page
    rows = page.locator("table").first.locator("tbody tr")
    count = rows.count()
    page.locator("input.table-filter").first.fill("LLAMA3 126")
    assert rows.locator("visible=true").count() == 1
    assert "llama3_405b" in rows.locator("visible=true").inner_text()
    page.locator("input.table-filter").first.fill("")
    assert rows.locator("visible=true").count() == count > 20

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

from tests.reports.search_page.searches import searched
from trainscout.reports.search_page.page import PAGE, search_page, write_search_page

HOSTILE = "</script><script>alert('{{record}}')</script><img src=x onerror=alert(1)>&amp;\u2028"


def hostile():
    search = searched()
    model = replace(search.question.model, name=HOSTILE)
    return replace(search, question=replace(search.question, model=model))


class Elements(HTMLParser):
    """Start tags of a page, and the text inside each ``script`` and ``style``."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags, self.texts, self._inside = [], [], None
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside in ("script", "style", "title"):
            self.texts.append((self._inside, data))


def test_a_hostile_name_stays_text():
    found = Elements(search_page(hostile()))
    tags = [tag for tag, _ in found.tags]
    assert tags.count("script") == 2
    assert "img" not in tags
    (title,) = (text for kind, text in found.texts if kind == "title")
    assert title.startswith(HOSTILE)
    record, _ = (text for kind, text in found.texts if kind == "script")
    assert json.loads(record)["title"].startswith(HOSTILE)


def test_only_its_own_style_and_script_may_run():
    found = Elements(search_page(searched()))
    (policy,) = (
        search["content"]
        for tag, search in found.tags
        if tag == "meta" and search.get("http-equiv") == "Content-Security-Policy"
    )
    (style,) = (text for kind, text in found.texts if kind == "style")
    script = [text for kind, text in found.texts if kind == "script"][-1]
    for kind, text in (("style", style), ("script", script)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_asks_for_no_other_file():
    page = search_page(searched())
    assert not re.search(r"""(src|href)=["'](https?:)?//""", page)
    assert "@import" not in page
    assert "eval(" not in page


def test_is_written_whole_beside_the_other_files(tmp_path):
    search = searched()
    path = write_search_page(tmp_path, search)
    assert path == tmp_path / PAGE
    assert path.read_text(encoding="utf-8") == search_page(search)
    assert [each.name for each in tmp_path.iterdir()] == [PAGE]

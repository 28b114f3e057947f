"""The report of a search as one HTML file that needs nothing else (``docs/report.md``).

``page_data`` makes plain data of a search, one module a chart; ``page`` puts it into the HTML,
style and script in ``assets``, where the browser draws it.
"""

from trainscout.reports.search_page.page import PAGE, search_page, write_search_page
from trainscout.reports.search_page.searched import (
    Searched,
    SearchRequest,
    launch_texts,
    search_request,
)

__all__ = [
    "PAGE",
    "SearchRequest",
    "Searched",
    "launch_texts",
    "search_page",
    "search_request",
    "write_search_page",
]

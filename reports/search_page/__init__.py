"""The report of a search as one HTML file that needs nothing else (``docs/report.md``).

``page_data`` makes plain data of a search, one module a chart; ``page`` puts it into the HTML,
style and script in ``assets``, where the browser draws it.
"""

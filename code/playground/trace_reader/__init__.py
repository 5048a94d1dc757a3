"""Reader of traces in a page: `distributed.read_trace` with an area to drop files.

The book's build writes the area and the result for an example into the page. The same modules read
a reader's own files in the reader's tab, so they import no library, and no file is uploaded.
"""

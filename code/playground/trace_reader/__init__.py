"""The reader of traces in a page: `distributed.read_trace` behind a place to drop files.

The book's build writes the place and what an example says into the page. A reader's own files are
read by these same modules in the reader's tab, so they import no library, and nothing is uploaded.
"""

"""What carries the book's programs: processes, messages, counters, and errors one can read."""

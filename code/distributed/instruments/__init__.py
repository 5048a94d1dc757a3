"""Programs that measure what is taught: seconds of collectives, bytes that leave a host."""

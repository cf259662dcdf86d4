"""Networks, one file an architecture. Knows no backend."""

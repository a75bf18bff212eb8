"""Cases from public reports of what went wrong elsewhere."""

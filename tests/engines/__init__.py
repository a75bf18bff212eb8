"""r2d1 against servers that others wrote: Cloudflare's local R2 and D1, SeaweedFS, rclone. ``nox -s engines`` runs it."""

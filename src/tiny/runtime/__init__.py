"""One file a device; `tiny.device` finds and opens them by name."""

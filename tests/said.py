"""What a notebook's output says, whether it was printed or shown with a form for rich displays."""

from __future__ import annotations


def said(output: dict) -> str:
    """The text of an output, as a file or a kernel has it: what was printed, or the plain form of what was shown."""
    text = output.get("text") or output.get("data", {}).get("text/plain", "")
    return text if isinstance(text, str) else "".join(text)

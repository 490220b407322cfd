"""A demo's panel on a page, driven by keyboard as a person would."""

from __future__ import annotations

TIMEOUT = 20_000  # milliseconds

# Notes when the next key goes down, and when the next picture is there and has been painted.
_WATCH = """image => {
  const before = image.src;
  window.keyAt = window.paintedAt = null;
  document.addEventListener('keydown', () => { window.keyAt = performance.now(); }, {once: true, capture: true});
  const look = () => image.src !== before && image.complete
      ? requestAnimationFrame(() => { window.paintedAt = performance.now(); })
      : requestAnimationFrame(look);
  requestAnimationFrame(look);
}"""


class Panel:
    """The panel with number ``number`` of a page, from 0, in the order in which they stand there."""

    def __init__(self, page, number: int):
        self.page = page
        self.box = page.locator(".distlab-panel").nth(number)
        self.box.wait_for(timeout=TIMEOUT)
        self.box.evaluate("panel => panel.scrollIntoView({block: 'start'})")
        self.image = self.box.locator("img")

    def focus(self, label: str) -> None:
        """Sets the keyboard's focus on the control or button of a label."""
        ways = (
            ".widget-hslider:has(label[title='{}']) .noUi-handle",
            "input[type=checkbox][title='{}']",
            ".widget-play[title='{}'] button",
            "button[title='{}']:enabled",  # a key on one that is disabled would be lost
        )
        self.box.locator(", ".join(way.format(label) for way in ways)).first.focus(timeout=TIMEOUT)

    def press(self, label: str, *keys: str) -> None:
        """Presses keys on a control."""
        self.focus(label)
        for key in keys:
            self.page.keyboard.press(key)

    def expect(self, words: str) -> None:
        """Waits until the words beside the picture hold these, and the title what it must."""
        said = """([panel, words]) => {
          const status = panel.querySelector('[role=status]');
          return (status.getAttribute('aria-label') + ' ' + status.innerText).includes(words);
        }"""
        self.page.wait_for_function(said, arg=[self.box.element_handle(), words], timeout=TIMEOUT)

    def milliseconds(self, label: str, key: str) -> float:
        """From a key on a control until the picture that follows has been painted."""
        self.focus(label)
        self.image.evaluate(_WATCH)
        self.page.keyboard.press(key)
        self.page.wait_for_function("() => window.paintedAt !== null", timeout=TIMEOUT)
        return self.page.evaluate("() => window.paintedAt - window.keyAt")

    def picture(self) -> str:
        """The address of the picture, another one whenever it was drawn anew."""
        return self.image.get_attribute("src")

    def place(self) -> dict:
        """Where the picture stands on the page, and how large it is."""
        return self.image.bounding_box()

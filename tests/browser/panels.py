"""A demo's panel on a page, driven by keyboard as a person would."""

from __future__ import annotations

TIMEOUT = 20_000  # milliseconds

# Notes when the next key goes down, and when the next picture is there and has been painted: another element, or of an
# <img> another address.
_WATCH = """panel => {
  const picture = () => panel.querySelector('svg[role=img], img');
  const before = picture(), address = before.src;
  window.keyAt = window.paintedAt = null;
  document.addEventListener('keydown', () => { window.keyAt = performance.now(); }, {once: true, capture: true});
  const isNew = now => now && (now !== before || now.src !== address) && now.complete !== false;
  const look = () => isNew(picture())
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
        self.image = self.box.locator("svg[role=img]")

    def focus(self, label: str) -> None:
        """Sets the keyboard's focus on the control or button of a label."""
        ways = (
            ".widget-hslider:has(label[title='{}']) .noUi-handle",
            "input[type=checkbox][title='{}']",
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
        self.box.evaluate(_WATCH)
        self.page.keyboard.press(key)
        self.page.wait_for_function("() => window.paintedAt !== null", timeout=TIMEOUT)
        return self.page.evaluate("() => window.paintedAt - window.keyAt")

    def picture(self) -> str:
        """The picture, as the page has it."""
        return self.image.evaluate("picture => picture.outerHTML")

    def place(self) -> dict:
        """Where the picture stands on the page, and how large it is."""
        return self.image.bounding_box()

    def words(self) -> list[str]:
        """The texts that stand in the picture."""
        return self.image.locator("text").all_text_contents()

    def value(self, label: str) -> str:
        """What stands beside a slider."""
        return self.box.locator(f".widget-hslider:has(label[title='{label}']) .widget-readout").inner_text()

    def cut(self) -> list[str]:
        """The controls whose label or value has not enough room."""
        return self.box.evaluate("""panel => [...panel.querySelectorAll('.widget-readout, .widget-label, button')]
            .filter(part => part.offsetParent && part.scrollWidth > part.clientWidth + 1)
            .map(part => part.innerText)""")

    def letters(self) -> float:
        """How large the letters of most words beside boxes are on the page, in pixels."""
        return self.image.evaluate("""picture => {
          const box = picture.viewBox.baseVal, place = picture.getBoundingClientRect();
          return Math.min(place.width / box.width, place.height / box.height) * 14.5 * 100 / 72;
        }""")

    def strangers(self) -> list[str]:
        """What the picture is filled with and does not define, or defines under a name that another thing has too."""
        return self.image.evaluate("""picture => [...picture.querySelectorAll('[fill^="url(#"]')]
            .map(part => part.getAttribute('fill').slice(5, -1))
            .filter(id => document.querySelectorAll(`[id="${id}"]`).length !== 1
                || !picture.contains(document.getElementById(id)))""")

    def nameless(self) -> list[str]:
        """The controls to which one can tab and that have no name."""
        return self.box.evaluate("""panel => [...panel.querySelectorAll('button, input, [tabindex="0"]')]
            .filter(part => part.offsetParent)
            .filter(part => !(part.innerText || part.title || part.getAttribute('aria-label')
                || part.closest('[title]') || part.closest('.widget-hslider')?.querySelector('label')))
            .map(part => part.outerHTML.slice(0, 200))""")

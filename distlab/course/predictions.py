"""predict(): a guess before the answer is seen."""

from __future__ import annotations

import math

from distlab.course.checks import predictions

_CLOSE = 0.02


def predict(key: str, *guesses) -> None:
    """Prints your guess beside the true value and the reason; ``...`` asks for a guess and gives nothing away.

    Where several numbers are asked for, give them one after the other or as a list.
    """
    known = predictions().get(key)
    guess = guesses[0] if len(guesses) == 1 else list(guesses) or ...
    if known is None:
        print(f"There is no question {key!r}. Questions: {', '.join(predictions())}")
    elif guess is ... or ... in guesses:
        print("○ Your guess first: put it in place of ... and run this cell again. Or read on; the answer comes.")
    elif _agree(guess, known.answer):
        print(f"✓ {_shown(known.answer)}: you saw it coming. {known.because}")
    else:
        print(f"You said {_said(guess)}; it is {_shown(known.answer)}. {known.because}")


def _agree(guess, answer) -> bool:
    if isinstance(answer, bool) or isinstance(answer, str):
        return str(guess).strip().lower() == str(answer).lower()
    if isinstance(answer, int | float):
        return isinstance(guess, int | float) and math.isclose(guess, answer, rel_tol=_CLOSE)
    if isinstance(answer, list | tuple):
        return isinstance(guess, list | tuple) and len(guess) == len(answer) and all(map(_agree, guess, answer))
    return guess == answer


def _said(guess) -> str:
    return repr(guess) if isinstance(guess, str) else _shown(guess)


def _shown(value) -> str:
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)

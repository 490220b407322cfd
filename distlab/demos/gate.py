"""Small GPTs with lab 09's experts, trained in a second on real text: which expert does each character go to?"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F

from distlab.data import text, text_batch
from distlab.demos.course import built_in
from distlab.models import GPT, gpt

NUM_EXPERTS = 8
NUM_TOKENS = 32  # characters of a line
NUM_LINES = 8
WIDTH = 64
STEPS = 100


@dataclass(frozen=True)
class Routing:
    """Where the gate sends the characters of a line, best expert first.

    ``experts_TK`` has their numbers; ``balance`` is the balance loss over its alpha: E sum(f P).
    """

    line: str
    experts_TK: torch.Tensor
    balance: float

    @property
    def top_k(self) -> int:
        """Experts for each token."""
        return self.experts_TK.shape[1]

    @property
    def loads(self) -> list[int]:
        """By expert, the choices that fell on it."""
        return torch.bincount(self.experts_TK.flatten(), minlength=NUM_EXPERTS).tolist()

    def capacity(self, factor: float) -> int:
        """Places in each expert's queue; as many as there are tokens, if ``factor`` is infinite."""
        of_lab = None if factor == math.inf else factor
        return built_in("mixture_of_experts").capacity_of(len(self.line), self.top_k, NUM_EXPERTS, of_lab)

    def queues(self, factor: float = math.inf) -> list[list[tuple[int, int]]]:
        """By expert, in the order of its queue, who is kept: the token, and which of its choices this is."""
        plan = built_in("mixture_of_experts").dispatch(self.experts_TK, NUM_EXPERTS, self.capacity(factor))
        tokens_A, choices_A, counts_E = (part.tolist() for part in plan)
        kept = iter(zip(tokens_A, choices_A, strict=True))
        return [[next(kept) for _ in range(count)] for count in counts_E]


@cache
def lines() -> list[str]:
    """The first characters of some lines of the text that no model was trained on."""
    ids_N, vocabulary = text("test")
    whole = "".join(vocabulary[number] for number in ids_N.tolist())
    long = [line[:NUM_TOKENS] for line in whole.split("\n") if line[:1].isalpha() and len(line) >= NUM_TOKENS]
    return [long[number * len(long) // NUM_LINES] for number in range(NUM_LINES)]


@cache
def routing(top_k: int, alpha: float, line: int) -> Routing:
    """How the GPT that was trained with this k and alpha routes a line."""
    model = trained(top_k, alpha)
    moe = model.blocks[0].mlp
    _, vocabulary = text("test")
    with torch.no_grad(), _one_thread():
        model(torch.tensor([[vocabulary.index(letter) for letter in lines()[line]]]))
    return Routing(lines()[line], moe.experts_TK.cpu(), moe.balance_loss.item() / moe.alpha)


@cache
def trained(top_k: int, alpha: float) -> GPT:
    """A GPT of one block with lab 09's MoE in the place of its MLP, after 100 steps on 256 characters each.

    Nobody is dropped while it is trained. Its MoE's alpha is 1 afterwards, to read the balance loss with.
    """
    model = gpt(width=WIDTH, num_layers=1, context=NUM_TOKENS)
    moe = model.blocks[0].mlp = built_in("mixture_of_experts").MoE(WIDTH, NUM_EXPERTS, top_k, alpha=alpha)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with _one_thread():
        for step in range(STEPS):
            x_BS, y_BS = text_batch(8, NUM_TOKENS, seed=step)
            loss = F.cross_entropy(model(x_BS).flatten(0, 1), y_BS.flatten())
            optimizer.zero_grad()
            (loss + moe.balance_loss).backward()
            optimizer.step()
    moe.alpha = 1.0
    return model


@contextlib.contextmanager
def _one_thread():
    """Products as small as these gain nothing from more, and sums are then the same wherever they are made."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

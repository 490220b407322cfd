"""The storages of tensors, each counted once whatever shares it.

Hundreds of tensors are asked at every look, so what is common is asked in loops of C: ``map`` over a list.
"""

from __future__ import annotations

from operator import attrgetter

import torch

PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_ADDRESS_OF = attrgetter("_cdata")


def is_tensor(value) -> bool:
    """The same as isinstance, but quick for most."""
    return type(value) in PLAIN or isinstance(value, torch.Tensor)


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Where its bytes are, those of a DTensor on this rank; None where it has none of its own to be asked for."""
    is_plain = type(tensor) in PLAIN
    tensor = tensor if is_plain else getattr(tensor, "_local_tensor", tensor)
    if tensor.layout is not torch.strided or tensor.is_meta or isinstance(tensor, torch._subclasses.FakeTensor):
        return None
    storage = tensor.untyped_storage()
    return storage if is_plain or _has_memory(storage) else None


def _has_memory(storage: torch.UntypedStorage) -> bool:
    """No for that of a tensor that only wraps others, which are found by themselves."""
    try:
        storage.data_ptr()
    except RuntimeError:
        return False
    return True


class Storages:
    """Adds up the storages of tensors, each once."""

    def __init__(self, tensors: list[torch.Tensor]):
        self._tensors: list[torch.Tensor] = []  # kept, so that their ids remain theirs
        self._addresses: dict[int, int] = {}  # of storages, by ids of tensors
        self._storages: dict[int, torch.UntypedStorage] = {}  # by addresses
        self._counted: set[int] = set()
        self._ask(tensors)

    def count(self, tensors: list[torch.Tensor]) -> int:
        """Bytes of the storages of tensors that have not been counted yet."""
        ids = set(map(id, tensors))
        if unknown := ids - self._addresses.keys():
            self._ask([tensor for tensor in tensors if id(tensor) in unknown])
        return self._count(set(map(self._addresses.get, ids)) - {None})

    def count_left(self, mark: str = "") -> int:
        """Bytes of all storages that have not been counted yet; on request only of those that bear a mark."""
        left = self._storages.keys() - self._counted
        return self._count({address for address in left if not mark or hasattr(self._storages[address], mark)})

    def _count(self, addresses: set[int]) -> int:
        new = addresses - self._counted
        self._counted |= new
        return sum(self._storages[address].nbytes() for address in new)

    def _ask(self, tensors: list[torch.Tensor]) -> None:
        self._tensors += tensors
        try:
            plain = [tensor for tensor in tensors if type(tensor) in PLAIN and not tensor.is_meta]
            self._add(plain, list(map(torch.Tensor.untyped_storage, plain)))
        except RuntimeError:  # one is sparse, say
            plain = []
        if len(plain) < len(tensors):
            for tensor in [tensor for tensor in tensors if id(tensor) not in self._addresses]:
                if (storage := storage_of(tensor)) is not None:
                    self._add([tensor], [storage])

    def _add(self, tensors: list[torch.Tensor], storages: list[torch.UntypedStorage]) -> None:
        addresses = list(map(_ADDRESS_OF, storages))
        self._addresses.update(zip(map(id, tensors), addresses))
        self._storages.update(zip(addresses, storages))

"""The storages of tensors, each counted once whatever shares it.

Hundreds of tensors are asked at every look, so what is common is asked in loops of C: ``map`` over a list.
"""

from __future__ import annotations

import torch

from distlab.ranks.torch_inside import FakeTensor, storage_id

PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_STORAGE_OF, _NUM_BYTES = torch.Tensor.untyped_storage, torch.UntypedStorage.nbytes


def is_tensor(value) -> bool:
    """The same as isinstance, but quick for most."""
    return type(value) in PLAIN or isinstance(value, torch.Tensor)


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Where its bytes are, those of a DTensor on this rank; None where it has none of its own to be asked for."""
    is_plain = type(tensor) in PLAIN
    tensor = tensor if is_plain else getattr(tensor, "_local_tensor", tensor)
    if tensor.layout is not torch.strided or tensor.is_meta or isinstance(tensor, FakeTensor):
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
    """The storages of tensors by kind, each once: it is of the last kind that was said of a tensor in it."""

    def __init__(self, tensors: list[torch.Tensor], kind: str):
        self._tensors: list[torch.Tensor] = []  # kept, so that their ids remain theirs
        self._addresses: dict[int, int] = {}  # of storages, by ids of tensors
        self._storages: dict[int, torch.UntypedStorage] = {}  # by addresses
        self._kinds: dict[int, str] = {}  # the same, in the same order
        self._ask(tensors, kind)

    def put(self, tensors: list[torch.Tensor], kind: str) -> None:
        """Says of what kind the storages of tensors are."""
        addresses = list(map(self._addresses.get, map(id, tensors)))
        if None in addresses:
            self._ask([tensor for tensor, address in zip(tensors, addresses) if address is None], kind)
        self._kinds.update(dict.fromkeys(filter(None, addresses), kind))

    def put_marked(self, mark: str, kind: str) -> None:
        """Says of what kind those storages are that have an attribute."""
        self._kinds.update((address, kind) for address, storage in self._storages.items() if hasattr(storage, mark))

    def bytes_by_kind(self) -> dict[str, int]:
        """How many bytes the storages of each kind have."""
        found = dict.fromkeys(self._kinds.values(), 0)
        for kind, size in zip(self._kinds.values(), map(_NUM_BYTES, self._storages.values())):
            found[kind] += size
        return found

    def _ask(self, tensors: list[torch.Tensor], kind: str) -> None:
        self._tensors += tensors
        plain = [tensor for tensor in tensors if type(tensor) in PLAIN and not tensor.is_meta]
        try:
            self._add(plain, list(map(_STORAGE_OF, plain)), kind)
        except RuntimeError:  # one is sparse, say
            plain = []
        if len(plain) < len(tensors):
            self._ask_one_by_one([tensor for tensor in tensors if id(tensor) not in self._addresses], kind)

    def _ask_one_by_one(self, tensors: list[torch.Tensor], kind: str) -> None:
        for tensor in tensors:
            if (storage := storage_of(tensor)) is not None:
                self._add([tensor], [storage], kind)

    def _add(self, tensors: list[torch.Tensor], storages: list[torch.UntypedStorage], kind: str) -> None:
        addresses = list(map(storage_id, storages))
        self._addresses.update(zip(map(id, tensors), addresses))
        self._storages.update(zip(addresses, storages))
        self._kinds.update(dict.fromkeys(addresses, kind))

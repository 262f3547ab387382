from typing import Any, final

class Member: ...

@final
class Alive:
    def add(self, member: Member) -> None: ...
    def discard(self, member: Member) -> None: ...
    def members(self) -> list[Any]: ...

class Value(Member):
    node: Any
    device: str | None
    holders: Any
    maker: object
    owner: bool
    is_written: bool
    stands_apart: bool

class Seen(Member):
    _storage: Any
    _root: Any
    _uop: Any
    grad: Any
    requires_grad: bool | None

@final
class Changes:
    pending: int
    epoch: object

@final
class Owners:
    def get(self, buffer: Any) -> Any: ...
    def setdefault(self, buffer: Any, value: Value) -> Any: ...
    def pop(self, buffer: Any, default: Any = None) -> Any: ...
    def __contains__(self, buffer: Any) -> bool: ...
    def __len__(self) -> int: ...

changes: Changes
owners: Owners

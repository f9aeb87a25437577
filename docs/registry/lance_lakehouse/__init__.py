"""The component of this entry."""

from .component import LanceLakehouseComponent  # noqa: TID252 - the registry loads this folder as a package of any name

__all__ = ["LanceLakehouseComponent"]

"""What happened, to look at: the only place that imports matplotlib. Each drawing is a text first, a picture second."""

from distlab.show.kinds import KindsPicture, bytes_by_kind
from distlab.show.memory import MemoriesPicture, MemoryPicture, memories, memory
from distlab.show.timeline import TimelinePicture, timeline
from distlab.show.traffic import TrafficPicture, traffic

__all__ = [
    "KindsPicture",
    "MemoriesPicture",
    "MemoryPicture",
    "TimelinePicture",
    "TrafficPicture",
    "bytes_by_kind",
    "memories",
    "memory",
    "timeline",
    "traffic",
]

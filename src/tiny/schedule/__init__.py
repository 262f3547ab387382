"""Tensor graph to kernels, their order and their memory."""

from tiny.schedule.schedule import (
    BoundSchedule,
    Schedule,
    ScheduleItem,
    ScheduleStats,
    Slot,
    View,
    create_schedule,
)

__all__ = [
    "BoundSchedule",
    "Schedule",
    "ScheduleItem",
    "ScheduleStats",
    "Slot",
    "View",
    "create_schedule",
]

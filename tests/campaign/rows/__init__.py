"""One module for each promise that the campaign tries to break."""

from typing import Final

from tests.campaign.book import Row
from tests.campaign.rows import (
    access,
    arguments,
    backups,
    bad_disk,
    bad_plugins,
    budgets,
    canaries,
    capacity,
    clean_stop,
    inside_calls,
    kills,
    malformed,
    model_key,
    origins,
    orphans,
    path_escapes,
    power_loss,
    repeats,
    revocation,
    sealed,
    settings_races,
    two_users,
)

ROWS: Final[tuple[Row, ...]] = (
    kills.ROW,
    power_loss.ROW,
    bad_disk.ROW,
    orphans.ROW,
    settings_races.ROW,
    repeats.ROW,
    capacity.ROW,
    bad_plugins.ROW,
    clean_stop.ROW,
    budgets.ROW,
    backups.ROW,
    access.ROW,
    two_users.ROW,
    origins.ROW,
    canaries.ROW,
    sealed.ROW,
    inside_calls.ROW,
    malformed.ROW,
    path_escapes.ROW,
    arguments.ROW,
    revocation.ROW,
    model_key.ROW,
)

"""What all copy runs of a subscription share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgsluice.config import Config
    from pgsluice.subscription.base.received import Received
    from pgsluice.subscription.batches.batches import Batches
    from pgsluice.subscription.copies.pending import PendingCopies
    from pgsluice.subscription.copies.progress import CopyCounts
    from pgsluice.subscription.copies.scheduler import CopyShare
    from pgsluice.subscription.lifecycle.tables import SubscriptionTables
    from pgsluice.subscription.refresh.looks import CatalogLooks


@dataclass(frozen=True, slots=True)
class CopySite:
    """What all copy runs of a subscription share.

    Attributes:
        batches: applies changes to tables in state ``d``.
        share: the subscription's settings, and its share in the scheduler.
    """

    config: Config
    tables: SubscriptionTables
    looks: CatalogLooks
    received: Received
    batches: Batches
    pending: PendingCopies
    share: CopyShare
    counts: CopyCounts

"""``python -m pgsluice.capture``: a capture that another process of pgsluice started."""

import gc
import sys

gc.disable()  # until all is imported, which stays

from pgsluice.capture.child import main  # noqa: E402

sys.exit(main())

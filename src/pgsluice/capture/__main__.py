"""``python -m pgsluice.capture``: a capture that another process of pgsluice started."""

import sys

from pgsluice.capture.child import main

sys.exit(main())

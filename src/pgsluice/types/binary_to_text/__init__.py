"""PostgreSQL's output functions over binary forms: what a value's text would have been.

Types that travel as the text that the server prints (ranges, geometry, composites, intervals)
must be the same string whichever form their values came in. A *printer* is a function from
one value's binary form to that text, byte for byte, under the settings of the replication
session (datestyle ISO, intervalstyle postgres, extra_float_digits 3, timezone UTC,
lc_monetary C).

A printer raises :class:`ValueError` (also UnicodeDecodeError) for bytes that no send function
makes, and :class:`NoTextForm` for a type inside whose text is not in its binary form.
"""

from pgsluice.types.binary_to_text.cursor import Misshapen, NoTextForm, Printer

__all__ = ["Misshapen", "NoTextForm", "Printer"]

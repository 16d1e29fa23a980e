"""PostgreSQL's output functions for binary forms: the text that the server would have printed.

A type that maps to a string (ranges, geometry, composites, intervals) must give the same string
for the text form and for the binary form of a value. A *printer* is a function from
one value's binary form to that text, byte for byte, under the settings of the replication
session (datestyle ISO, intervalstyle postgres, extra_float_digits 3, timezone UTC,
lc_monetary C).

A printer raises :class:`ValueError` (also UnicodeDecodeError) for bytes that no send function
writes, and :class:`NoTextForm` for a nested type whose text does not follow from its binary form.
"""

from pgsluice.types.binary_to_text.cursor import NoTextForm, Printer

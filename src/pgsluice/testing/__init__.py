"""What tests of pgsluice and of sinks made elsewhere share: builders and contract suites."""

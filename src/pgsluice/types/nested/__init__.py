"""Types that map to structs and maps, if the configuration asks for it: ranges, multiranges,
composites, hstore."""

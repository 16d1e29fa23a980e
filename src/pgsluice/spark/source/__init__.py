"""The data source ``format("pgoutput")``: its options, its schema, and its readers."""

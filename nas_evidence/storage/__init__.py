"""What a study keeps: its folder, lock and lease, database, journal, files behind a URI."""

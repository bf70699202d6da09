"""How a study is stored: folder, lock and lease, database, journal, files behind a URI."""

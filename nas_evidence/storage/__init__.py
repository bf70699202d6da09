"""How a study is stored: folder, lock and lease, journal, files behind a URI."""
